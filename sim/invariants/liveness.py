"""Liveness invariants: the run comes to its end."""

from collections.abc import Iterator

from sim.invariants.interface import Evidence, Invariant
from sim.invariants.violation import Violation


def check_every_session_ends(evidence: Evidence) -> Iterator[Violation]:
    """Whether the run came to its end, and if not, which sessions are open and who waits on what: a client that hangs
    holds up a whole step of the training."""
    end = evidence.end
    assert end is not None, "judged at the end of the run"
    if end.reason == "done":
        return
    open_sessions = [index for index, session in evidence.ledger.sessions.items() if session.ended is None]
    waiting = "; ".join(f"{task} waits on {awaited}" if task else awaited for task, awaited in end.waiting[:4])
    named = ", ".join(str(index) for index in open_sessions[:8]) or "none"
    yield Violation(
        "V1",
        f"{end.reason} at {end.t_ns / 1e9:g} s with {len(open_sessions)} sessions open ({named})"
        + (f": {waiting}" if waiting else ""),
        open_sessions[0] if open_sessions else None,
        about=end.reason,
    )


INVARIANTS = (
    Invariant(
        "V1",
        "liveness",
        "Once faults stop, every session ends within a bound of virtual time.",
        check_every_session_ends,
        scope="run",
    ),
)
