"""World: from a Case to a Trace; schedules, the ends of a run, and what it leaves as it was."""

import asyncio
import logging
import random
import time
import uuid

import pytest

from sim.case import (
    Case,
    Schedule,
    Session,
    Turn,
)
from sim.clock import to_ns
from sim.events import Logged, Message, Sent, SessionEnded, TurnEnded, WorldEnded
from sim.faults import (
    AbortAll,
    AfterTokens,
    AtTime,
    CancelClient,
    WeightUpdate,
)
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut
from sim.world import World, run_world
from sim.world.bounds import bounds_of
from sim.world.world import AT_REST
from tests.world.worlds import BUDGET, ONE, decoded, events, sut

# Schedules


def test_every_tie_is_the_orders_to_break():
    """Two sessions at one instant: some random order sends the second one first, FIFO never does."""
    case = Case(BUDGET, (ONE, ONE))
    first = {
        events(run_world(Case(BUDGET, case.sessions, schedule=schedule), load_sut(CLEAN)), Sent)[0].session
        for schedule in (Schedule("random", seed) for seed in range(20))
    }
    assert first == {0, 1}
    assert events(run_world(case, load_sut(CLEAN)), Sent)[0].session == 0


def test_a_random_schedule_is_replayed_by_its_deviations():
    sessions = tuple(Session(4, (Turn(3, 1), Turn())) for _ in range(4))
    faults = (WeightUpdate(AtTime(0.05)), AbortAll(AfterTokens(1, 2), 0))
    for seed in range(10):
        case = Case(BUDGET, sessions, faults, replicas=2, schedule=Schedule("random", seed))
        world = World(case, load_sut(CLEAN))
        digest = world.run().digest()
        deviations = tuple((step, pick) for step, pick in world.deviations)
        assert deviations
        explicit = Case(BUDGET, sessions, faults, replicas=2, schedule=Schedule("explicit", deviations=deviations))
        again = World(explicit, load_sut(CLEAN))
        assert again.run().digest() == digest
        assert again.deviations == world.deviations


# How a run ends


def last(trace):
    return trace.events[-1]


def test_a_run_ends_with_the_balancers_counts_at_rest():
    trace = run_world(Case(BUDGET, (ONE, ONE), replicas=2), load_sut(CLEAN))
    assert events(trace, Message)[-1] == Message(to_ns(0.1), AT_REST, None, None, (), (0, 0), 0, 0)
    assert last(trace) == WorldEnded(to_ns(0.1), "done")


def test_a_client_that_waits_for_ever_is_a_deadlock_that_names_it():
    class Waiting(PinnedClient):
        async def generate(self, request_id, **kwargs):
            await asyncio.get_running_loop().create_future()

    trace = run_world(Case(BUDGET, (ONE,)), sut(Waiting))
    assert last(trace).reason == "deadlock"
    assert any("session 0" in task and "Waiting.generate" in awaited for task, awaited in last(trace).waiting)


def test_a_client_that_polls_without_letting_time_pass_is_a_livelock():
    class Polling(PinnedClient):
        async def generate(self, request_id, **kwargs):
            while True:
                await asyncio.sleep(0)

    trace = run_world(Case(BUDGET, (ONE,)), sut(Polling))
    assert last(trace).reason == "livelock"
    assert "session 0" in last(trace).waiting[0][1]


def test_a_client_that_polls_for_ever_meets_the_horizon():
    class Sleeping(PinnedClient):
        async def generate(self, request_id, **kwargs):
            while True:
                await asyncio.sleep(1)

    case = Case(BUDGET, (ONE,))
    trace = run_world(case, sut(Sleeping))
    assert last(trace).reason == "horizon"
    assert last(trace).t_ns <= to_ns(bounds_of(case).virtual_s)


def test_a_client_that_fails_ends_its_turn_and_session_with_its_error():
    class Failing(PinnedClient):
        async def generate(self, request_id, **kwargs):
            raise ZeroDivisionError("nothing to divide by")

    trace = run_world(Case(BUDGET, (ONE, ONE)), sut(Failing))
    assert [event.error for event in events(trace, TurnEnded)] == ["ZeroDivisionError: nothing to divide by"] * 2
    assert [event.outcome for event in events(trace, SessionEnded)] == ["error", "error"]
    assert trace.is_done


@pytest.mark.parametrize("answer", [None, "text", 3, {"token_ids": [1]}])
def test_a_client_that_returns_no_answer_is_an_error_of_its_session(answer):
    class Mute(PinnedClient):
        async def generate(self, request_id, **kwargs):
            return answer

    trace = run_world(Case(BUDGET, (ONE,)), sut(Mute))
    assert events(trace, SessionEnded)[0].outcome == "error"


def test_a_client_that_swallows_its_cancellation_is_no_hang():
    class Stubborn(PinnedClient):
        async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
            while True:
                try:
                    return await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)
                except asyncio.CancelledError:
                    continue

    case = Case(BUDGET, (ONE,), (CancelClient(AfterTokens(0, 3), 0),))
    trace = run_world(case, sut(Stubborn))
    assert decoded(trace) == [10, 10]
    assert events(trace, SessionEnded)[0].outcome == "ok"


# What a world leaves as it was


def test_nothing_of_the_process_is_changed_or_used():
    random.seed(7)
    before = random.getstate()
    names = (time.time, time.monotonic, time.sleep, uuid.uuid4, random.choice)
    handlers = logging.getLogger().handlers[:]
    started = time.monotonic()

    trace = run_world(Case(BUDGET, (ONE,), (AbortAll(AfterTokens(0, 3), 0, pause_s=1e5),)), load_sut(CLEAN))

    assert trace.is_done
    assert time.monotonic() - started < 10
    assert random.getstate() == before
    assert (time.time, time.monotonic, time.sleep, uuid.uuid4, random.choice) == names
    assert logging.getLogger().handlers == handlers


def test_warnings_of_the_system_under_test_are_on_the_trace_and_not_on_the_terminal(capfd):
    class Warning(PinnedClient):
        async def generate(self, request_id, **kwargs):
            logging.getLogger("client").warning("at %s", 3)
            logging.getLogger("client").info("unheard")
            return await super().generate(request_id, **kwargs)

    trace = run_world(Case(BUDGET, (ONE,)), sut(Warning))
    assert events(trace, Logged) == [Logged(0, "client", "at 3")]
    assert capfd.readouterr() == ("", "")
