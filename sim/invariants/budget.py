"""Budget invariants: how many tokens a response may use, and who says so."""

from collections.abc import Iterator

from sim.budget import (
    charged_tokens,
    generated_before_tokens,
    returned_tokens,
    spelled_config,
    usable,
)
from sim.case import Case, explicit_limit, params_owner
from sim.events import Granted
from sim.invariants.interface import Evidence, Invariant
from sim.invariants.violation import Violation
from sim.ledger import Attempt, Ledger, TurnRecord
from sim.policies import Policies

WITHOUT_A_WORD = "without a word"
"""How a message of B8 ends where nothing was said."""

MOST_GRANTS_SPELLED = 8
"""A message is read as a line."""


def spelled_grants(turn: TurnRecord) -> str:
    """The attempts' grants and what was decoded under them: `16 of 16, 9 of 20 (aborted)`."""
    parts = []
    for attempt in turn.attempts:
        if attempt.grant is None:
            continue
        cut = " (aborted)" if any(ended.outcome == "abort" for ended in attempt.ended) else ""
        cut = " (lost)" if attempt.lost is not None else cut
        parts.append(f"{attempt.decoded_tokens} of {attempt.grant.tokens}{cut}")
    more = len(parts) - MOST_GRANTS_SPELLED
    return ", ".join(parts) if more <= 0 else ", ".join(parts[:MOST_GRANTS_SPELLED]) + f" and {more} more"


def _granted(ledger: Ledger) -> Iterator[tuple[int, TurnRecord, Attempt, Granted]]:
    for session, turn in ledger.turns():
        for attempt in turn.attempts:
            if attempt.grant is not None:
                yield session, turn, attempt, attempt.grant


def _where(turn: TurnRecord, attempt: Attempt) -> str:
    return f"session {turn.started.session} turn {turn.started.turn} attempt {attempt.sent.attempt}"


def check_overrun(evidence: Evidence) -> Iterator[Violation]:
    """Whether all attempts of a turn together decoded more than its budget: what is beyond it costs the most to decode,
    at the deepest positions, and is cut away later. A turn that decoded nothing is not to blame for what was used
    before it; where it rightly keeps one of several answers, each of them is held to the budget."""
    for session, turn in evidence.ledger.turns():
        allowed = evidence.allowance(session, turn)
        charged = charged_tokens(turn, evidence.policies)
        if allowed is not None and charged and charged > allowed.left_tokens:
            used = allowed.used_tokens
            before = f"{used} tokens used before, then " if used else ""
            yield Violation(
                "B1",
                f"session {session} turn {turn.started.turn} decoded {used + charged} tokens against a budget of "
                f"{allowed.budget_tokens} ({evidence.policies.budget}): {before}{spelled_grants(turn)}",
                session,
                about="beyond what earlier turns left" if used else "beyond the budget of a turn",
            )


def check_usable(evidence: Evidence) -> Iterator[Violation]:
    """Whether a turn that ended well was cut although budget and context were left: a response that is too short is
    trained on as if the model had meant it. One that the model ended, that a server refused, or that was aborted where
    what is aborted is dropped, was not cut by its client; nor was one that a server failed, unless the client says that
    it is finished."""
    case, policies = evidence.case, evidence.policies
    may_drop = policies.after_abort == "drop" or not case.partial_rollout
    for session, turn in evidence.ledger.turns():
        allowed = evidence.allowance(session, turn)
        if allowed is None or turn.ended is None or turn.ended.outcome != "ok":
            continue
        returned = returned_tokens(turn)
        last = _last_outcomes(turn, returned, policies)
        if not last.isdisjoint(("stop", "error")) or (may_drop and not last.isdisjoint(("abort", "refused"))):
            continue
        left = allowed.left_tokens - returned
        room = case.server.rules.room_tokens(case.budget, turn.started.prompt_tokens + returned)
        if left > 0 and room > 0:
            how = ", ".join(sorted(last)) or "None"
            yield Violation(
                "B2",
                f"session {session} turn {turn.started.turn} was cut at {returned} tokens ({how}) with {left} of "
                f"its budget of {allowed.budget_tokens} and {room} tokens of context left: {spelled_grants(turn)}",
                session,
                about=f"cut ({how})",
            )


