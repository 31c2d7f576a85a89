"""Budget invariants: how many tokens a response may use, and who says so."""

from collections.abc import Iterator

from sim.case import Case, explicit_limit, params_owner
from sim.invariants.interface import Invariant, Violation
from sim.trace import Attempt, Logged, Trace, TurnRecord


def turn_budget_tokens(case: Case, session: int) -> int | None:
    """The budget of one call of generate: the caller's limit, else response_length as the client's config shows it.

    None where neither is a positive integer: then there is nothing to hold the client to.
    """
    limit = explicit_limit(case, session)
    budget = case.budget.client_response_length if limit is None else limit.tokens
    return budget if type(budget) is int and budget > 0 else None


def _turn_budgets(trace: Trace, case: Case) -> dict[int, int | None]:
    """`turn_budget_tokens` of every session; taken with `Trace.derived`, so that it is worked out once a world."""
    return {session: turn_budget_tokens(case, session) for session in trace.ledger.sessions}


def usable(response_length: object) -> bool:
    """Whether a response_length from a config is one that a client can hold itself to."""
    return type(response_length) is int and response_length > 0


def used_before_tokens(case: Case, trace: Trace, session: int, turn: TurnRecord) -> int:
    """What is charged to the budget when `turn` begins: nothing, or under policy trajectory all since the prompt."""
    if case.budget.policy == "turn":
        return 0
    return turn.started.prompt_tokens - trace.ledger.sessions[session].turns[0].started.prompt_tokens


MOST_GRANTS_SPELLED = 8
"""A message is read as a line."""


def returned_tokens(turn: TurnRecord) -> int:
    """Tokens that the client returned for a turn."""
    return 0 if turn.ended is None else sum(count for _, count in turn.ended.ids)


def generated_before_tokens(turn: TurnRecord, attempt: Attempt) -> int:
    """Tokens of the response that an attempt's prompt already holds."""
    return attempt.sent.prompt_tokens - turn.started.prompt_tokens


def spelled_grants(turn: TurnRecord) -> str:
    """The attempts' grants and what was decoded under them: `16 of 16, 9 of 20 (aborted)`."""
    parts = []
    for attempt in turn.attempts:
        if attempt.grant is None:
            continue
        aborted = " (aborted)" if any(ended.outcome == "abort" for ended in attempt.ended) else ""
        parts.append(f"{attempt.decoded_tokens} of {attempt.grant.tokens}{aborted}")
    more = len(parts) - MOST_GRANTS_SPELLED
    return ", ".join(parts) if more <= 0 else ", ".join(parts[:MOST_GRANTS_SPELLED]) + f" and {more} more"


def _granted(trace: Trace) -> Iterator[tuple[int, TurnRecord, Attempt]]:
    for session, turn in trace.ledger.turns():
        for attempt in turn.attempts:
            if attempt.grant is not None:
                yield session, turn, attempt


def _where(turn: TurnRecord, attempt: Attempt) -> str:
    return f"session {turn.started.session} turn {turn.started.turn} attempt {attempt.sent.attempt}"


def check_overrun(case: Case, trace: Trace) -> list[Violation]:
    """B1."""
    violations = []
    budgets = trace.derived(_turn_budgets, case)
    for session, turn in trace.ledger.turns():
        budget = budgets[session]
        if budget is None:
            continue
        used = used_before_tokens(case, trace, session, turn)
        decoded = turn.decoded_tokens
        if decoded and used + decoded > budget:
            before = f"{used} tokens used before, then " if used else ""
            violations.append(
                Violation(
                    "B1",
                    f"session {session} turn {turn.started.turn} decoded {used + decoded} tokens against a "
                    f"budget of {budget} ({case.budget.policy}): {before}{spelled_grants(turn)}",
                    session,
                )
            )
    return violations


def check_usable(case: Case, trace: Trace) -> list[Violation]:
    """B2."""
    violations = []
    budgets = trace.derived(_turn_budgets, case)
    for session, turn in trace.ledger.turns():
        budget = budgets[session]
        if budget is None or turn.ended is None or turn.ended.outcome != "ok":
            continue
        last = turn.attempts[-1].ended[-1].outcome if turn.attempts and turn.attempts[-1].ended else None
        if last in ("stop", "error") or (last in ("abort", "refused") and not case.partial_rollout):
            continue
        returned = returned_tokens(turn)
        left = budget - used_before_tokens(case, trace, session, turn) - returned
        room = case.server.rules.room_tokens(case.budget, turn.started.prompt_tokens + returned)
        if left > 0 and room > 0:
            violations.append(
                Violation(
                    "B2",
                    f"session {session} turn {turn.started.turn} was cut at {returned} tokens ({last}) with {left} of "
                    f"its budget of {budget} and {room} tokens of context left: {spelled_grants(turn)}",
                    session,
                )
            )
    return violations


