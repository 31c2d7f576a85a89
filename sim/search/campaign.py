"""A campaign: draw worlds, run them on a SUT, keep and shrink what breaks.

Operating rules:
- Hypothesis draws the world; each is run under several schedules, and every `TWICE_EVERY`-th run is done twice (D1).
- An invariant is reported once a SUT. When a new one breaks, Hypothesis shrinks that violation before the search goes
  on, for at most `MOST_SHRINK_WORLDS` worlds; then its schedule is shrunk.
- A campaign bounded by worlds never looks at a clock: the same seed gives the same finds, every time. One bounded by
  seconds stops at its time, and shrinks for at most as long again.
- An interrupt ends it with what it has.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import hypothesis
import msgspec
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from sim.case import Case, dumps
from sim.invariants import INVARIANTS, judge
from sim.invariants.harness import check_same_digest
from sim.invariants.interface import Violation
from sim.search.schedules import under_schedules
from sim.search.shrink import shrink_schedule
from sim.sut.interface import Sut
from sim.trace import Trace
from sim.world import World, run_world

TWICE_EVERY = 8
MOST_SHRINK_WORLDS = 3000

Compare = Callable[[Case, Trace], list[Violation]]


class Find(msgspec.Struct, frozen=True):
    """A violation with the smallest case that shows it."""

    invariant: str
    message: str
    case: Case

    @property
    def is_race(self) -> bool:
        """Whether it needs another order of ready callbacks than FIFO."""
        return self.case.schedule.policy != "fifo"


@dataclass
class Campaign:
    """What one SUT went through, kept up to date while it runs."""

    sut: Sut
    seed: int
    worlds: int = 0
    seconds: float = 0.0
    finds: list[Find] = field(default_factory=list)
    interrupted: bool = False

    @property
    def worlds_per_s(self) -> float:
        return self.worlds / self.seconds if self.seconds else 0.0

    def add(self, part: "Campaign") -> None:
        """Takes over what another part of the same search did."""
        self.worlds += part.worlds
        self.seconds += part.seconds
        self.finds += part.finds
        self.interrupted |= part.interrupted


@dataclass(frozen=True)
class Bounds:
    """How long to search: `worlds` (repeatable), or `seconds`."""

    worlds: int | None = None
    seconds: float | None = None


class _Stop(BaseException):
    """Ends a Hypothesis run from inside; not an Exception, which Hypothesis would take for a failing example."""


class _Hit(Exception):
    """The violation that is looked for has come up."""


def _size(case: Case) -> tuple[int, int, str]:
    """Smaller is easier to read: fewer sessions and faults, then shorter JSON."""
    text = dumps(case, indent=0)
    return len(case.sessions) + len(case.faults), len(text), text


class _Search:
    """One Hypothesis run: generates until something new breaks, then shrinks it."""

    def __init__(self, campaign: Campaign, numbers: Sequence[str], bounds: Bounds, compare: Compare | None) -> None:
        self.campaign = campaign
        self.numbers = numbers
        self.bounds = bounds
        self.compare = compare
        self.started = time.monotonic()
        self.progress: Callable[[Campaign], None] = lambda _: None
        self.target: str | None = None
        self.best: Find | None = None
        self._shrink_worlds = 0
        self._shrink_started = 0.0
        self._trials = 0

    def violations(self, case: Case) -> list[Violation]:
        """What the case violates of the invariants looked for."""
        campaign = self.campaign
        trace = run_world(case, campaign.sut)
        campaign.worlds += 1
        found = judge(case, trace, self.numbers) if self.compare is None else self.compare(case, trace)
        if self._due_twice() and self.compare is None and "D1" in self.numbers:
            found += check_same_digest(trace, run_world(case, campaign.sut))
        return found

    def _due_twice(self) -> bool:
        self._trials += 1
        return self.target == "D1" or self._trials % TWICE_EVERY == 1

    def out_of_bounds(self) -> bool:
        bounds, campaign = self.bounds, self.campaign
        if bounds.worlds is not None:
            return campaign.worlds >= bounds.worlds
        assert bounds.seconds is not None
        return time.monotonic() - self.started >= bounds.seconds

    def shrunk_enough(self) -> bool:
        if self._shrink_worlds >= MOST_SHRINK_WORLDS:
            return True
        seconds = self.bounds.seconds
        return seconds is not None and time.monotonic() - self._shrink_started >= seconds

    def probe(self, case: Case) -> None:
        """Runs one drawn case; raises `_Hit` when it shows the violation that is looked for."""
        campaign = self.campaign
        if self.target is None:
            if self.out_of_bounds():
                raise _Stop
        elif self.shrunk_enough():
            raise _Stop
        campaign.seconds = time.monotonic() - self.started
        self.progress(campaign)
        known = {find.invariant for find in campaign.finds}
        for scheduled in under_schedules(case):
            if self.target is not None:
                self._shrink_worlds += 1
            for violation in self.violations(scheduled):
                if violation.invariant == self.target or (self.target is None and violation.invariant not in known):
                    self._hit(violation, scheduled)

    def _hit(self, violation: Violation, case: Case) -> NoReturn:
        if self.target is None:
            self.target = violation.invariant
            self._shrink_started = time.monotonic()
        if self.best is None or _size(case) < _size(self.best.case):
            self.best = Find(violation.invariant, violation.message, case)
        raise _Hit

    def still_fails(self, case: Case) -> bool:
        return any(violation.invariant == self.target for violation in self.violations(case))

    def finish(self) -> None:
        """Shrinks the schedule of the best case and puts it among the campaign's finds."""
        if self.best is None:
            return
        world = World(self.best.case, self.campaign.sut)
        world.run()
        case = shrink_schedule(self.best.case, world.deviations, self.still_fails)
        message = self.best.message
        if case is not self.best.case:
            message = next(v.message for v in self.violations(case) if v.invariant == self.target)
        self.campaign.finds.append(Find(self.best.invariant, message, case))
        self.best = None