def _last_outcomes(turn: TurnRecord, returned: int, policies: Policies) -> set[str]:
    """How the last request of a response ended; where one answer of several is kept, those that end where it does."""
    if policies.hedged == "no" and policies.sticky != "fail-over":
        last = turn.attempts[-1:]
    else:
        last = [
            each
            for each in turn.attempts
            if each.delivered is not None and generated_before_tokens(turn, each) + each.delivered.tokens == returned
        ]
    return {str(attempt.ended[-1].outcome) for attempt in last if attempt.ended}


def check_nothing_sliced(evidence: Evidence) -> Iterator[Violation]:
    """Whether the agent loop threw tokens away that a turn had decoded, since the trajectory was full: each turn was
    given the whole of response_length anew.

    A cap of each turn, or one that leaves the tools' tokens out, explains it where the system under test declares it,
    or a flag, and so does a limit of the caller's own. What a turn decoded beyond its own budget is B1's to tell.
    """
    case, policies = evidence.case, evidence.policies
    declared = policies.budget if "budget" in policies.declared else ""
    response_length = case.budget.response_length
    if declared in ("turn", "trajectory-assistant") or case.budget.client_response_length != response_length:
        return
    for session, record in evidence.ledger.sessions.items():
        if record.ended is None or explicit_limit(case, session) is not None:
            continue
        overran = sum([max(0, returned_tokens(turn) - response_length) for turn in record.turns])
        sliced = record.ended.response_tokens - overran - response_length
        if sliced > 0:
            decoded = [returned_tokens(turn) for turn in record.turns]
            shown = " + ".join([str(tokens) for tokens in decoded[-MOST_GRANTS_SPELLED:]])
            more = "… + " * (len(decoded) > MOST_GRANTS_SPELLED)
            yield Violation(
                "B7",
                f"session {session} came to {record.ended.response_tokens} tokens ({more}{shown} decoded, "
                f"{record.ended.response_tokens - sum(decoded)} of its tools): its loop keeps "
                f"{record.ended.kept_tokens} (response_length), and {sliced} were decoded to be sliced away",
                session,
            )


def _says_finished(case: Case, stop_reason: str | None) -> bool:
    reasons = case.server.rules.stop_reasons
    return stop_reason in ("length", reasons["stop"], reasons["length"])


def check_params_unchanged(evidence: Evidence) -> Iterator[Violation]:
    """Whether a call left the caller's sampling params as they were: they are passed again, to later turns and to other
    sessions, which then have a limit that nobody set."""
    for session, turn in evidence.ledger.turns():
        if turn.ended is not None and turn.ended.params_changed is not None:
            where = f"session {session} turn {turn.started.turn}"
            yield Violation("B4", f"{where}: the caller's sampling params {turn.ended.params_changed}", session)


def check_nothing_left(evidence: Evidence) -> Iterator[Violation]:
    """Whether a request was sent although nothing was left to ask for: it was granted something, or refused.

    Servers raise what they grant to at least 1, so such a request decodes a token that nobody wants; one that refuses
    it fails a call that has its response already. What a client that has no usable budget leaves to the server is no
    offence (B8): it cannot know what is left. Where other turns' tokens count as well, B1 is the judge of that.
    """
    case = evidence.case
    is_of_a_turn = evidence.policies.budget in ("turn", "turn+trajectory")
    context_tokens = case.budget.context_tokens
    config_usable = usable(case.budget.client_response_length)
    for session, turn, attempt, grant in _granted(evidence.ledger):
        if grant.tokens <= 0:
            continue
        prompt_tokens = attempt.sent.prompt_tokens
        wrong: dict[str, str] = {}
        if prompt_tokens + grant.tokens > context_tokens:
            wrong["context"] = f"prompt {prompt_tokens} + grant {grant.tokens} exceeds the context of {context_tokens}"
        budget, limit = evidence.budget_tokens(session), explicit_limit(case, session)
        generated = generated_before_tokens(turn, attempt)
        if limit is None and not config_usable:
            pass
        elif grant.wanted_tokens <= 0:
            wrong["asks for nothing"] = (
                f"{grant.rule} asks for {grant.wanted_tokens} tokens and the request is sent and granted {grant.tokens}"
            )
        elif limit is not None and limit.tokens == 0:
            wrong["limit 0"] = f"the caller's limit is 0 and the request is granted {grant.tokens}"
        elif budget is not None and is_of_a_turn and generated >= budget:
            wrong["budget used up"] = (
                f"the budget of {budget} is used up ({generated} generated) and the request is sent and granted "
                f"{grant.tokens}"
            )
        for about, text in wrong.items():
            yield Violation("B6", f"{_where(turn, attempt)}: {text}", session, about=about)
    for session, turn in evidence.ledger.turns():
        for attempt in turn.attempts:
            if attempt.grant is None and attempt.ended and attempt.ended[0].outcome == "error":
                about, text = _nothing_left(evidence, session, turn, attempt)
                if about:
                    where = _where(turn, attempt)
                    yield Violation(
                        "B6", f"{where}: {text}, and the request is sent, and refused", session, about=about
                    )


