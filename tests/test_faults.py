"""Faults: when they strike, what they do to servers, balancer and sessions, and that odd ones do no harm."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.case import (
    AbortAll,
    AbortRequest,
    AddReplica,
    AfterSent,
    AfterTokens,
    AtTime,
    Budget,
    CancelClient,
    Case,
    ClearSticky,
    DelayReleases,
    Every,
    Limit,
    RemoveReplica,
    Router,
    Schedule,
    ServerSettings,
    Session,
    Transport,
    Turn,
    WeightUpdate,
)
from sim.clock import to_ns
from sim.events import (
    Acquired,
    Cancelled,
    Discarded,
    Ended,
    FaultFired,
    Message,
    Parked,
    Paused,
    Resumed,
    Sent,
    SessionEnded,
    VersionChanged,
)
from sim.invariants.judging import judge
from sim.search.strategies import response_cases, routing_cases
from sim.sut.interface import Sut
from sim.sut.planted import PLANTED
from sim.sut.reference.client import PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.registry import CLEAN, load_sut
from sim.waste.ledger import mean_update_wait_s
from sim.world import World, run_world

BUDGET = Budget(prompt_length=4, response_length=10, max_model_len=64)
ONE = Session(4)


def run(*faults, sessions=(ONE,), sut=CLEAN, **settings):
    return run_world(Case(BUDGET, tuple(sessions), tuple(faults), **settings), load_sut(sut))


def events(trace, kind):
    return [event for event in trace.events if isinstance(event, kind)]


def notes(trace):
    return [event.note for event in events(trace, FaultFired)]


def decoded(trace, session=0):
    return [attempt.decoded_tokens for turn in trace.ledger.sessions[session].turns for attempt in turn.attempts]


# When


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


# Aborts and weight updates


def test_abort_all_pauses_one_replica_for_its_time():
    """It comes in the middle of the step of the fourth token, which goes on to its end at 0.04 s."""
    trace = run(AbortAll(AtTime(0.035), 0, pause_s=5.0), sessions=[ONE, ONE], replicas=2)

    assert [(event.replica, event.t_ns) for event in events(trace, Paused)] == [(0, to_ns(0.04))]
    assert [(event.replica, event.t_ns) for event in events(trace, Resumed)] == [(0, to_ns(5.04))]
    assert sorted(map(tuple, (decoded(trace, session) for session in (0, 1)))) == [(4, 6), (10,)]
    assert events(trace, VersionChanged) == []


def test_a_weight_update_goes_to_every_replica_after_the_pause():
    trace = run(WeightUpdate(AtTime(0.035), pause_s=2.0), sessions=[ONE, ONE], replicas=2)

    assert sorted(event.replica for event in events(trace, Paused)) == [0, 1]
    assert sorted(event.replica for event in events(trace, Resumed)) == [0, 1]
    assert [(event.version, event.t_ns) for event in events(trace, VersionChanged)] == [(1, to_ns(2.04))] * 2
    for session in (0, 1):
        (turn,) = trace.ledger.sessions[session].turns
        assert {run.version for run in turn.attempts[0].runs} == {0}
        assert {run.version for run in turn.attempts[1].runs} == {1}
        assert (turn.ended.min_version, turn.ended.max_version) == (0, 1)


def test_replicas_that_leave_are_removed_first_and_return_last():
    trace = run(
        WeightUpdate(AtTime(0.035), pause_s=2.0, leaving=(1,)),
        sessions=[ONE] * 4,
        replicas=2,
        router=Router("first"),
    )
    messages = [
        (event.kind, event.replicas, event.t_ns)
        for event in events(trace, Message)
        if event.kind in ("remove_servers", "add_servers", "clear_sticky_cache")
    ]
    assert messages == [
        ("remove_servers", (1,), to_ns(0.035)),
        ("add_servers", (1,), to_ns(2.04)),
        ("clear_sticky_cache", (), to_ns(2.04)),
    ]
    assert trace.is_done


def test_a_leaving_replica_turns_requests_away_and_the_others_park_them():
    """Someone adds the leaving replica 0 too early: what is sent there comes back and is sent again, each second."""
    trace = run(
        WeightUpdate(AtTime(0.0), pause_s=4.0, leaving=(0,)),
        AddReplica(AtTime(1.0), 0),
        sessions=[Session(4, arrival_s=1.5), Session(4, arrival_s=1.5)],
        replicas=2,
        router=Router("first"),
    )
    assert [event.outcome for event in events(trace, Ended) if event.outcome == "refused"] == ["refused"] * 3
    assert [trace.ledger.attempts[event.request].sent.replica for event in events(trace, Parked)] == [1]
    assert sorted(decoded(trace, session) for session in (0, 1)) == [[0, 0, 0, 10], [10]]


def test_weight_updates_take_turns():
    trace = run(
        WeightUpdate(AtTime(0.02), pause_s=3.0),
        WeightUpdate(AtTime(0.02), pause_s=3.0),
        AbortAll(AtTime(0.03), 0, pause_s=1.0),
    )
    kinds = [
        (type(event).__name__, event.t_ns)
        for event in trace.events
        if isinstance(event, Paused | Resumed | VersionChanged)
    ]
    assert [kind for kind, _ in kinds] == ["Paused", "VersionChanged", "Resumed"] * 2 + ["Paused", "Resumed"]
    assert trace.is_done


def test_an_update_that_waits_its_turn_leaves_the_balancer_its_last_replica():
    """Who is in the balancer is known only when the turn comes: replica 1 was removed while the first update ran."""
    trace = run(
        WeightUpdate(AtTime(0.02), pause_s=3.0),
        WeightUpdate(AtTime(0.02), pause_s=3.0, leaving=(0,)),
        RemoveReplica(AtTime(1.0), 1),
        sessions=[ONE, Session(4, arrival_s=4.0)],
        replicas=2,
    )
    assert "skipped: no replica would be left in the balancer" in notes(trace)
    assert {event.outcome for event in events(trace, SessionEnded)} == {"ok"}


def test_abort_request_ends_only_that_sessions_request():
    trace = run(AbortRequest(AfterTokens(1, 4), 1), sessions=[ONE, ONE])
    assert [decoded(trace, session) for session in (0, 1)] == [[10], [4, 6]]


# Cancelled clients


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


# The balancer


def test_the_last_replica_stays_in_the_balancer():
    trace = run(RemoveReplica(AtTime(0.0), 0), RemoveReplica(AtTime(0.0), 1), replicas=2)
    assert notes(trace) == ["", "skipped: no replica would be left in the balancer"]


def test_requests_of_a_removed_replica_go_on_there_and_the_resume_goes_elsewhere():
    trace = run(
        AbortAll(AfterTokens(0, 4), 0),
        RemoveReplica(AfterTokens(0, 2), 0),
        replicas=2,
        router=Router("first"),
    )
    assert decoded(trace) == [4, 6]
    assert [event.replica for event in events(trace, Acquired)] == [0, 1]


def test_removing_and_adding_twice_is_harmless():
    faults = [AddReplica(AtTime(0.01), 0), RemoveReplica(AtTime(0.02), 1), RemoveReplica(AtTime(0.02), 1)]
    faults += [AddReplica(AtTime(0.03), 1), AddReplica(AtTime(0.03), 1)]
    case = Case(BUDGET, (ONE, ONE, Session(4, arrival_s=0.05)), tuple(faults), replicas=3)
    trace = run_world(case, load_sut(CLEAN))
    assert judge(case, trace) == []
    assert trace.events[-2].loads == (0, 0, 0)


def test_clear_sticky_lets_a_session_choose_anew():
    """Two turns; the first replica is busier when the second turn comes."""
    sessions = [
        Session(4, (Turn(2, 1, tool_time_s=0.05), Turn(2))),
        Session(4, (Turn(),), arrival_s=0.005),
        Session(4, (Turn(),), arrival_s=0.006),
    ]
    for fault, replicas in ((None, [0, 0]), (ClearSticky(AtTime(0.05)), [0, 1])):
        trace = run(
            *([fault] if fault else []),
            AddReplica(AtTime(0.04), 1),
            RemoveReplica(AtTime(0.0), 1),
            sessions=sessions,
            replicas=2,
            router=Router("first"),
        )
        assert [event.replica for event in events(trace, Acquired) if event.session == 0] == replicas


def test_a_balancer_without_clear_sticky_cache_is_said_to_have_none():
    class Older(LeastLoadedBalancer):
        clear_sticky_cache = None

    older = Sut("older", "older", lambda context: PinnedClient(context.config, context.make_balancer(Older)))
    trace = run_world(Case(BUDGET, (ONE,), (ClearSticky(AtTime(0.01)),)), older)
    assert notes(trace) == ["this balancer has no clear_sticky_cache"]


def test_overlapping_release_delays_add_up():
    faults = [DelayReleases(AtTime(0.0), 1.0), DelayReleases(AtTime(0.0), 2.0, 0.15)]
    trace = run(*faults, sessions=[Session(4, (Turn(),)), Session(4, arrival_s=0.1)])
    releases = [event.t_ns for event in events(trace, Message) if event.kind == "release_server"]
    assert releases == [to_ns(0.2 + 1.0), to_ns(0.1 + 3.0)]


def test_an_explicit_limit_is_spread_over_aborts():
    trace = run(AbortAll(AfterTokens(0, 2), 0), sessions=[Session(4, limit=Limit("max_new_tokens", 5))])
    assert decoded(trace) == [2, 3]
    assert [event.limits for event in events(trace, Sent)] == [{"max_new_tokens": 5}, {"max_new_tokens": 3}]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
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
