"""Harness invariants: the same case gives the same digest."""

from sim.case import Budget, Case, Session
from sim.events import VersionChanged, WorldEnded
from sim.invariants.harness import check_same_digest
from sim.invariants.judging import judge
from sim.sut.registry import CLEAN, load_sut
from sim.trace import Trace
from sim.world import run_world

CASE = Case(Budget(8, 10, 64), (Session(2),), replicas=3)


def twice(sut):
    return [run_world(CASE, load_sut(sut)) for _ in range(2)]


def test_d1_catches_a_balancer_that_remembers_earlier_worlds_and_passes_the_known_good():
    (violation,) = check_same_digest(*twice("reference:counts-worlds"))
    assert violation.message.startswith("two runs of the same case differ from event 1 on: Message(")
    assert check_same_digest(*twice(CLEAN)) == []


def test_d1_cannot_be_judged_by_one_trace():
    trace = run_world(CASE, load_sut("reference:counts-worlds"))
    assert judge(CASE, trace, ["D1"]) == []


def test_d1_names_the_end_of_the_shorter_run():
    first, second = Trace(0), Trace(0)
    first.add(VersionChanged(0, 0, 1))
    first.seal(WorldEnded(0, "done"))
    second.add(VersionChanged(0, 0, 1))
    (violation,) = check_same_digest(first, second)
    assert violation.message == (
        "two runs of the same case differ from event 1 on: WorldEnded(t_ns=0, reason='done', waiting=()) and nothing"
    )
