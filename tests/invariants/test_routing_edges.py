"""Routing invariants, one step to either side of where they speak: hand-made messages to a balancer.

What is here kills mutants (docs/mutation.md) that the tests of whole worlds let live.
"""

import pytest

from sim.case import Budget, Case, Session
from sim.events import Delivered, Ended, Message, Sent, TurnEnded, TurnStarted, WorldEnded
from sim.invariants.judging import judge
from sim.sut.verl.balancer import PROTOCOL
from sim.trace import Trace

BUDGET = Budget(prompt_length=8, response_length=10, max_model_len=64)
ROUTING = ("R1", "R2", "R3", "R4", "R5", "R7")


def message(kind, session, replicas, loads=None, total=None, turn=0, error=None):
    return Message(0, kind, session, turn, replicas, loads, total, 0, error)


def acquire(session, *replicas, **shown):
    return message("acquire_server", session, replicas, **shown)


def release(session, *replicas, **shown):
    return message("release_server", session, replicas, **shown)


def add(*replicas):
    return message("add_servers", None, replicas, turn=None)


def remove(*replicas):
    return message("remove_servers", None, replicas, turn=None)


def told(*events, replicas=2, sessions=4, outcome="ok"):
    """The violations of these messages, by number. Every session has one turn, and it ended."""
    trace = Trace(sessions, PROTOCOL.roles)
    for session in range(sessions):
        trace.add(TurnStarted(0, session, 0, 2))
    for event in events:
        trace.add(event)
    for session in range(sessions):
        trace.add(TurnEnded(0, session, 0, outcome, (), None, None, None, None))
    trace.seal(WorldEnded(0, "done"))
    case = Case(BUDGET, (Session(2),) * sessions, replicas=replicas)
    found = {}
    for violation in judge(case, trace, ROUTING):
        found.setdefault(violation.invariant, []).append(violation.message)
    return found


def one_by_one(*picks, begin=0):
    """One session after the other is sent to these replicas, and leaves."""
    events = []
    for session, replica in enumerate(picks, begin):
        events += [acquire(session, replica), release(session, replica)]
    return events


# R2, R5


def test_r2_a_session_whose_replica_lives_stays_whoever_else_leaves():
    events = [acquire(0, 0), acquire(1, 1), remove(1), acquire(0, 2), release(0, 0), release(0, 2), release(1, 1)]
    assert set(told(*events, replicas=3)) == {"R2"}


def test_r5_who_was_sent_to_a_removed_replica_may_leave_it():
    events = [remove(0), acquire(0, 0), release(0, 0), acquire(0, 1), release(0, 1)]
    assert set(told(*events)) == {"R5"}


# R3


def test_r3_a_release_that_failed_gave_nothing_back():
    events = [acquire(0, 0), release(0, 0, error="KeyError: 'r0'")]
    assert told(*events) == {
        "R3": ["at rest replica 0 still counts a request of session 0, whose turn 0 ended well"],
    }


@pytest.mark.parametrize(
    "nothing",
    [acquire(0), acquire(None, 0), acquire(None), release(0), release(None, 0), release(0, 1)],
    ids=["no replica", "nobody", "neither", "release of no replica", "by nobody", "of what was not acquired"],
)
def test_r3_a_message_about_nothing_counts_nothing(nothing):
    assert told(nothing, acquire(1, 0, loads=(1, 0), total=1), release(1, 0, loads=(0, 0), total=0)) == {}


def test_r3_the_first_wrong_count_is_told_alone():
    wrong = told(acquire(0, 0, loads=(2, 0)), acquire(1, 1, loads=(2, 1)), release(0, 0), release(1, 1))
    (text,) = wrong["R3"]
    assert text.startswith("after message 0 (acquire_server) the balancer counts 2 requests on replica 0; 1 are ")


def test_r3_counts_that_add_up_are_still_wrong_one_by_one():
    (text,) = told(acquire(0, 0, loads=(0, 1), total=1), release(0, 0))["R3"]
    assert "the balancer counts 0 requests on replica 0; 1 are acquired" in text


@pytest.mark.parametrize(("total", "broken"), [(0, True), (1, False), (2, True)])
def test_r3_holds_the_total_to_both_sides(total, broken):
    assert bool(told(acquire(0, 0, loads=(1, 0), total=total), release(0, 0))) == broken


@pytest.mark.parametrize(("shown", "broken"), [(0, False), (-1, True)])
def test_r3_a_late_release_of_an_earlier_life_takes_nothing_off(shown, broken):
    assert bool(told(acquire(0, 0), remove(0), add(0), release(0, 0, loads=(shown, 0)))) == broken


def test_r3_a_session_may_hold_two_slots_of_a_replica():
    events = [acquire(0, 0, loads=(1, 0)), acquire(0, 0, loads=(2, 0)), release(0, 0, loads=(1, 0))]
    assert told(*events, release(0, 0, loads=(0, 0))) == {}


# R4


def test_r4_does_not_judge_where_the_true_loads_are_not_known():
    """Replica 1 left with a request and returned: it counts none or one, and so may not have been among the equals."""
    events = [acquire(0, 1), remove(1), add(1), *one_by_one(*[0] * 40, begin=1), release(0, 1)]
    assert told(*events, sessions=41) == {}
    assert set(told(*one_by_one(*[0] * 40), sessions=41)) == {"R4"}


def test_r4_leaves_a_choice_that_was_none_of_the_equals_to_r1():
    events = [acquire(0, 2), *one_by_one(*[2] * 10, begin=1), release(0, 2)]
    assert set(told(*events, replicas=3, sessions=11)) == {"R1"}


@pytest.mark.parametrize(("chosen", "broken"), [(143, False), (144, True)])
def test_r4_goes_by_the_exact_chance(chosen, broken):
    """Of 200 choices between two, this many fell on one; the bound for many choices would not accuse so soon."""
    picks = [0] * chosen + [1] * (200 - chosen)
    assert bool(told(*one_by_one(*picks), sessions=200)) == broken


# R7


def test_r7_looks_at_the_attempt_that_the_slot_was_for():
    """Two turns: the second asks for a server three times, and is cancelled in its third attempt."""
    trace = Trace(1, PROTOCOL.roles)
    attempts = [(0, 0, True), (1, 0, True), (1, 1, True), (1, 2, False)]
    for request, (turn, number, is_answered) in enumerate(attempts):
        if number == 0:
            trace.add(TurnStarted(0, 0, turn, 2))
        trace.add(acquire(0, 0, turn=turn))
        trace.add(Sent(0, request, 0, turn, number, 0, 2, {}))
        trace.add(Ended(0, request, "abort", 0))
        if is_answered:
            trace.add(Delivered(0, request, 0))
            trace.add(release(0, 0, turn=turn))
        if request in (0, 3):
            trace.add(TurnEnded(0, 0, turn, "ok" if turn == 0 else "cancelled", (), None, None, None, None))
    trace.seal(WorldEnded(0, "done"))
    (violation,) = judge(Case(BUDGET, (Session(2),)), trace, ["R7"])
    assert violation.message == (
        "session 0 turn 1 was cancelled while it decoded, and its slot on replica 0 was never given back"
    )


def test_r7_a_message_that_names_no_turn_is_of_the_first():
    assert set(told(acquire(0, 0, turn=None), outcome="error")) == {"R7"}
