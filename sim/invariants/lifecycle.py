"""Lifecycle invariants: what becomes of a request and of its tokens."""

from collections import Counter
from collections.abc import Iterator

from sim.budget import generated_before_tokens, odd_config, returned_tokens
from sim.case import explicit_limit
from sim.dialects import Outcome
from sim.invariants.interface import Evidence, Invariant
from sim.invariants.violation import Violation
from sim.ledger import Ledger, TurnRecord
from sim.tokens import Ids, first_token


def check_one_outcome(evidence: Evidence) -> Iterator[Violation]:
    """Whether each request ended, and once: a second end is accounted twice, and without any its caller waits for
    ever. A run that was cut off in mid-work says nothing of the requests that were under way."""
    cut_off = evidence.end is not None and evidence.end.reason in ("horizon", "livelock")
    for attempt in evidence.ledger.attempts:
        if len(attempt.ended) > 1 or not (attempt.ended or cut_off):
            yield Violation(
                "A1",
                f"request {attempt.sent.request} (session {attempt.sent.session}) has {len(attempt.ended)} terminal "
                f"outcomes: {', '.join(ended.outcome for ended in attempt.ended) or 'none'}",
                attempt.sent.session,
            )


def delivered_ids(turn: TurnRecord) -> Ids:
    """What the servers' answers to a turn's attempts add up to, as runs of (position, count)."""
    runs: list[tuple[int, int]] = []
    for attempt in turn.attempts:
        if attempt.delivered is None:
            continue
        for run in attempt.runs:
            if runs and sum(runs[-1]) == run.position:
                runs[-1] = (runs[-1][0], runs[-1][1] + run.tokens)
            else:
                runs.append((run.position, run.tokens))
    return tuple(runs)


def check_conservation(evidence: Evidence) -> Iterator[Violation]:
    """Whether what was decoded is what the server answered with, and what was delivered is what the client returned:
    one token lost or doubled in between, and all that follow are trained on in a place where the model never put them.
    """
    for attempt in evidence.ledger.attempts:
        reached = attempt.delivered or attempt.discarded  # of what failed its call took with it there is no answer
        if reached is not None and reached.tokens != attempt.decoded_tokens:
            yield Violation(
                "A2",
                f"request {attempt.sent.request} decoded {attempt.decoded_tokens} tokens and answered with "
                f"{reached.tokens}",
                attempt.sent.session,
                about="server",
            )
    for session, turn in evidence.ledger.turns():
        if turn.ended is None or turn.ended.outcome != "ok":
            continue
        delivered = delivered_ids(turn)
        origin = first_token(session)
        returned = tuple((first - origin, count) for first, count in turn.ended.ids)
        if returned != delivered and returned not in _rightly_kept(turn, evidence):
            yield Violation(
                "A2",
                f"session {session} turn {turn.started.turn} was delivered {_spelled(delivered)} and returned "
                f"{_spelled(returned)}",
                session,
                about="client",
            )


def _rightly_kept(turn: TurnRecord, evidence: Evidence) -> set[Ids]:
    """What a turn may return beside all that was delivered, where it may keep one answer of several: a chain of
    answers, each to a prompt that ends where the one before it does. One that begins anew keeps the last one. Where
    what is aborted may be dropped, nothing will do as well."""
    policies = evidence.policies
    if not policies.keeps_one_answer:
        return set()
    may_drop = policies.after_abort == "drop" or not evidence.case.partial_rollout
    ends, last = {0}, 0
    for attempt in turn.attempts:
        begin = generated_before_tokens(turn, attempt)
        if attempt.delivered is not None and begin in ends:
            last = begin + attempt.delivered.tokens
            ends.add(last)
    if policies.after_abort == "restart" and policies.hedged == "no" and policies.sticky != "fail-over":
        ends = {last, 0} if may_drop else {last}
    elif not may_drop and all(each.delivered is None or each.delivered.tokens for each in turn.attempts):
        ends.discard(0)
    first = turn.started.prompt_tokens
    return {((first, end),) if end else () for end in ends}


def _spelled(runs: Ids) -> str:
    total = sum(count for _, count in runs)
    places = ", ".join(f"{position}..{position + count - 1}" for position, count in runs)
    return f"{total} tokens" + (f" (positions {places})" if runs else "")


def check_pauses(evidence: Evidence) -> Iterator[Violation]:
    """Whether each pause was matched by a resume, also where the call that came before or after it failed: a replica
    that stays paused keeps whatever is sent to it. A run that was cut off says nothing of pauses under way."""
    end = evidence.end
    if end is None or end.reason in ("horizon", "livelock"):
        return
    for replica, paused in evidence.pauses.paused.items():
        yield Violation("A3", f"replica {replica} was paused at {paused.t_ns / 1e9:g} s and never told to go on")


