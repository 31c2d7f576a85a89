"""From a Case to its verdicts: small and large alike, once or twice."""

import pytest

from sim import verdicts
from sim.case import Budget, Case, Schedule, Session
from sim.faults import AbortAll, AfterTokens
from sim.invariants import judging
from sim.invariants.judging import judge
from sim.sut.registry import CLEAN, load_sut
from sim.trace import EventsNotKept
from sim.verdicts import judged
from sim.world import World, run_world

SMALL = Case(Budget(8, 10, 64), (Session(2),), (AbortAll(AfterTokens(0, 4), 0),))
LARGE = Case(Budget(8, 10, 64), (Session(2),), (AbortAll(AfterTokens(0, 4), 0),), repeat=300, max_concurrent_sessions=9)
DEFERRED, COUNTS_WORLDS = load_sut("reference:deferred"), load_sut("reference:counts-worlds")


@pytest.fixture
def worlds(monkeypatch):
    """The worlds that were made."""
    made = []

    def make(*args, **named):
        made.append(World(*args, **named))
        return made[-1]

    monkeypatch.setattr(verdicts, "World", make)
    return made


def test_what_is_judged_is_the_run_that_is_returned():
    run = judged(SMALL, DEFERRED)
    world = World(SMALL, DEFERRED)
    trace = world.run()
    assert run.trace.events == trace.events
    assert run.violations == judge(SMALL, trace)
    assert (run.deviations, run.steps) == (world.deviations, world.steps)
    assert [violation.invariant for violation in run.violations] == ["B1"]


def test_a_large_one_is_judged_while_it_runs_and_keeps_no_events():
    run = judged(LARGE, DEFERRED)
    assert (run.findings.sessions, run.findings.counts["B1"]) == (300, 9), "all nine that lived were aborted"
    assert run.trace.digest() == run_world(LARGE, DEFERRED).digest()
    with pytest.raises(EventsNotKept):
        _ = run.trace.events


def test_deviations_are_those_of_the_run():
    case = Case(Budget(8, 10, 64), (Session(2), Session(2)), schedule=Schedule("random", 3))
    assert judged(case, load_sut(CLEAN)).deviations == judged(case, load_sut(CLEAN), twice=False).deviations != ()


@pytest.mark.parametrize("case", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("numbers", "twice", "runs"), [(None, True, 2), (["D1"], True, 2), (["B1"], True, 1), (None, False, 1)]
)
def test_d1_takes_a_second_run(worlds, case, numbers, twice, runs):
    judged(case, load_sut(CLEAN), numbers, twice=twice)
    assert len(worlds) == runs


def test_d1_names_the_first_event_or_the_digests():
    (found,) = judged(Case(Budget(4, 4), (Session(1),), replicas=2), COUNTS_WORLDS, ["D1"]).violations
    assert "differ from event" in found.message
    (found,) = judged(Case(Budget(4, 4), (Session(1),), replicas=2, repeat=3), COUNTS_WORLDS, ["D1"]).violations
    assert "have the digests" in found.message


def test_progress_is_told_of_large_runs():
    told = []
    judged(LARGE, load_sut(CLEAN), twice=False, progress=lambda findings: told.append(findings.sessions))
    assert told == sorted(told)
    assert told[-1] == 300


def interrupt(findings):
    """As Ctrl-C does, when some sessions have been judged."""
    if findings.sessions:
        raise KeyboardInterrupt


def test_an_interrupted_large_run_is_told_as_far_as_it_came(monkeypatch):
    monkeypatch.setattr(judging, "SITTING_EVENTS", 64)
    run = judged(LARGE, load_sut(CLEAN), progress=interrupt)
    assert run.interrupted
    assert 0 < run.findings.sessions < 300
    assert run.findings.end is None


def test_whoever_is_told_nothing_is_interrupted(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(World, "run", interrupted)
    for case in (SMALL, LARGE):
        with pytest.raises(KeyboardInterrupt):
            judged(case, load_sut(CLEAN))
