"""When faults strike: at a time, after tokens or requests, again and again."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.case import Case, Schedule, ServerSettings, Session, Turn
from sim.clock import to_ns
from sim.events import FaultFired, Sent, VersionChanged
from sim.faults import (
    AbortAll,
    AfterSent,
    AfterTokens,
    AtTime,
    Every,
    WeightUpdate,
)
from sim.invariants.judging import judge
from sim.search.strategies import response_cases, routing_cases
from sim.sut.planted import PLANTED
from sim.sut.registry import CLEAN, load_sut
from sim.waste.ledger import mean_update_wait_s
from sim.world import World, run_world
from tests.faults.worlds import BUDGET, ONE, decoded, events, notes, run


@pytest.mark.parametrize("tokens", range(1, 10))
def test_after_tokens_strikes_at_exactly_that_token(tokens):
    assert decoded(run(AbortAll(AfterTokens(0, tokens), 0))) == [tokens, 10 - tokens]


def test_after_tokens_counts_over_all_requests_of_the_session():
    trace = run(*(AbortAll(AfterTokens(0, tokens), 0) for tokens in (3, 4, 8)))
    assert decoded(trace) == [3, 1, 4, 2]


def test_after_tokens_counts_over_turns():
    trace = run(AbortAll(AfterTokens(0, 5), 0), sessions=[Session(4, (Turn(3, 1), Turn(4)))])
    assert decoded(trace) == [3, 2, 2]


def test_after_tokens_looks_at_its_own_session():
    trace = run(AbortAll(AfterTokens(1, 2), 0), sessions=[Session(4), Session(4, arrival_s=0.04)])
    assert [decoded(trace, session)[0] for session in (0, 1)] == [6, 2]


@pytest.mark.parametrize("when", [AfterTokens(0, 11), AfterSent(0, 2), AtTime(100.0)])
def test_what_never_comes_is_forgotten_when_the_sessions_are_over(when):
    trace = run(AbortAll(when, 0))
    assert notes(trace) == []
    assert trace.is_done
    assert trace.events[-1].t_ns == to_ns(0.1)


def test_after_the_last_token_the_abort_finds_nothing():
    assert decoded(run(AbortAll(AfterTokens(0, 10), 0))) == [10]


def test_after_sent_counts_requests_from_1():
    trace = run(AbortAll(AfterSent(0, 1), 0), AbortAll(AfterSent(0, 2), 0), server=ServerSettings(prefill_s=1.0))
    fired = [event.t_ns for event in events(trace, FaultFired)]
    sent = [event.t_ns for event in events(trace, Sent)]
    assert fired == sent[:2]


def test_a_trigger_that_has_come_before_anyone_waits_strikes_at_once():
    faults = [AbortAll(AfterSent(0, 1), 0), AbortAll(AfterSent(0, 1), 0), AbortAll(AfterTokens(0, 3), 0)]
    for seed in range(20):
        trace = run(*faults, schedule=Schedule("random", seed))
        assert notes(trace) == ["", "", ""]
        assert trace.is_done


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(response_cases(), routing_cases()),
    st.sampled_from([CLEAN, *(f"reference:{planted}" for planted in PLANTED)]),
    st.sampled_from([0.003, 0.02, 0.25, 1.0]),
    st.booleans(),
)
def test_whatever_comes_again_and_again_a_world_ends_and_a_good_client_is_through(case, sut, time_s, has_gate):
    faults = tuple(replace(fault, at=Every(time_s)) for fault in case.faults)
    world = World(replace(case, faults=faults, server=replace(case.server, submission_gate=has_gate)), load_sut(sut))
    trace = world.run()
    assert world.steps < 1_000_000
    assert trace.is_done or sut != CLEAN


def test_what_lets_nothing_through_stops_and_says_so():
    """Each abort comes before the first token: without the gate nobody waits for it."""
    server = ServerSettings(prefill_s=0.5, submission_gate=False, engine=None)
    trace = run_world(Case(BUDGET, (ONE,), (AbortAll(Every(0.1), 0),), server=server), load_sut(CLEAN))
    assert trace.is_done
    fired = [event for event in trace.events if isinstance(event, FaultFired)]
    assert fired[-1].note.startswith("comes no more: it did so ")
    assert not any(event.note for event in fired[:-1])
    assert not judge(Case(BUDGET, (ONE,)), trace)


def test_each_update_that_was_made_is_seen_as_made_the_last_one_too():
    """What tells of an update that did nothing is its note."""
    server = ServerSettings(prefill_s=0.5, submission_gate=False, engine=None)
    case = Case(BUDGET, (ONE,), (WeightUpdate(Every(0.1), pause_s=0.0),), server=server)
    trace = run_world(case, load_sut(CLEAN))
    made = [event for event in trace.events if isinstance(event, FaultFired) and not event.note]
    assert len(made) == len([event for event in trace.events if isinstance(event, VersionChanged)])
    assert mean_update_wait_s(case, trace) == 0