def check_aborts(evidence: Evidence) -> list[Violation]:
    """Whether an abort that a server acknowledged left nothing in it that was sent before, and whether one that failed
    stopped the update: what is left decodes on with KV of older weights, and its caller is told nothing of it."""
    return evidence.pauses.found[:]


MOST_SAME_REFUSALS = 5
"""In one turn: a client need not know at once that it is refused for good."""


def check_refusals(evidence: Evidence) -> Iterator[Violation]:
    """Whether a request that a server refused, for what it is, was sent again and again as it was: it is refused each
    time. Failures of a server are none, nor is being turned away at a gate."""
    for session, turn in evidence.ledger.turns():
        if len(turn.attempts) <= MOST_SAME_REFUSALS:
            continue
        refusals: Counter[tuple[int, str, str | None]] = Counter()
        for attempt in turn.attempts:
            if attempt.lost is None and attempt.ended and attempt.ended[-1].outcome in ("error", "ill-formed"):
                refusals[attempt.sent.prompt_tokens, repr(attempt.sent.limits), attempt.ended[-1].error] += 1
        for (prompt_tokens, limits, error), times in refusals.items():
            if times > MOST_SAME_REFUSALS:
                yield Violation(
                    "A8",
                    f"session {session} turn {turn.started.turn} sent its request of {prompt_tokens} tokens with "
                    f"limits {limits} {times} times, and was refused each time: {error}",
                    session,
                )


def check_zero_tokens(evidence: Evidence) -> Iterator[Violation]:
    """Whether a call failed that got an answer of 0 tokens, and nothing worse: an abort before the first token gives
    one, and a client that averages over it, or takes it for an error, loses the whole response."""
    for session, turn in evidence.ledger.turns():
        if turn.ended is None or turn.ended.outcome != "error":
            continue
        outcomes = [ended.outcome for attempt in turn.attempts for ended in attempt.ended]
        empty = any(attempt.delivered is not None and attempt.delivered.tokens == 0 for attempt in turn.attempts)
        lost = any(attempt.lost is not None for attempt in turn.attempts)
        failed = lost or not {"error", "ill-formed"}.isdisjoint(outcomes)
        if empty and not failed and not _may_raise(evidence, session, turn):
            yield Violation(
                "A5",
                f"session {session} turn {turn.started.turn} got an answer of 0 tokens and failed: {turn.ended.error}",
                session,
                about=_kind_of_error(turn.ended.error),
            )


def failures_of_itself(ledger: Ledger) -> list[tuple[int, TurnRecord]]:
    """The turns, with their session, whose call raised although neither a server nor the balancer failed it. A server
    that cannot take what is no request has not failed."""
    return [(session, turn) for session, turn in ledger.turns() if _failed_of_itself(turn)]


def _failed_of_itself(turn: TurnRecord) -> bool:
    if turn.ended is None or turn.ended.outcome != "error" or turn.balancer_failed:
        return False
    if any(attempt.lost is not None for attempt in turn.attempts):
        return False
    return not any(ended.outcome in ("error", "refused") for attempt in turn.attempts for ended in attempt.ended)


def _ill_formed(turn: TurnRecord) -> str:
    """What was wrong with a request of the turn that no server could take; empty where there is none."""
    wrong = [end.error for attempt in turn.attempts for end in attempt.ended if end.outcome == "ill-formed"]
    return wrong[0] or "" if wrong else ""


def check_failures_have_a_cause(evidence: Evidence) -> Iterator[Violation]:
    """Whether each call that failed was failed by somebody: else the client itself is broken, and its response lost. A
    run that was cut off says nothing of the calls that were under way."""
    ledger = evidence.ledger
    for session, turn in ledger.turns():
        ended, number = turn.ended, turn.started.turn
        if ended is None:
            if not evidence.is_done:
                continue
            how, about = "ended without a result or an exception that can be caught", "no end"
        elif ended.outcome == "cancelled" and ledger.sessions[session].cancelled is None:
            how, about = "says that it was cancelled, and nobody cancelled it", "not cancelled"
        elif _failed_of_itself(turn) and not _may_raise(evidence, session, turn):
            how, about = f"failed on its own: {ended.error}", _kind_of_error(ended.error)
            bad = _ill_formed(turn)
            if bad:
                how = f"sent what is no request ({bad}), and failed: {ended.error}"
            odd = odd_config(evidence.case)
            if odd and (bad or evidence.factory_raised or evidence.budget_setting in how):
                how += f" ({odd})"
        else:
            continue
        yield Violation("A9", f"session {session} turn {number} {how}", session, about=about)


