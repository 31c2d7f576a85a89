"""Liveness invariants: the run comes to its end."""

from sim.case import Case
from sim.invariants.interface import Invariant, Violation
from sim.trace import Trace, WorldEnded


def check_every_session_ends(case: Case, trace: Trace) -> list[Violation]:
    """V1."""
    del case
    end = trace.events[-1]
    assert isinstance(end, WorldEnded), "a world's last event says how it ended"
    if end.reason == "done":
        return []
    open_sessions = [index for index, session in trace.ledger.sessions.items() if session.ended is None]
    waiting = "; ".join(f"{task} waits on {awaited}" if task else awaited for task, awaited in end.waiting[:4])
    named = ", ".join(str(index) for index in open_sessions[:8]) or "none"
    return [
        Violation(
            "V1",
            f"{end.reason} at {end.t_ns / 1e9:g} s with {len(open_sessions)} sessions open ({named})"
            + (f": {waiting}" if waiting else ""),
            open_sessions[0] if open_sessions else None,
        )
    ]


INVARIANTS = (
    Invariant(
        "V1",
        "liveness",
        "Once faults stop, every session ends within a bound of virtual time.",
        check_every_session_ends,
    ),
)