def check_params_unchanged(case: Case, trace: Trace) -> list[Violation]:
    """B4."""
    del case
    return [
        Violation(
            "B4",
            f"session {session} turn {turn.started.turn}: the caller's sampling params {turn.ended.params_changed}",
            session,
        )
        for session, turn in trace.ledger.turns()
        if turn.ended is not None and turn.ended.params_changed is not None
    ]


def check_nothing_left(case: Case, trace: Trace) -> list[Violation]:
    """B6."""
    violations = []
    budgets = trace.derived(_turn_budgets, case)
    context_tokens = case.budget.context_tokens
    config_usable = usable(case.budget.client_response_length)
    for session, turn, attempt in _granted(trace):
        grant = attempt.grant
        assert grant is not None
        if grant.tokens <= 0:
            continue
        prompt_tokens = attempt.sent.prompt_tokens
        if prompt_tokens + grant.tokens > context_tokens:
            violations.append(
                Violation(
                    "B6",
                    f"{_where(turn, attempt)}: prompt {prompt_tokens} + grant {grant.tokens} exceeds the context of "
                    f"{context_tokens}",
                    session,
                )
            )
        budget = budgets[session]
        limit = explicit_limit(case, session)
        if limit is None and not config_usable:
            # The documented fallback (B8): the client cannot know what is left, and the server's default is what it is.
            continue
        generated = generated_before_tokens(turn, attempt)
        if grant.wanted_tokens <= 0:
            violations.append(
                Violation(
                    "B6",
                    f"{_where(turn, attempt)}: {grant.rule} asks for {grant.wanted_tokens} tokens and the request is "
                    f"sent and granted {grant.tokens}",
                    session,
                )
            )
        elif limit is not None and limit.tokens == 0:
            violations.append(
                Violation(
                    "B6",
                    f"{_where(turn, attempt)}: the caller's limit is 0 and the request is granted {grant.tokens}",
                    session,
                )
            )
        elif budget is not None and case.budget.policy == "turn" and generated >= budget:
            violations.append(
                Violation(
                    "B6",
                    f"{_where(turn, attempt)}: the budget of {budget} is used up ({generated} generated) and the "
                    f"request is sent and granted {grant.tokens}",
                    session,
                )
            )
    return violations


def check_fallback(case: Case, trace: Trace) -> list[Violation]:
    """B8."""
    configured = case.budget.client_response_length
    if usable(configured):
        return []
    reported = any(isinstance(event, Logged) and "response_length" in event.text for event in trace.events)
    violations = []
    for session, turn, attempt in _granted(trace):
        if explicit_limit(case, session) is not None or attempt.sent.attempt > 0:
            continue
        where = f"session {session} turn {turn.started.turn}: response_length is {configured!r} in the client's config"
        if attempt.sent.limits:
            violations.append(Violation("B8", f"{where}, and it sent the limit {attempt.sent.limits}", session))
        elif not reported:
            violations.append(Violation("B8", f"{where}, and it left the limit to the server without a word", session))
    return violations


def check_limit_honoured(case: Case, trace: Trace) -> list[Violation]:
    """B10. Where objects are shared, a client may change its params after it has sent them: not the server's doing."""
    violations = []
    changed_by = {
        params_owner(case, session)
        for session, turn in trace.ledger.turns()
        if turn.ended is not None and turn.ended.params_changed is not None
    }
    for session, turn, attempt in _granted(trace):
        grant = attempt.grant
        assert grant is not None
        if case.transport.objects == "shared":
            if grant.rule == "default":  # a limit taken out again, by a session that has the same params
                changed = params_owner(case, session) in changed_by
            else:
                changed = attempt.sent.limits.get(grant.rule) != grant.wanted_tokens
            if changed:
                continue
        asked = [limit for limit in attempt.sent.limits.values() if type(limit) is int and limit > 0]
        if asked and grant.tokens not in {max(0, min(limit, grant.room_tokens)) for limit in asked}:
            violations.append(
                Violation(
                    "B10",
                    f"{_where(turn, attempt)}: the client sent {attempt.sent.limits} and the server granted "
                    f"{grant.tokens} (room {grant.room_tokens})",
                    session,
                )
            )
    return violations


INVARIANTS = (
    Invariant("B1", "budget", "The sum generated over a response's attempts is at most its budget.", check_overrun),
    Invariant("B2", "budget", "The budget is usable: no truncation while budget and context remain.", check_usable),
    Invariant("B4", "budget", "The caller's sampling params are unchanged and reusable.", check_params_unchanged),
    Invariant(
        "B6",
        "budget",
        "prompt + grant is at most max_model_len, and nothing left (or an explicit limit of 0) means no request, "
        "not a grant of 1.",
        check_nothing_left,
    ),
    Invariant(
        "B8",
        "budget",
        "A missing, null, non-positive or non-integer config value gives the documented fallback (the server's "
        "default), and the fallback is reported.",
        check_fallback,
    ),
    Invariant("B10", "budget", "A limit that the client sends is honoured by the server.", check_limit_honoured),
)
