"""The invariants, by number. `judge` holds a trace against them."""

from collections.abc import Collection

from sim.case import Case
from sim.invariants import budget, harness, lifecycle, liveness, routing, staleness
from sim.invariants.interface import Invariant, Kind, Violation
from sim.trace import Trace

INVARIANTS: dict[str, Invariant] = {
    invariant.number: invariant
    for module in (budget, lifecycle, routing, staleness, liveness, harness)
    for invariant in module.INVARIANTS
}

KINDS: tuple[Kind, ...] = ("budget", "lifecycle", "routing", "staleness", "liveness", "harness")


def numbers_of(kinds: Collection[str]) -> tuple[str, ...]:
    """The numbers of the invariants of these kinds."""
    return tuple(number for number, invariant in INVARIANTS.items() if invariant.kind in kinds)


def judge(case: Case, trace: Trace, numbers: Collection[str] = tuple(INVARIANTS)) -> list[Violation]:
    """Every violation in a trace of the invariants with these numbers, in their order."""
    return [violation for number in numbers for violation in INVARIANTS[number].check(case, trace)]


__all__ = ["INVARIANTS", "KINDS", "Invariant", "Kind", "Violation", "judge", "numbers_of"]
