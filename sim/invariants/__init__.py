"""The invariants, by number. `judge` holds a trace against them."""

from collections.abc import Collection

from sim.case import Case
from sim.invariants import budget, harness, lifecycle, liveness, routing
from sim.invariants.interface import Invariant, Kind, Violation
from sim.trace import Trace

INVARIANTS: dict[str, Invariant] = {
    invariant.number: invariant
    for module in (budget, lifecycle, routing, liveness, harness)
    for invariant in module.INVARIANTS
}

KINDS: tuple[Kind, ...] = ("budget", "lifecycle", "routing", "liveness", "harness")


def judge(case: Case, trace: Trace, kinds: Collection[str] = KINDS) -> list[Violation]:
    """Every violation in a trace, in the order of the invariants."""
    return [
        violation
        for invariant in INVARIANTS.values()
        if invariant.kind in kinds
        for violation in invariant.check(case, trace)
    ]


__all__ = ["INVARIANTS", "KINDS", "Invariant", "Kind", "Violation", "judge"]
