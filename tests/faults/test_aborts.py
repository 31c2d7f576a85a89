"""Aborts of a replica, and of one request by its id."""

from sim.case import Limit, Session
from sim.clock import to_ns
from sim.events import Paused, Resumed, Sent, VersionChanged
from sim.faults import (
    AbortAll,
    AbortRequest,
    AfterTokens,
    AtTime,
)
from tests.faults.worlds import ONE, decoded, events, run


def test_abort_all_pauses_one_replica_for_its_time():
    """It comes in the middle of the step of the fourth token, which goes on to its end at 0.04 s."""
    trace = run(AbortAll(AtTime(0.035), 0, pause_s=5.0), sessions=[ONE, ONE], replicas=2)

    assert [(event.replica, event.t_ns) for event in events(trace, Paused)] == [(0, to_ns(0.04))]
    assert [(event.replica, event.t_ns) for event in events(trace, Resumed)] == [(0, to_ns(5.04))]
    assert sorted(map(tuple, (decoded(trace, session) for session in (0, 1)))) == [(4, 6), (10,)]
    assert events(trace, VersionChanged) == []


def test_abort_request_ends_only_that_sessions_request():
    trace = run(AbortRequest(AfterTokens(1, 4), 1), sessions=[ONE, ONE])
    assert [decoded(trace, session) for session in (0, 1)] == [[10], [4, 6]]


def test_an_explicit_limit_is_spread_over_aborts():
    trace = run(AbortAll(AfterTokens(0, 2), 0), sessions=[Session(4, limit=Limit("max_new_tokens", 5))])
    assert decoded(trace) == [2, 3]
    assert [event.limits for event in events(trace, Sent)] == [{"max_new_tokens": 5}, {"max_new_tokens": 3}]
