"""A campaign: draw worlds, run them on a SUT, keep and shrink what breaks.

Operating rules:
- D1 is judged by a second run of every `TWICE_EVERY`-th world, some of them in another process (`sim.search.afar`).
- First come the classic worlds, if any are given: they count as searched, and what they show is shrunk part by part.
- Then Hypothesis draws the world; each is run under several schedules.
- An invariant is reported once a SUT. When a new one breaks, Hypothesis shrinks that violation before the search goes
  on, for at most `MOST_SHRINK_WORLDS` worlds (a race: `MOST_RACE_WORLDS`) and `MOST_SHRINK_STEPS` callbacks; then its
  schedule, and its case part by part.
- Shrinking is not searching: its worlds do not count against the bounds.
- Nothing seen is lost: what else broke on the way and was not met again is reported as it was.
- A campaign bounded by worlds never looks at a clock: the same seed gives the same finds, every time. One bounded by
  seconds stops at its time; what it has found by then may be shrunk for `GRACE` of that time more, and no longer.
- A request to stop ends it after the world that is running, with what it has.
- What the harness or a factory raises is no find and is not shrunk: it ends the campaign, and its case is kept.
"""

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import hypothesis
import msgspec
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from sim import elsewhere
from sim.case import Case
from sim.invariants.table import INVARIANTS
from sim.invariants.violation import Violation
from sim.search.afar import Afar
from sim.search.draws import from_the_seed_alone
from sim.search.find import Find, Known, size_of
from sim.search.schedules import MORE_FOR_A_RACE, under_schedules
from sim.search.shrink import NOBODYS, shrink_schedule, shrink_world
from sim.sut.framework import Sut
from sim.trace import Trace
from sim.verdicts import judged
from sim.world import World

TWICE_EVERY = 8
MOST_SHRINK_WORLDS = 2000
MOST_RACE_WORLDS = 9000
MOST_SHRINK_STEPS = 10_000_000
"""A client that polls for ever makes worlds a thousand times as dear as others."""
GRACE = 0.5
_WORLDS_GRACE = 0.8 * GRACE
"""The rest is for the schedule."""

Compare = Callable[[Case, Trace], list[Violation]]


class Breakdown(msgspec.Struct, frozen=True):
    """What ended a campaign before its time (a SUT that cannot be driven, a fault of the harness), and where."""

    error: Exception
    case: Case


class Noted(msgspec.Struct, frozen=True):
    """A violation as it was seen, and the seed of the Hypothesis run in which it was."""

    find: Find
    seed: int


@dataclass
class Campaign:
    """What one SUT went through, kept up to date while it runs.

    `worlds` were searched, `shrink_worlds` run to shrink what was found. `seen`: known violations that came up again.
    `noted`: for each invariant not found yet the smallest case in which it was seen to break.
    """

    sut: Sut
    seed: int
    worlds: int = 0
    shrink_worlds: int = 0
    afar: Afar = field(default_factory=Afar)
    warnings: dict[str, Find] = field(default_factory=dict)
    """Of each invariant that warned, the smallest case in which it did. They are not shrunk."""
    seconds: float = 0.0
    finds: list[Find] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    noted: dict[str, "Noted"] = field(default_factory=dict)
    decoded: bool = False
    """Whether any world decoded a token."""
    some_turn_ended_well: bool = False
    an_error: str = ""
    """How one of the calls failed."""
    interrupted: bool = False
    breakdown: Breakdown | None = None

    @property
    def worlds_per_s(self) -> float:
        return (self.worlds + self.shrink_worlds) / self.seconds if self.seconds else 0.0

    @property
    def idle(self) -> str:
        """How the client did nothing in all these worlds, so that little was tested; empty where it did something."""
        if not self.worlds or (self.decoded and self.some_turn_ended_well):
            return ""
        worlds = f"in {self.worlds} world{'s' * (self.worlds != 1)}"
        failed = f", and calls failed, as with {self.an_error}" if self.an_error else ""
        if self.decoded:
            return f"{worlds} no call of the client ended well{failed}"
        return f"{worlds} no token was decoded{failed}: the client was hardly tested"

    def watch(self, trace: Trace) -> None:
        """Sees whether something happens."""
        if not trace.keeps or (self.decoded and self.some_turn_ended_well):
            return
        for _, turn in trace.ledger.turns():
            self.decoded |= turn.decoded_tokens > 0
            if turn.ended is not None and turn.ended.outcome == "error":
                self.an_error = self.an_error or turn.ended.error or ""
            elif turn.ended is not None and turn.ended.outcome == "ok":
                self.some_turn_ended_well = True

    def add(self, part: "Campaign") -> None:
        """Takes over what another part of the same search did."""
        self.worlds += part.worlds
        self.shrink_worlds += part.shrink_worlds
        self.seconds += part.seconds
        self.finds += part.finds
        self.warnings = {**part.warnings, **self.warnings}
        self.seen |= part.seen
        self.an_error = self.an_error or part.an_error
        self.decoded |= part.decoded
        self.some_turn_ended_well |= part.some_turn_ended_well
        self.interrupted |= part.interrupted
        self.breakdown = self.breakdown or part.breakdown