def _nothing_left(evidence: Evidence, session: int, turn: TurnRecord, attempt: Attempt) -> tuple[str, str]:
    """In which way a request that was refused is one for nothing, in short and with the figures; empty where it is
    none."""
    case, prompt_tokens = evidence.case, attempt.sent.prompt_tokens
    context_tokens = case.budget.context_tokens
    if prompt_tokens >= context_tokens:
        return "context", f"a prompt of {prompt_tokens} tokens fills the context of {context_tokens}"
    for key, asked in attempt.sent.limits.items():
        if type(asked) is int and asked <= 0:
            return "asks for nothing", f"{key} is {asked}"
    budget, generated = evidence.budget_tokens(session), generated_before_tokens(turn, attempt)
    if budget is not None and evidence.policies.budget in ("turn", "turn+trajectory") and generated >= budget:
        return "budget used up", f"the budget of {budget} is used up ({generated} generated)"
    return "", ""


def check_fallback(evidence: Evidence) -> Iterator[Violation]:
    """Whether a client whose config gives no usable response_length leaves the limit to the server, as is documented,
    and says so: a limit that it makes up, or a silence, hides a mistake in the config from whoever made it. A turn is
    judged by its first attempt."""
    case, policies = evidence.case, evidence.policies
    configured = case.budget.client_response_length
    if usable(configured):
        return
    setting = evidence.budget_setting
    reported = any(setting in warning.text for warning in evidence.warnings)
    for session, turn, attempt, _ in _granted(evidence.ledger):
        if explicit_limit(case, session) is not None or attempt.sent.attempt > 0:
            continue
        value = spelled_config(configured)
        where = f"session {session} turn {turn.started.turn}: {setting} is {value} in the client's config"
        limits = attempt.sent.limits
        if limits and policies.default_limit == "server":
            yield Violation("B8", f"{where}, and it sent the limit {limits}", session, about="a limit of its own")
        elif not reported and policies.fallback_warning == "each":
            did = f"sent the limit {limits}" if limits else "left the limit to the server"
            yield Violation("B8", f"{where}, and it {did} {WITHOUT_A_WORD}", session, about=WITHOUT_A_WORD)


def check_limit_honoured(evidence: Evidence) -> Iterator[Violation]:
    """Whether a server granted what the client's limit asked for, cut to the room in the context: where it does not, no
    client can keep to its budget. Where objects are shared, a client may change its params after it has sent them: that
    is not the server's doing."""
    case = evidence.case
    changed_by = {
        params_owner(case, session)
        for session, turn in evidence.ledger.turns()
        if turn.ended is not None and turn.ended.params_changed is not None
    }
    for session, turn, attempt, grant in _granted(evidence.ledger):
        if case.transport.objects == "shared":
            if grant.rule == "default":  # a limit taken out again, by a session that has the same params
                changed = params_owner(case, session) in changed_by
            else:
                changed = grant.wanted_tokens not in attempt.sent.limits.values()
            if changed:
                continue
        asked = [limit for limit in attempt.sent.limits.values() if type(limit) is int and limit > 0]
        if asked and grant.tokens not in {max(0, min(limit, grant.room_tokens)) for limit in asked}:
            yield Violation(
                "B10",
                f"{_where(turn, attempt)}: the client sent {attempt.sent.limits} and the server granted "
                f"{grant.tokens} (room {grant.room_tokens})",
                session,
            )


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
    Invariant("B7", "budget", "Nothing is decoded that the agent loop slices away.", check_nothing_sliced),
    Invariant(
        "B8",
        "budget",
        "A missing, null, non-positive or non-integer config value gives the documented fallback (the server's "
        "default), and the fallback is reported.",
        check_fallback,
    ),
    Invariant("B10", "budget", "A limit that the client sends is honoured by the server.", check_limit_honoured),
)
