"""From a Case to its verdicts: one run of it on a SUT, judged."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from sim import elsewhere
from sim.case import Case
from sim.clock import Deviation
from sim.invariants.budget import WITHOUT_A_WORD
from sim.invariants.harness import check_same_digest, deeds, digest_of_deeds, first_difference
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

    @property
    def warnings(self) -> list[Violation]:
        """What is told, and is no offence."""
        return self.findings.warnings


_have_warned: "WeakSet[Any]" = WeakSet()
"""Factories whose clients have said that response_length cannot be used, in a world of this process."""


def _has_warned(sut: Sut) -> bool:
    try:
        return sut.factory in _have_warned
    except TypeError:
        return False


def _said_before(case: Case, sut: Sut, found: Sequence[Violation]) -> list[Violation]:
    """Of what was found, what would not be in a process of its own: a client may say once a process that it falls back,
    and worlds share one. Where there is no other process to ask, who has said it before is believed."""
    silences = [each for each in found if each.invariant == "B8" and each.message.endswith(WITHOUT_A_WORD)]
    if not silences or not _has_warned(sut):
        return []
    alone = elsewhere.run(sut, case)
    if alone is None:
        return silences
    return [each for each in silences if (each.invariant, each.message) not in alone.violations]


def differs_elsewhere(case: Case, sut: Sut, trace: Trace) -> list[Violation]:
    """Whether a run in another process, where strings hash otherwise, is not the same. Nothing is said of a SUT that
    cannot be loaded by its name there, nor of a case that repeats its sessions. A package may take many seconds to
    import: nobody waits for that."""
    if "==" in sut.key and not elsewhere.is_ready(sut):
        return []
    again = elsewhere.run(sut, case)
    if again is None or again.digest == digest_of_deeds(trace):
        return []
    told = elsewhere.run(sut, case, events=True)
    differs = "" if told is None else first_difference([repr(event) for event in deeds(trace)], told.events)
    differs = differs or f"have the digests {digest_of_deeds(trace)} and {again.digest}"
    return [Violation("D1", f"two runs of the same case, in two processes with other hashes of strings, {differs}")]


def judged(
    case: Case,
    sut: Sut,
    numbers: Collection[str] | None = None,
    *,
    twice: bool = True,
    in_two_processes: bool = True,
    progress: Callable[[Findings], None] | None = None,
) -> Judged:
    """Runs a case and holds it against the invariants with these numbers (None: all).

    A case that repeats its sessions is judged while it runs and its events are not kept: there `progress` is told the
    findings each time that sessions were judged, and, where it is given, Ctrl-C ends the run and not the caller.
    `twice`: whether D1, if it is among the numbers, is judged by a second run, of which nothing else is kept.
    `in_two_processes`: and by one in another process.
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
        differs = check_same_digest(world.trace, again)
        judging.findings.add(differs or (differs_elsewhere(case, sut, world.trace) if in_two_processes else ()))
    if "B8" in judging.findings.counts:
        judging.findings.drop(_said_before(case, sut, judging.findings.violations))
    if any("response_length" in warning.text for warning in judging.warnings):
        with suppress(TypeError):  # a factory that cannot be remembered
            _have_warned.add(sut.factory)
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
