"""Liveness invariants: the run comes to its end."""

from collections.abc import Iterator

from sim.clock import NS_PER_S, to_ns
from sim.events import WorldEnded
from sim.invariants.interface import Evidence, Invariant
from sim.invariants.violation import Violation


def check_every_session_ends(evidence: Evidence) -> Iterator[Violation]:
    """Whether no request waits for ever at a closed gate; and whether the run came to its end, and if not, which
    sessions are open and who waits on what: a client that hangs holds up a whole step of the training."""
    yield from _parked_too_long(evidence)
    if evidence.end is not None and evidence.end.reason != "done":
        yield _no_end(evidence, evidence.end)


def _no_end(evidence: Evidence, end: WorldEnded) -> Violation:
    open_sessions = [index for index, session in evidence.ledger.sessions.items() if session.ended is None]
    waiting = "; ".join(f"{task} waits on {awaited}" if task else awaited for task, awaited in end.waiting[:4])
    named = ", ".join(str(index) for index in open_sessions[:8]) or "none"
    return Violation(
        "V1",
        f"{end.reason} at {end.t_ns / 1e9:g} s with {len(open_sessions)} sessions open ({named})"
        + (f": {waiting}" if waiting else ""),
        open_sessions[0] if open_sessions else None,
        about=end.reason,
    )


def _parked_too_long(evidence: Evidence) -> Iterator[Violation]:
    """A gate opens when the update behind it is over. A replica that the balancer has let go of has no update to wait
    for: there the whole time counts, and on any other what the Case's own pauses do not explain."""
    most_ns = to_ns(evidence.case.server.max_parked_s)
    for attempt in evidence.ledger.attempts:
        parked, replica = attempt.parked, attempt.sent.replica
        if parked is None:
            continue
        left = attempt.admitted or (attempt.ended[0] if attempt.ended else evidence.end)
        waited_ns = 0 if left is None else left.t_ns - parked.t_ns
        if left is None or waited_ns <= most_ns:
            continue
        pausing = [(number, fault) for number, fault in enumerate(evidence.case.faults) if hasattr(fault, "pause_s")]
        pauses_ns = sum([to_ns(fault.idle_s) for _, fault in pausing])
        away_ns = evidence.routing.away_ns(replica, parked.t_ns, left.t_ns)
        if away_ns > most_ns:
            why = f"of which it was out of the balancer for {away_ns / NS_PER_S:g} s"
        elif waited_ns > most_ns + pauses_ns:
            why = f"where the pauses are {pauses_ns / NS_PER_S:g} s"
        else:
            continue
        updates = ", ".join(
            f"{fault.__struct_config__.tag} (faults[{number}], pause_s {fault.idle_s:g})"
            for number, fault in pausing
            if getattr(fault, "replica", replica) == replica
        )
        yield Violation(
            "V1",
            f"request {attempt.sent.request} (session {attempt.sent.session}) was parked at replica {replica} for "
            f"{waited_ns / NS_PER_S:g} s, {why}; it waited for {updates or 'no update of the case'}",
            attempt.sent.session,
        )


INVARIANTS = (
    Invariant(
        "V1",
        "liveness",
        "Once faults stop, every session ends within a bound of virtual time.",
        check_every_session_ends,
    ),
)