@dataclass(frozen=True)
class Bounds:
    """How long to search: `worlds` (repeatable), or `seconds`."""

    worlds: int | None = None
    seconds: float | None = None


class _Stop(BaseException):
    """Ends a Hypothesis run from inside; not an Exception, which Hypothesis would take for a failing example."""


class _Hit(Exception):
    """The violation that is looked for has come up."""


class _Search:
    """One Hypothesis run: generates until something new breaks, then shrinks it."""

    def __init__(
        self,
        campaign: Campaign,
        numbers: Sequence[str],
        bounds: Bounds,
        known: frozenset[Known],
        compare: Compare | None,
        progress: Callable[[Campaign], None],
        stop: Callable[[], bool],
        started: float,
        seed: int,
        target: str | None = None,
    ) -> None:
        self.campaign = campaign
        self.numbers = numbers
        self.bounds = bounds
        self.known = known
        self.compare = compare
        self.progress = progress
        self.stop = stop
        self.started = started
        self.seed = seed
        self.target = target
        self.best = None if target is None else campaign.noted[target].find
        self.case: Case | None = None
        self._shrink_worlds = 0
        self._shrink_steps = 0
        self._shrinks_schedule = False
        self._trials = 0

    def violations(self, case: Case) -> list[Violation]:
        """What the case violates of the invariants looked for. What is raised here ends the campaign."""
        campaign = self.campaign
        self.case = case
        try:
            if self.compare is None:
                twice = "D1" in self.numbers and self._due_twice()
                afar = twice and campaign.afar.is_due(campaign.sut, self.target, self.bounds.seconds is None)
                run = judged(case, campaign.sut, self.numbers, twice=twice, in_two_processes=afar)
                trace, found, steps = run.trace, run.violations + run.warnings, run.steps
            else:
                world = World(case, campaign.sut)
                trace = world.run()
                found, steps = self.compare(case, trace), world.steps
            campaign.watch(trace)
        except Exception as error:
            self.break_down(error)
            raise _Stop from error
        if self.target is None:
            campaign.worlds += 1
        else:
            campaign.shrink_worlds += 1
            self._shrink_worlds += 1
            self._shrink_steps += steps
        return [each for each in found if not self._is_set_aside(each, case)]

    def _is_set_aside(self, violation: Violation, case: Case) -> bool:
        """Whether a violation is not to be looked for: a warning, which is noted, or one that is known. What only warns
        is looked for where it was asked for."""
        number, campaign = violation.invariant, self.campaign
        if violation.severity == "warning" and INVARIANTS[number].severity == "violation":
            before = campaign.warnings.get(number)
            if before is None or size_of(case) < size_of(before.case):
                campaign.warnings[number] = Find(number, violation.message, case)
            return True
        if number in self.known or (number, violation.about) in self.known:
            campaign.seen.add(number)
            return True
        return False

    def break_down(self, error: Exception) -> None:
        """Ends the campaign with the case at hand."""
        if self.case is None:
            raise error
        self.campaign.breakdown = Breakdown(error, self.case)

    def _due_twice(self) -> bool:
        self._trials += 1
        return self.target == "D1" or (self.target is None and self._trials % TWICE_EVERY == 1)

    def out_of_bounds(self) -> bool:
        if self.bounds.worlds is not None:
            return self.campaign.worlds >= self.bounds.worlds
        assert self.bounds.seconds is not None
        return time.monotonic() - self.started >= self.bounds.seconds

    def shrunk_enough(self) -> bool:
        most_worlds = MOST_RACE_WORLDS if self.best is not None and self.best.is_race else MOST_SHRINK_WORLDS
        if self.stop() or self._shrink_worlds >= most_worlds or self._shrink_steps >= MOST_SHRINK_STEPS:
            return True
        if self.bounds.seconds is None:
            return False
        grace = GRACE if self._shrinks_schedule else _WORLDS_GRACE
        return time.monotonic() - self.started >= (1 + grace) * self.bounds.seconds

    def probe(self, case: Case) -> None:
        """Runs one drawn case; raises `_Hit` when it shows the violation that is looked for."""
        campaign = self.campaign
        campaign.seconds = time.monotonic() - self.started
        self.progress(campaign)
        if self.best is None:
            schedules = under_schedules(case)
        else:
            schedules = under_schedules(case, MORE_FOR_A_RACE) if self.best.is_race else [case]
        for scheduled in schedules:
            if self.stop():
                campaign.interrupted = True
                raise _Stop
            if self.shrunk_enough() if self.target is not None else self.out_of_bounds():
                raise _Stop
            self._sort_out(self.violations(scheduled), scheduled)

    def run_classics(self, cases: Sequence[Case]) -> None:
        """Runs worlds that are small as they are, and notes what they show, until there is nothing left to look for."""
        for case in cases:
            if self.campaign.noted and set(self.numbers) <= self.known | self.campaign.noted.keys():
                break
            with suppress(_Hit):
                self.probe(case)
            self.target = self.best = None

    def _sort_out(self, violations: list[Violation], case: Case) -> None:
        """Notes what is new; raises `_Hit` for what is looked for, be it anything new."""
        found = {violation.invariant: violation.message for violation in reversed(violations)}
        for number in found.keys() - {find.invariant for find in self.campaign.finds}:
            before = self.campaign.noted.get(number)
            if before is None or size_of(case) < size_of(before.find.case):
                self.campaign.noted[number] = Noted(Find(number, found[number], case), self.seed)
        if self.target is None:
            self.target = next((v.invariant for v in violations if v.invariant in self.campaign.noted), None)
        if self.target is not None and self.target in found:
            self.best = self.campaign.noted[self.target].find
            raise _Hit

    def _shown(self, case: Case) -> str | None:
        """How the case shows the violation that is looked for; None when it does not, or there is no time to look."""
        if self.shrunk_enough():
            return None
        return next((found.message for found in self.violations(case) if found.invariant == self.target), None)

    def finish(self) -> None:
        """Puts the best case among the campaign's finds, reduced and its schedule shrunk if there is time."""
        find, self.best = self.best, None
        if find is None:
            return
        del self.campaign.noted[find.invariant]
        self.campaign.finds.append(find)  # first, so that an interrupt does not lose it
        self._shrink_worlds = self._shrink_steps = 0  # this share is its own
        self._shrinks_schedule = True
        messages: dict[Case, str] = {}

        def fails(case: Case) -> bool:
            message = self._shown(case)
            if message is not None:
                messages[case] = message
            return message is not None

        case = shrink_schedule(find.case, self.campaign.sut, fails) if find.is_race else find.case
        case = shrink_world(case, fails, self.campaign.sut.framework.callers or NOBODYS)
        self.campaign.finds[-1] = Find(find.invariant, messages.get(case, find.message), case)


