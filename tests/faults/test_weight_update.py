"""Weight updates: every replica pauses, takes the new weights and resumes; some may leave meanwhile."""

from sim.case import Router, Session
from sim.clock import to_ns
from sim.events import Ended, Message, Parked, Paused, Resumed, SessionEnded, VersionChanged
from sim.faults import (
    AbortAll,
    AddReplica,
    AtTime,
    RemoveReplica,
    WeightUpdate,
)
from tests.faults.worlds import ONE, decoded, events, notes, run


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
