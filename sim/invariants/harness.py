"""Harness invariants: rollcage's own promise, which a system under test can break too."""

from sim.case import Case
from sim.invariants.interface import Invariant, Violation
from sim.trace import Trace


def check_same_digest(first: Trace, again: Trace) -> list[Violation]:
    """D1, for two runs of the same case."""
    if first.digest() == again.digest():
        return []
    if first.events == again.events:  # of a trace that is judged while it runs, the last one alone
        return [Violation("D1", f"two runs of the same case have the digests {first.digest()} and {again.digest()}")]
    number = next(
        (i for i, (a, b) in enumerate(zip(first.events, again.events, strict=False)) if a != b),
        min(len(first.events), len(again.events)),
    )
    shown = [repr(trace.events[number]) if number < len(trace.events) else "nothing" for trace in (first, again)]
    return [Violation("D1", f"two runs of the same case differ from event {number} on: {shown[0]} and {shown[1]}")]


def _judged_by_running_twice(case: Case, trace: Trace) -> list[Violation]:
    """One trace cannot show it; whoever runs worlds calls `check_same_digest` on two."""
    del case, trace
    return []


INVARIANTS: tuple[Invariant, ...] = (
    Invariant("D1", "harness", "The same case gives the same digest.", _judged_by_running_twice),
)
