"""Replicas that come and go, a cache that is cleared, and releases that are late."""

from sim.case import Case, Router, Session, Turn
from sim.clock import to_ns
from sim.events import Acquired, Message
from sim.faults import (
    AbortAll,
    AddReplica,
    AfterTokens,
    AtTime,
    ClearSticky,
    DelayReleases,
    RemoveReplica,
)
from sim.invariants.judging import judge
from sim.sut.reference.client import PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.world import run_world
from tests.faults.worlds import BUDGET, ONE, decoded, events, notes, run


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

    older = sut_of("older", lambda context: PinnedClient(context.config, context.make_balancer(Older)))
    trace = run_world(Case(BUDGET, (ONE,), (ClearSticky(AtTime(0.01)),)), older)
    assert notes(trace) == ["this balancer has no clear_sticky_cache"]


def test_overlapping_release_delays_add_up():
    faults = [DelayReleases(AtTime(0.0), 1.0), DelayReleases(AtTime(0.0), 2.0, 0.15)]
    trace = run(*faults, sessions=[Session(4, (Turn(),)), Session(4, arrival_s=0.1)])
    releases = [event.t_ns for event in events(trace, Message) if event.kind == "release_server"]
    assert releases == [to_ns(0.2 + 1.0), to_ns(0.1 + 3.0)]
