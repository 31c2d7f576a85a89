"""From a Case to its verdicts: one run of it on a SUT, judged."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from sim.case import Case
from sim.clock import Deviation
from sim.invariants.harness import check_same_digest
from sim.invariants.judging import Findings, Judge, judge
from sim.invariants.table import INVARIANTS
from sim.invariants.violation import Violation
from sim.policies import Policies, in_force
from sim.sut.framework import Sut
from sim.trace import Trace
from sim.world import World


@dataclass(frozen=True, slots=True)
class Judged:
    """A run and what is to be said of it.

    `trace`: with its events, unless the case repeats its sessions. `deviations`: the schedule that was taken, as
    differences from FIFO. `steps`: callbacks that ran. `interrupted`: whether it was stopped before its end; `findings`
    is then about what was judged by then.
    """

    case: Case
    sut: Sut
    trace: Trace
    findings: Findings
    deviations: tuple[Deviation, ...]
    steps: int
    interrupted: bool = False

    @property
    def policies(self) -> Policies:
        """Those that it was judged by."""
        return in_force(self.case.policies, self.trace.declared)

    @property
    def violations(self) -> list[Violation]:
        return self.findings.violations


def judged(
    case: Case,
    sut: Sut,
    numbers: Collection[str] | None = None,
    *,
    twice: bool = True,
    progress: Callable[[Findings], None] | None = None,
) -> Judged:
    """Runs a case and holds it against the invariants with these numbers (None: all).

    A case that repeats its sessions is judged while it runs and its events are not kept: there `progress` is told the
    findings each time that sessions were judged, and, where it is given, Ctrl-C ends the run and not the caller.
    `twice`: whether D1, if it is among the numbers, is judged by a second run, of which nothing else is kept.
    """
    large = case.repeat > 1
    judging = Judge(case, numbers, None if progress is None else lambda _: progress(judging.findings))
    world = World(case, sut, observers=(judging,) if large else None)
    interrupted = False
    try:
        world.run()
    except KeyboardInterrupt:
        if not large or progress is None:
            raise
        interrupted = True
    if not large:
        judging.take(world.trace, world.trace.events)
    if twice and not interrupted and (numbers is None or "D1" in numbers):
        again = World(case, sut, observers=() if large else None).run()
        judging.findings.add(check_same_digest(world.trace, again))
    return Judged(case, sut, world.trace, judging.findings, world.deviations, world.steps, interrupted)


def clearing_policies(run: Judged, number: str) -> list[str]:
    """The policies, as `key=value`, each of which alone would clear a run of its violations of an invariant. Of D1 and
    of runs whose events were not kept nothing is known."""
    if number not in INVARIANTS or number == "D1" or not run.trace.keeps:
        return []
    return [
        spelled
        for spelled, policies in run.policies.alternatives()
        if not judge(run.case, run.trace, (number,), policies)
    ]