def run_campaign(
    sut: Sut,
    strategy: st.SearchStrategy[Case],
    numbers: Sequence[str],
    seed: int,
    bounds: Bounds,
    progress: Callable[[Campaign], None] = lambda _: None,
    compare: Compare | None = None,
) -> Campaign:
    """Searches for violations of the invariants with these numbers until its bounds; one find an invariant.

    `compare` judges a trace in the place of the invariants (an old client against a new one).
    """
    campaign = Campaign(sut, seed)
    started = time.monotonic()
    round_number = 0
    try:
        while True:
            search = _Search(campaign, numbers, bounds, compare)
            search.started, search.progress = started, progress
            try:
                _generate_and_shrink(search, strategy, seed + round_number)
            except KeyboardInterrupt:
                campaign.interrupted = True
            except _Stop:
                pass
            search.finish()
            round_number += 1
            all_found = {find.invariant for find in campaign.finds}.issuperset(numbers)
            if all_found or campaign.interrupted or search.target is None or search.out_of_bounds():
                break
    except KeyboardInterrupt:
        campaign.interrupted = True
    campaign.seconds = time.monotonic() - started
    campaign.finds.sort(key=lambda find: list(INVARIANTS).index(find.invariant) if find.invariant in INVARIANTS else 99)
    return campaign


def _generate_and_shrink(search: _Search, strategy: st.SearchStrategy[Case], seed: int) -> None:
    most = search.bounds.worlds if search.bounds.worlds is not None else 10**9

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=most,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(strategy)
    def look(case: Case) -> None:
        search.probe(case)

    try:
        look()
    except _Hit:
        pass
    except hypothesis.errors.Flaky:
        # A shrink that ran out of its bounds, or a SUT that breaks D1: the best case is kept all the same.
        if search.best is None:
            raise
