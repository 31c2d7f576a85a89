"""Harness invariants: rollcage's own promise, which a system under test can break too."""

from collections.abc import Sequence
from itertools import zip_longest

from sim.events import Event, Logged
from sim.invariants.interface import Evidence, Invariant
from sim.invariants.violation import Violation
from sim.trace import Digest, Trace


def digest_of_deeds(trace: Trace) -> str:
    """A digest of what happened in a run that is over, but for what was said: a client may warn once a process, and
    worlds share one. Where events are not kept, of all of it."""
    if not trace.keeps:
        return trace.digest()
    digest = Digest()
    digest.take(deeds(trace))
    return digest.text()


def deeds(trace: Trace) -> list[Event]:
    """What happened in a run, but for what was said."""
    return [event for event in trace.events if type(event) is not Logged]


def check_same_digest(first: Trace, again: Trace) -> list[Violation]:
    """Whether two runs of the same case are the same to the last event, warnings left out: else nothing that was found
    can be found again. Named is the first event that differs, where both traces have kept theirs."""
    if first.digest() == again.digest() or digest_of_deeds(first) == digest_of_deeds(again):
        return []
    differs = f"have the digests {first.digest()} and {again.digest()}"
    if first.keeps and again.keeps:
        differs = first_difference(*[[repr(event) for event in deeds(each)] for each in (first, again)]) or differs
    return [Violation("D1", f"two runs of the same case {differs}")]


def first_difference(first: Sequence[str], again: Sequence[str]) -> str:
    """Where two runs, their events in words, part; empty where they do not."""
    pairs = enumerate(zip_longest(first, again, fillvalue="nothing"))
    return next((f"differ from event {i} on: {one} and {other}" for i, (one, other) in pairs if one != other), "")


def _shown_by_two_runs(evidence: Evidence) -> list[Violation]:
    """One run cannot show it; whoever runs a world twice calls `check_same_digest`."""
    del evidence
    return []


INVARIANTS = (Invariant("D1", "harness", "The same case gives the same digest.", _shown_by_two_runs, scope="run"),)
