"""Lifecycle invariants: what becomes of a request and of its tokens."""

from collections.abc import Iterator

from sim.budget import odd_config
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
        reached = attempt.delivered or attempt.discarded
        if reached is not None and reached.tokens != attempt.decoded_tokens:
            yield Violation(
                "A2",
                f"request {attempt.sent.request} decoded {attempt.decoded_tokens} tokens and answered with "
                f"{reached.tokens}",
                attempt.sent.session,
            )
    for session, turn in evidence.ledger.turns():
        if turn.ended is None or turn.ended.outcome != "ok":
            continue
        delivered = delivered_ids(turn)
        origin = first_token(session)
        returned = tuple((first - origin, count) for first, count in turn.ended.ids)
        if returned != delivered:
            yield Violation(
                "A2",
                f"session {session} turn {turn.started.turn} was delivered {_spelled(delivered)} and returned "
                f"{_spelled(returned)}",
                session,
            )


def _spelled(runs: Ids) -> str:
    total = sum(count for _, count in runs)
    places = ", ".join(f"{position}..{position + count - 1}" for position, count in runs)
    return f"{total} tokens" + (f" (positions {places})" if runs else "")


def check_zero_tokens(evidence: Evidence) -> Iterator[Violation]:
    """Whether a call failed that got an answer of 0 tokens, and nothing worse: an abort before the first token gives
    one, and a client that averages over it, or takes it for an error, loses the whole response."""
    for session, turn in evidence.ledger.turns():
        if turn.ended is None or turn.ended.outcome != "error":
            continue
        outcomes = [ended.outcome for attempt in turn.attempts for ended in attempt.ended]
        empty = any(attempt.delivered is not None and attempt.delivered.tokens == 0 for attempt in turn.attempts)
        if empty and "error" not in outcomes:
            yield Violation(
                "A5",
                f"session {session} turn {turn.started.turn} got an answer of 0 tokens and failed: {turn.ended.error}",
                session,
            )


def failures_of_itself(ledger: Ledger) -> list[tuple[int, TurnRecord]]:
    """The turns, with their session, whose call raised although neither a server nor the balancer failed it."""
    return [(session, turn) for session, turn in ledger.turns() if _failed_of_itself(turn)]


def _failed_of_itself(turn: TurnRecord) -> bool:
    if turn.ended is None or turn.ended.outcome != "error" or turn.balancer_failed:
        return False
    return not any(ended.outcome in ("error", "refused") for attempt in turn.attempts for ended in attempt.ended)


def check_failures_have_a_cause(evidence: Evidence) -> Iterator[Violation]:
    """Whether each call that failed was failed by somebody: else the client itself is broken, and its response lost. A
    run that was cut off says nothing of the calls that were under way."""
    ledger = evidence.ledger
    for session, turn in ledger.turns():
        ended, number = turn.ended, turn.started.turn
        if ended is None:
            if not evidence.is_done:
                continue
            how = "ended without a result or an exception that can be caught"
        elif ended.outcome == "cancelled" and ledger.sessions[session].cancelled is None:
            how = "says that it was cancelled, and nobody cancelled it"
        elif _failed_of_itself(turn):
            how = f"failed on its own: {ended.error}"
            odd = odd_config(evidence.case)
            if odd and (evidence.factory_raised or evidence.budget_setting in how):
                how += f" ({odd})"
        else:
            continue
        yield Violation("A9", f"session {session} turn {number} {how}", session)


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
