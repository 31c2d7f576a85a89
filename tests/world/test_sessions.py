"""Sessions and their turns: prompts, budgets, limits, and what ends them."""

import pytest

from sim.case import (
    Budget,
    Case,
    ClientView,
    Limit,
    Session,
    Turn,
)
from sim.clock import to_ns
from sim.events import Sent, SessionEnded
from sim.faults import (
    AbortAll,
    AfterTokens,
)
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world
from tests.world.worlds import BUDGET, ONE, decoded, events, sut


def test_turns_continue_from_what_came_before():
    session = Session(4, (Turn(2, 3, tool_time_s=1.0), Turn(1, 1), Turn(1)))
    trace = run_world(Case(BUDGET, (session,)), load_sut(CLEAN))

    assert [turn.started.prompt_tokens for turn in trace.ledger.sessions[0].turns] == [4, 9, 11]
    assert events(trace, SessionEnded) == [SessionEnded(to_ns(1.04), 0, "ok", 8, 8)]


@pytest.mark.parametrize(
    ("turns", "started", "response", "kept"),
    [
        ((Turn(10), Turn(1)), 1, 10, 10),  # the first turn uses up response_length
        ((Turn(4, 6), Turn(1)), 1, 4, 4),  # the tool's answer would
        ((Turn(4, 5), Turn(1)), 2, 10, 10),
        ((Turn(4, 5), Turn(3)), 2, 12, 10),  # the slice drops 2 tokens
    ],
)
def test_response_length_ends_the_turns_and_slices_the_rest(turns, started, response, kept):
    trace = run_world(Case(BUDGET, (Session(4, turns),)), load_sut(CLEAN))
    (ended,) = events(trace, SessionEnded)
    assert len(trace.ledger.sessions[0].turns) == started
    assert (ended.response_tokens, ended.kept_tokens) == (response, kept)


def test_a_response_at_response_length_calls_no_tool():
    session = Session(4, (Turn(10, tool_time_s=1.0), Turn(1)))
    assert events(run_world(Case(BUDGET, (session,)), load_sut(CLEAN)), SessionEnded)[0].t_ns == to_ns(0.1)


def test_attempts_are_numbered_within_their_turn():
    faults = (AbortAll(AfterTokens(0, 2), 0), AbortAll(AfterTokens(0, 6), 0))
    trace = run_world(Case(BUDGET, (Session(4, (Turn(3, 1), Turn(5))),), faults), load_sut(CLEAN))
    assert [(event.turn, event.attempt) for event in events(trace, Sent)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_model_that_stops_late_stops_at_its_place_after_aborts():
    faults = (AbortAll(AfterTokens(0, 3), 0), AbortAll(AfterTokens(0, 5), 0))
    trace = run_world(Case(BUDGET, (Session(4, (Turn(7),)),), faults), load_sut(CLEAN))
    assert decoded(trace) == [3, 2, 2]
    assert trace.ledger.attempts[-1].ended[0].outcome == "stop"


@pytest.mark.parametrize(
    ("spelling", "limits"),
    [
        ("max_tokens", {"max_tokens": 3}),
        ("max_new_tokens", {"max_new_tokens": 3}),
    ],
)
def test_a_limit_is_sent_as_it_is_spelled(spelling, limits):
    trace = run_world(Case(BUDGET, (Session(4, limit=Limit(spelling, 3)),)), load_sut(CLEAN))
    assert events(trace, Sent)[0].limits == limits
    assert decoded(trace) == [3]


def test_the_client_sees_its_own_view_of_the_config():
    seen = []

    class Looking(PinnedClient):
        async def generate(self, request_id, **kwargs):
            seen.append(getattr(self.config.actor_rollout_ref.rollout, "response_length", "missing"))
            return await super().generate(request_id, **kwargs)

    for view in (None, ClientView(), ClientView(None), ClientView("8")):
        run_world(Case(Budget(4, 10, 64, client_view=view), (ONE,)), sut(Looking))
    assert seen == [10, "missing", None, "8"]


@pytest.mark.parametrize("partial_rollout", [True, False])
def test_partial_rollout_off_means_no_resume(partial_rollout):
    case = Case(BUDGET, (ONE,), (AbortAll(AfterTokens(0, 3), 0),), partial_rollout=partial_rollout)
    assert decoded(run_world(case, load_sut(CLEAN))) == ([3, 7] if partial_rollout else [3])