def _may_raise(evidence: Evidence, session: int, turn: TurnRecord) -> bool:
    """Whether a policy lets a call fail here: after an abort, or at once where there is nothing to wait for."""
    policies, case = evidence.policies, evidence.case
    if policies.after_abort != "raise" and policies.fail_fast == "no":
        return False
    if any(ended.outcome in ("abort", "refused") for attempt in turn.attempts for ended in attempt.ended):
        return True
    if policies.fail_fast == "no":
        return False
    if any(attempt.sent.replica in evidence.routing.removed for attempt in turn.attempts):
        return True
    delivered = sum([attempt.delivered.tokens for attempt in turn.attempts if attempt.delivered is not None])
    limit, allowed = explicit_limit(case, session), evidence.allowance(session, turn)
    is_used_up = allowed is not None and allowed.left_tokens <= delivered
    room = case.server.rules.room_tokens(case.budget, turn.started.prompt_tokens + delivered)
    return is_used_up or room <= 0 or (limit is not None and limit.tokens == 0)


def _kind_of_error(error: str | None) -> str:
    """The type of an exception as it is spelled, the same in every world."""
    return (error or "").partition(":")[0]


_USUAL_REASONS: dict[str, frozenset[Outcome]] = {
    "stop": frozenset({"stop"}),
    "length": frozenset({"length"}),
    "completed": frozenset({"stop", "length"}),
    "abort": frozenset({"abort", "refused"}),
    "aborted": frozenset({"abort", "refused"}),
}
"""What a stop reason says wherever it comes from; a server's dialect may have more."""


def check_stop_reason(evidence: Evidence) -> Iterator[Violation]:
    """Whether the stop reason of a response is the true one: an abort that comes back as a finish is trained on as if
    the model had meant to end there, and a natural stop as `length` is filtered out, or punished, as too long.

    A reason says what the server's dialect, or common use, has it say; one that nobody knows is not judged. Where the
    budget or the context is used up `length` is right as well, and so is what the last answer said.
    """
    rules = evidence.case.server.rules
    for session, turn in evidence.ledger.turns():
        ended = turn.ended
        if ended is None or ended.outcome != "ok":
            continue
        reason = ended.stop_reason
        said = {outcome for outcome, name in rules.stop_reasons.items() if name == reason}
        said |= _USUAL_REASONS.get(reason, frozenset()) if isinstance(reason, str) else frozenset()
        true = _last_outcomes(turn)
        if not said or not true or said & true or "error" in true:
            continue
        if "length" in said and _is_full(evidence, session, turn):
            continue
        yield Violation(
            "A10",
            f"session {session} turn {turn.started.turn} returned {returned_tokens(turn)} tokens with stop reason "
            f"{reason!r}; what the server ended it with is {', '.join(sorted(true))}",
            session,
        )


def _last_outcomes(turn: TurnRecord) -> set[str]:
    """How the answers ended that a response ends with: the one before it too, where the last brought nothing."""
    answered = [each for each in turn.attempts if each.delivered is not None and each.ended]
    end = turn.started.prompt_tokens + returned_tokens(turn)
    last = [each for each in answered if each.sent.prompt_tokens + each.decoded_tokens == end] or answered[-1:]
    outcomes: set[str] = {each.ended[-1].outcome for each in last}
    return outcomes | {"abort"} if "refused" in outcomes else outcomes


def _is_full(evidence: Evidence, session: int, turn: TurnRecord) -> bool:
    """Whether a response is as long as some limit has it, or as the context holds."""
    case, returned = evidence.case, returned_tokens(turn)
    limit, configured = explicit_limit(case, session), case.budget.client_response_length
    allowed = evidence.allowance(session, turn)
    limits = [each for each in (None if limit is None else limit.tokens, configured) if type(each) is int]
    if allowed is None or returned >= allowed.left_tokens or any(returned >= each for each in limits):
        return True
    return case.server.rules.room_tokens(case.budget, turn.started.prompt_tokens + returned) <= 0


INVARIANTS = (
    Invariant("A1", "lifecycle", "Every request has exactly one terminal outcome.", check_one_outcome),
    Invariant("A2", "lifecycle", "Decoded tokens are delivered or accounted as discarded.", check_conservation),
    Invariant("A3", "lifecycle", "Every pause is matched by a resume, on error paths too.", check_pauses, scope="run"),
    Invariant(
        "A4",
        "lifecycle",
        "An acknowledged abort ends every request sent before it, and one that failed stops the update.",
        check_aborts,
    ),
    Invariant("A5", "lifecycle", "Zero tokens is a legal outcome at every layer.", check_zero_tokens),
    Invariant("A8", "lifecycle", "A deterministic rejection is not retried for ever.", check_refusals),
    Invariant(
        "A9",
        "lifecycle",
        "A call of the client fails only when a server or the balancer failed it, or it was cancelled.",
        check_failures_have_a_cause,
    ),
    Invariant(
        "A10",
        "lifecycle",
        "The stop reason returned is the true one: an abort is no finish, and a natural stop is no `length`.",
        check_stop_reason,
    ),
)
