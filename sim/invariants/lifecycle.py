"""Lifecycle invariants: what becomes of a request and of its tokens."""

from msgspec import UNSET

from sim.case import Case
from sim.invariants.budget import usable
from sim.invariants.interface import Invariant, Violation
from sim.tokens import Ids, first_token
from sim.trace import Message, Trace, TurnRecord, WorldEnded


def check_one_outcome(case: Case, trace: Trace) -> list[Violation]:
    """A1. A run that was cut off in mid-work says nothing of the requests that were under way."""
    del case
    end = trace.events[-1]
    cut_off = isinstance(end, WorldEnded) and end.reason in ("horizon", "livelock")
    return [
        Violation(
            "A1",
            f"request {attempt.sent.request} (session {attempt.sent.session}) has {len(attempt.ended)} terminal "
            f"outcomes: {', '.join(ended.outcome for ended in attempt.ended) or 'none'}",
            attempt.sent.session,
        )
        for attempt in trace.ledger.attempts
        if len(attempt.ended) > 1 or not (attempt.ended or cut_off)
    ]


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


def check_conservation(case: Case, trace: Trace) -> list[Violation]:
    """A2."""
    del case
    violations = []
    for attempt in trace.ledger.attempts:
        reached = attempt.delivered or attempt.discarded
        if reached is not None and reached.tokens != attempt.decoded_tokens:
            violations.append(
                Violation(
                    "A2",
                    f"request {attempt.sent.request} decoded {attempt.decoded_tokens} tokens and answered with "
                    f"{reached.tokens}",
                    attempt.sent.session,
                )
            )
    for session, turn in trace.ledger.turns():
        if turn.ended is None or turn.ended.outcome != "ok":
            continue
        delivered = delivered_ids(turn)
        origin = first_token(session)
        returned = tuple((first - origin, count) for first, count in turn.ended.ids)
        if returned != delivered:
            violations.append(
                Violation(
                    "A2",
                    f"session {session} turn {turn.started.turn} was delivered {_spelled(delivered)} and returned "
                    f"{_spelled(returned)}",
                    session,
                )
            )
    return violations


def _spelled(runs: Ids) -> str:
    total = sum(count for _, count in runs)
    places = ", ".join(f"{position}..{position + count - 1}" for position, count in runs)
    return f"{total} tokens" + (f" (positions {places})" if runs else "")


def check_zero_tokens(case: Case, trace: Trace) -> list[Violation]:
    """A5."""
    del case
    violations = []
    for session, turn in trace.ledger.turns():
        if turn.ended is None or turn.ended.outcome != "error":
            continue
        outcomes = [ended.outcome for attempt in turn.attempts for ended in attempt.ended]
        empty = any(attempt.delivered is not None and attempt.delivered.tokens == 0 for attempt in turn.attempts)
        if empty and "error" not in outcomes:
            violations.append(
                Violation(
                    "A5",
                    f"session {session} turn {turn.started.turn} got an answer of 0 tokens and failed: "
                    f"{turn.ended.error}",
                    session,
                )
            )
    return violations


def failures_of_itself(trace: Trace) -> list[tuple[int, TurnRecord]]:
    """The turns, with their session, whose call raised although neither a server nor the balancer failed it."""
    failed = {(event.session, event.turn) for event in trace.events if isinstance(event, Message) and event.error}
    found = []
    for session, turn in trace.ledger.turns():
        if turn.ended is None or turn.ended.outcome != "error" or (session, turn.started.turn) in failed:
            continue
        outcomes = {end.outcome for attempt in turn.attempts for end in attempt.ended}
        if not outcomes & {"error", "refused"}:
            found.append((session, turn))
    return found


def odd_config(case: Case) -> str:
    """What is odd on purpose in the config that the client of this world is given; empty where nothing is."""
    configured = case.budget.client_response_length
    if usable(configured):
        return ""
    if configured is UNSET:
        return "this world's config lacks response_length, on purpose"
    return f"this world's config has response_length {configured!r}, on purpose"


def check_failures_have_a_cause(case: Case, trace: Trace) -> list[Violation]:
    """A9. A run that was cut off says nothing of the calls that were under way."""
    of_itself = [id(turn) for _, turn in failures_of_itself(trace)]
    violations = []
    for session, turn in trace.ledger.turns():
        ended, number = turn.ended, turn.started.turn
        if ended is None:
            if not trace.is_done:
                continue
            how = "ended without a result or an exception that can be caught"
        elif ended.outcome == "cancelled" and trace.ledger.sessions[session].cancelled is None:
            how = "says that it was cancelled, and nobody cancelled it"
        elif id(turn) in of_itself:
            how = f"failed on its own: {ended.error}"
            odd = odd_config(case)
            if odd and (trace.factory_raised or "response_length" in how):
                how += f" ({odd})"
        else:
            continue
        violations.append(Violation("A9", f"session {session} turn {number} {how}", session))
    return violations


INVARIANTS = (
    Invariant("A1", "lifecycle", "Every request has exactly one terminal outcome.", check_one_outcome),
    Invariant("A2", "lifecycle", "Decoded tokens are delivered or accounted as discarded.", check_conservation),
    Invariant("A5", "lifecycle", "Zero tokens is a legal outcome at every layer.", check_zero_tokens),
    Invariant(
        "A9",
        "lifecycle",
        "A call of the client fails only when a server or the balancer failed it, or it was cancelled.",
        check_failures_have_a_cause,
    ),
)
