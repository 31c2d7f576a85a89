"""Sessions beside each other: what happens to one is nothing to the others."""

from collections.abc import Iterator

from sim.case import params_owner
from sim.invariants.interface import Evidence, Invariant
from sim.invariants.violation import Violation
from sim.ledger import TurnRecord


def check_siblings(evidence: Evidence) -> Iterator[Violation]:
    """Whether a call failed with what a server had told another session's, and sessions that ask alike were sent with
    the same limit at first: what a client keeps for all of its calls, one of them may spoil for the others. Compared
    are the sessions that are judged together."""
    yield from _failed_with_another(evidence)
    yield from _limited_by_another(evidence)


def _told(turn: TurnRecord) -> set[str]:
    return {attempt.lost.error for attempt in turn.attempts if attempt.lost is not None}


def _failed_with_another(evidence: Evidence) -> Iterator[Violation]:
    told_first: dict[str, int] = {}
    turns = evidence.ledger.turns()
    for session, turn in turns:
        for error in _told(turn):
            told_first.setdefault(error, session)
    if not told_first:
        return
    for session, turn in turns:
        ended = turn.ended
        if ended is None or ended.error is None or ended.error not in told_first or _told(turn):
            continue
        if any(each.outcome in ("error", "refused") for attempt in turn.attempts for each in attempt.ended):
            continue
        other = told_first[ended.error]
        if other != session:
            yield Violation(
                "B5",
                f"session {session} turn {turn.started.turn} failed with what session {other}'s request was told: "
                f"{ended.error}",
                session,
            )


def _limited_by_another(evidence: Evidence) -> Iterator[Violation]:
    """Judged are first requests of first turns, alike in their prompt's length and their caller's limit. Params that a
    call has changed are B4's."""
    case, ledger = evidence.case, evidence.ledger
    changed = {
        params_owner(case, session)
        for session, turn in ledger.turns()
        if turn.ended is not None and turn.ended.params_changed is not None
    }
    first_with: dict[tuple[int, str], tuple[int, str]] = {}
    for session, record in ledger.sessions.items():
        if not record.turns or not record.turns[0].attempts or params_owner(case, session) in changed:
            continue
        sent = record.turns[0].attempts[0].sent
        asked = sent.prompt_tokens, repr(case.session(params_owner(case, session)).limit)
        limits = repr(sent.limits)
        other, others = first_with.setdefault(asked, (session, limits))
        if others != limits:
            yield Violation(
                "B5",
                f"session {session} asks for the same as session {other}, and its first request was sent with limits "
                f"{limits}, not {others}",
                session,
            )


INVARIANTS = (
    Invariant("B5", "budget", "One request's failure or accounting never changes a sibling's.", check_siblings),
)
