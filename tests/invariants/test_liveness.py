"""Liveness invariants: a run that does not end is caught, with what waits on what."""

import pytest

from sim.case import Budget, Case, ServerSettings, Session
from sim.events import Admitted, Parked, Sent, SessionEnded, TurnStarted, WorldEnded
from sim.faults import AbortAll, AtTime
from sim.invariants.judging import judge
from sim.sut.registry import CLEAN, load_sut
from sim.trace import Trace
from sim.world import run_world

CASE = Case(Budget(8, 10, 64), (Session(2, arrival_s=1.0),), (AbortAll(AtTime(0.5), 0, pause_s=2.0),))


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "trtllm"])
def test_v1_catches_a_gate_that_stays_shut_and_passes_the_known_good(dialect):
    case = Case(CASE.budget, CASE.sessions, CASE.faults, server=ServerSettings(dialect))
    trace = run_world(case, load_sut("reference:stuck-gate"))
    (violation,) = [violation for violation in judge(case, trace) if violation.invariant == "V1"]

    assert violation.message.startswith("deadlock at 2.5 s with 1 sessions open (0): ")
    assert "session 0 waits on" in violation.message
    assert judge(case, run_world(case, load_sut(CLEAN))) == []


@pytest.mark.parametrize("reason", ["deadlock", "horizon", "livelock"])
def test_v1_names_the_sessions_that_are_open(reason):
    trace = Trace(3)
    trace.add(SessionEnded(1, 1, "ok", 0, 0))
    trace.seal(WorldEnded(2_000_000_000, reason))
    (violation,) = judge(Case(CASE.budget, 3 * CASE.sessions), trace, ["V1"])
    assert (violation.session, violation.message) == (0, f"{reason} at 2 s with 2 sessions open (0, 2)")


def test_v1_passes_a_run_that_ended():
    trace = Trace(1)
    trace.seal(WorldEnded(0, "done"))
    assert judge(CASE, trace, ["V1"]) == []


@pytest.mark.parametrize(("max_parked_s", "is_told"), [(60.0, False), (5.0, True)])
def test_v1_bounds_parking_by_what_the_case_says(max_parked_s, is_told):
    """Parked from 1 s to 9 s, of which no pause of the case explains any."""
    case = Case(CASE.budget, CASE.sessions, server=ServerSettings(max_parked_s=max_parked_s))
    trace = Trace(1)
    for event in (
        TurnStarted(0, 0, 0, 2),
        Sent(0, 0, 0, 0, 0, 0, 2, {}),
        Parked(10**9, 0),
        Admitted(9 * 10**9, 0),
    ):
        trace.add(event)
    trace.seal(WorldEnded(10**10, "done"))
    told = [each.message for each in judge(case, trace, ["V1"])]
    assert told == is_told * [
        "request 0 (session 0) was parked at replica 0 for 8 s, where the pauses are 0 s; it waited for no update of "
        "the case"
    ]
