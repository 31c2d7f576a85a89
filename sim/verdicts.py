"""What a SUT does in a case, and what of it is a violation."""

from collections.abc import Sequence
from typing import NamedTuple

from sim.case import Case
from sim.clock import Deviation
from sim.invariants import Violation, judge
from sim.invariants.harness import check_same_digest
from sim.sut.interface import Sut
from sim.trace import Trace
from sim.world import World, run_world


class Judged(NamedTuple):
    """One run. `deviations`: where the order of ready callbacks left FIFO."""

    trace: Trace
    violations: list[Violation]
    deviations: Sequence[Deviation]


def judged(case: Case, sut: Sut) -> Judged:
    """Runs a case and judges that very run; D1 by a second one. No case that repeats its sessions."""
    world = World(case, sut)
    trace = world.run()
    violations = judge(case, trace) + check_same_digest(trace, run_world(case, sut))
    return Judged(trace, violations, world.deviations)