def run_campaign(
    sut: Sut,
    strategy: st.SearchStrategy[Case],
    numbers: Sequence[str],
    seed: int,
    bounds: Bounds,
    progress: Callable[[Campaign], None] = lambda _: None,
    compare: Compare | None = None,
    known: Collection[Known] = (),
    stop: Callable[[], bool] = lambda: False,
    classics: Sequence[Case] = (),
) -> Campaign:
    """Searches for violations of the invariants with these numbers until its bounds; one find an invariant.

    `known` violations, by number or by number and what they are about, are noted and neither shrunk nor reported.
    `compare` judges a trace in the place of the invariants (an old client against a new one). `stop` is asked before
    each world. `classics` are run before any world is drawn.
    """
    campaign = Campaign(sut, seed)
    started = time.monotonic()
    wanted = set(numbers) - set(known)
    if "D1" in wanted:
        elsewhere.begin(sut)

    def new_search(run_seed: int, target: str | None = None) -> _Search:
        return _Search(campaign, numbers, bounds, frozenset(known), compare, progress, stop, started, run_seed, target)

    def one_run(run_seed: int, target: str | None = None) -> _Search:
        search = new_search(run_seed, target)
        with _ended_by_request(campaign):
            _generate_and_shrink(search, strategy)
            search.finish()
        return search

    def ended() -> bool:
        return campaign.interrupted or campaign.breakdown is not None

    def all_found() -> bool:
        return bool(wanted) and wanted <= {find.invariant for find in campaign.finds}

    search = new_search(seed)
    with _ended_by_request(campaign):
        search.run_classics(classics)
    for number in list(campaign.noted):
        if not ended():
            with _ended_by_request(campaign):
                new_search(seed, number).finish()
    run_seeds = itertools.count(seed)
    while not (ended() or search.out_of_bounds() or all_found()):
        search = one_run(next(run_seeds))
        if search.target is None:
            break
    for number, noted in list(campaign.noted.items()):
        if not ended():
            one_run(noted.seed, number)  # meets it again, and shrinks it
    campaign.finds += [noted.find for noted in campaign.noted.values()]
    campaign.seconds = time.monotonic() - started
    campaign.finds.sort(key=lambda find: list(INVARIANTS).index(find.invariant) if find.invariant in INVARIANTS else 99)
    return campaign


@contextmanager
def _ended_by_request(campaign: Campaign) -> Iterator[None]:
    """What goes on inside may be ended, from inside or with Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        campaign.interrupted = True
    except _Stop:
        pass


def _generate_and_shrink(search: _Search, strategy: st.SearchStrategy[Case]) -> None:
    """One Hypothesis run. What it found by the time that it ended, or was ended, is the search's best."""
    most = search.bounds.worlds if search.bounds.worlds is not None else 10**9

    @hypothesis.seed(search.seed)
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
        with from_the_seed_alone():
            look()
    except (_Hit, _Stop):
        pass
    except hypothesis.errors.Flaky as error:
        # A SUT that breaks D1: the best case is kept all the same.
        if search.best is None:
            search.break_down(error)
    except Exception as error:  # of Hypothesis itself; a world's is caught where it is raised
        search.break_down(error)
