"""Harness invariants: rollcage's own promise, which a system under test can break too."""

from sim.invariants.interface import Evidence, Invariant
from sim.invariants.violation import Violation
from sim.trace import Trace


def check_same_digest(first: Trace, again: Trace) -> list[Violation]:
    """Whether two runs of the same case are the same to the last event: else nothing that was found can be found again.
    Named is the first event that differs, where both traces have kept theirs."""
    if first.digest() == again.digest():
        return []
    differs = f"have the digests {first.digest()} and {again.digest()}"
    if first.keeps and again.keeps:
        shorter = min(len(first.events), len(again.events))
        pairs = zip(first.events, again.events, strict=False)
        number = next((i for i, (one, other) in enumerate(pairs) if one != other), shorter)
        shown = [repr(each.events[number]) if number < len(each.events) else "nothing" for each in (first, again)]
        if shown[0] != shown[1]:
            differs = f"differ from event {number} on: {shown[0]} and {shown[1]}"
    return [Violation("D1", f"two runs of the same case {differs}")]


def _shown_by_two_runs(evidence: Evidence) -> list[Violation]:
    """One run cannot show it; whoever runs a world twice calls `check_same_digest`."""
    del evidence
    return []


INVARIANTS = (Invariant("D1", "harness", "The same case gives the same digest.", _shown_by_two_runs, scope="run"),)
