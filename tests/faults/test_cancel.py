"""Cancelled clients end once, whatever they are doing, and give back what they hold."""

import pytest

from sim.case import Case, Schedule, Session, Transport, Turn
from sim.clock import to_ns
from sim.events import Cancelled, Discarded, SessionEnded
from sim.faults import (
    AbortAll,
    AfterTokens,
    AtTime,
    CancelClient,
)
from sim.invariants.judging import judge
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world
from tests.faults.worlds import BUDGET, ONE, decoded, events, notes, run

CANCEL_TIMES = {
    "before its first step": AtTime(0.0),
    "before its arrival": AtTime(0.5),
    "while it acquires": AtTime(1.5),
    "while its request travels": AtTime(2.5),
    "while it decodes": AfterTokens(0, 3),
    "while its answer travels": AtTime(4.05),
    "while it waits to resume": AtTime(5.5),
    "while its tool answers": AtTime(8.8),
}


@pytest.mark.parametrize("when", CANCEL_TIMES.values(), ids=CANCEL_TIMES)
@pytest.mark.parametrize("schedule", [Schedule(), *(Schedule("random", seed) for seed in range(3))], ids=str)
def test_a_client_cancelled_anywhere_ends_once_and_gives_its_slot_back(when, schedule):
    case = Case(
        BUDGET,
        (Session(4, (Turn(6, 1, tool_time_s=1.0), Turn()), arrival_s=1.0), Session(4)),
        (CancelClient(when, 0), AbortAll(AfterTokens(0, 3), 0)),
        transport=Transport(server_delay_s=1.0, balancer_delay_s=1.0),
        schedule=schedule,
    )
    trace = run_world(case, load_sut(CLEAN))
    ended = [event for event in events(trace, SessionEnded) if event.session == 0]

    assert [event.outcome for event in ended] in (["cancelled"], ["ok"])
    assert len(events(trace, Cancelled)) == (ended[0].outcome == "cancelled")
    assert trace.is_done
    assert trace.events[-2].loads == (0,), "at rest nothing is in flight"
    assert judge(case, trace) == []


def test_the_server_goes_on_for_a_cancelled_client_and_its_tokens_are_discarded():
    """As with a Ray actor: cancelling the caller does not cancel the call."""
    trace = run(CancelClient(AfterTokens(0, 3), 0))
    assert decoded(trace) == [10]
    assert [event.tokens for event in events(trace, Discarded)] == [10]


def test_a_parked_request_of_a_cancelled_client_runs_after_the_resume():
    trace = run(
        AbortAll(AtTime(0.0), 0, pause_s=5.0),
        CancelClient(AtTime(2.0), 0),
        sessions=[Session(4, arrival_s=1.0)],
    )
    assert decoded(trace) == [10]
    assert trace.events[-1].t_ns == to_ns(5.1)


def test_a_session_is_cancelled_once():
    trace = run(CancelClient(AtTime(0.02), 0), CancelClient(AtTime(0.03), 0), sessions=[ONE, ONE])
    assert notes(trace) == ["", "skipped: the session has ended, or not begun"]
    assert len(events(trace, Cancelled)) == 1


def test_a_session_cancelled_before_its_first_step_ends_on_the_trace():
    seen = set()
    for seed in range(10):
        trace = run(CancelClient(AtTime(0.0), 0), schedule=Schedule("random", seed))
        assert [event.outcome for event in events(trace, SessionEnded)] in (["cancelled"], ["ok"])
        seen.add(len(trace.ledger.sessions[0].turns))
    assert seen == {0, 1}, "some of these orders cancel it before it begins, some later"


def test_two_cancels_at_one_instant_make_one_end():
    for seed in range(10):
        trace = run(*[CancelClient(AtTime(0.02), 0)] * 2, schedule=Schedule("random", seed))
        assert len(events(trace, SessionEnded)) == 1
