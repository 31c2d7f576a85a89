"""A3, A4, A8 and B5 on hand-made traces, and on the planted bugs that they are there for."""

import pytest

from sim.case import Budget, Case, Limit, ServerSettings, Session
from sim.events import (
    Admitted,
    Crashed,
    Decoded,
    Ended,
    Lost,
    Paused,
    Resumed,
    Sent,
    TurnEnded,
    TurnStarted,
    VersionChanged,
    WorldEnded,
)
from sim.invariants.judging import judge
from sim.invariants.lifecycle import MOST_SAME_REFUSALS
from sim.trace import Trace

CASE = Case(Budget(8, 10, 64), (Session(2), Session(2)))
NO_GATE = Case(Budget(8, 10, 64), (Session(2), Session(2)), server=ServerSettings(submission_gate=False))


def sent(request, session=0, prompt_tokens=2, limits=None):
    return Sent(0, request, session, 0, request, 0, prompt_tokens, {"max_tokens": 10} if limits is None else limits)


def check(number, *events, case=CASE, reason="done"):
    trace = Trace(len(case.sessions))
    for session in range(len(case.sessions)):
        trace.add(TurnStarted(0, session, 0, 2))
    for event in events:
        trace.add(event)
    trace.seal(WorldEnded(0, reason))
    return [violation.message for violation in judge(case, trace, [number])]


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        ((Paused(0, 0, 0),), True),
        ((Paused(0, 0, 0), Resumed(1, 0)), False),
        ((Paused(0, 0, 0), Resumed(1, 1)), True),
        ((Paused(0, 0, 0), Paused(1, 0, 0), Resumed(2, 0)), False),
        ((Paused(0, 0, 0), Resumed(1, 0), Paused(2, 0, 0)), True),
        ((Paused(0, 0, 0), Crashed(1, 0)), False),
        ((Paused(0, 0, 0, "keep"),), True),
    ],
)
def test_a3_each_pause_is_followed_by_a_resume_or_the_end_of_the_replica(events, broken):
    assert bool(check("A3", *events)) == broken
    assert bool(check("A3", *events, reason="deadlock")) == broken
    assert check("A3", *events, reason="horizon") == []


IN_ENGINE = (sent(0), Admitted(0, 0))
AT_WORK = (*IN_ENGINE, Decoded(0, 0, 2, 3, 0))


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        ((*AT_WORK, Ended(1, 0, "abort", 3), Paused(1, 0, 1)), False),
        ((*AT_WORK, Paused(1, 0, 1)), True),
        ((*AT_WORK, Paused(1, 1, 1)), False),
        ((*AT_WORK, Paused(1, 0, 0, "keep")), False),
        ((*IN_ENGINE, Paused(1, 0, 1)), True),
        ((sent(0), Paused(1, 0, 0), Admitted(1, 0)), False),
        ((*AT_WORK, VersionChanged(1, 0, 1)), True),
        ((*AT_WORK, VersionChanged(1, 1, 1)), False),
        ((*AT_WORK, Ended(1, 0, "stop", 3), VersionChanged(1, 0, 1)), False),
        ((*AT_WORK, Paused(1, 0, 0, "keep"), VersionChanged(1, 0, 1)), False),
        ((*AT_WORK, Paused(1, 0, 0, "keep"), Resumed(1, 0), VersionChanged(1, 0, 1)), True),
    ],
)
def test_a4_what_was_in_the_engine_before_an_abort_or_new_weights_has_ended(events, broken):
    assert bool(check("A4", *events)) == broken


def test_a4_without_a_gate_what_has_no_token_may_have_come_after_the_abort():
    assert check("A4", *IN_ENGINE, Paused(1, 0, 0), case=NO_GATE) == []
    assert len(check("A4", *AT_WORK, Paused(1, 0, 0), case=NO_GATE)) == 1


def refused(request, error="too long", **kwargs):
    return sent(request, **kwargs), Ended(0, request, "error", 0, error)


def many(times, refusal):
    return [event for request in range(times) for event in refusal(request)]


@pytest.mark.parametrize("more", [0, 1])
def test_a8_the_same_request_may_be_refused_a_few_times(more):
    assert len(check("A8", *many(MOST_SAME_REFUSALS + more, refused))) == more


@pytest.mark.parametrize(
    "refusal",
    [
        lambda request: refused(request, error=f"reason {request}"),
        lambda request: refused(request, prompt_tokens=2 + request),
        lambda request: refused(request, limits={"max_tokens": request}),
        lambda request: (*refused(request), Lost(0, request, "ServerError: no")),
        lambda request: (sent(request), Ended(0, request, "refused", 0)),
    ],
)
def test_a8_another_request_another_reason_or_a_failure_is_not_the_same(refusal):
    assert check("A8", *many(3 * MOST_SAME_REFUSALS, refusal)) == []


def turn_ended(session, error):
    return TurnEnded(1, session, 0, "error", (), None, None, None, None, error)


NO = "ServerError: no"


def test_b5_a_call_fails_with_what_its_own_request_was_told():
    failed = sent(0), Ended(0, 0, "error", 0), Lost(0, 0, NO), turn_ended(0, NO)
    assert check("B5", *failed, turn_ended(1, NO)) == [
        f"session 1 turn 0 failed with what session 0's request was told: {NO}"
    ]
    assert check("B5", *failed, turn_ended(1, "ValueError: of its own")) == []
    own = sent(1, 1), Ended(0, 1, "error", 0), Lost(0, 1, NO), turn_ended(1, NO)
    assert check("B5", *failed, *own) == []


def test_b5_sessions_that_ask_alike_are_sent_alike():
    other = {"max_tokens": 7}
    assert check("B5", sent(0), sent(1, 1)) == []
    assert len(check("B5", sent(0), sent(1, 1, limits=other))) == 1
    assert check("B5", sent(0), sent(1, 1, prompt_tokens=3, limits=other)) == []
    own = Case(CASE.budget, (Session(2), Session(2, limit=Limit("max_tokens", 7))))
    assert check("B5", sent(0), sent(1, 1, limits=other), case=own) == []
    changed = TurnEnded(1, 1, 0, "ok", (), None, None, None, "{} became {1}")
    assert check("B5", sent(0), sent(1, 1, limits=other), changed) == []
