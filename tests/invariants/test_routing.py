"""Routing invariants: each catches its planted bug in one small case, and passes the known-good balancer there."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.case import Budget, Case, Router, Session, Transport, Turn
from sim.events import Message, TurnEnded, TurnStarted, WorldEnded
from sim.faults import AbortAll, AddReplica, AfterTokens, AtTime, CancelClient, ClearSticky, RemoveReplica, WeightUpdate
from sim.invariants.judging import judge
from sim.invariants.routing import chance_of
from sim.invariants.routing_log import RoutingWatch
from sim.policies import in_force
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.trace import Trace
from sim.world import run_world

BUDGET = Budget(prompt_length=8, response_length=10, max_model_len=64)
ONE = Session(2)


def found(sut, case):
    return {violation.invariant: violation.message for violation in judge(case, run_world(case, load_sut(sut)))}


def apart(count, seconds):
    """Sessions that arrive one after the other."""
    return tuple(Session(2, arrival_s=number * seconds) for number in range(count))


TWO_TURNS = Session(2, (Turn(2, 1, tool_time_s=1.0), Turn(2)))

SMALLEST = {
    "routes-anywhere": (
        "R1",
        Case(BUDGET, (ONE,) * 4, replicas=4),
        None,
    ),
    "forgets-session": (
        "R2",
        Case(BUDGET, (Session(2, (Turn(1, 1), Turn(1, 1), Turn(1, 1), Turn(1))),), replicas=4),
        None,
    ),
    "zeroes-count": (
        "R3",
        Case(BUDGET, (ONE,), (AddReplica(AfterTokens(0, 3), 0),)),
        "after message 1 (add_servers) the balancer counts 0 requests on replica 0; 1 are acquired and not released",
    ),
    "favourite": ("R4", Case(BUDGET, apart(40, 1.0), replicas=2), None),
    "routes-to-removed": (
        "R5",
        Case(BUDGET, (TWO_TURNS,), (RemoveReplica(AtTime(0.5), 0), AddReplica(AtTime(0.0), 1)), replicas=2, seed=1),
        None,
    ),
    "leaks-slot": (
        "R7",
        Case(BUDGET, (ONE,), (CancelClient(AfterTokens(0, 3), 0),)),
        "session 0 turn 0 was cancelled while it decoded, and its slot on replica 0 was never given back",
    ),
}


@pytest.mark.parametrize(("bug", "number", "case", "message"), [(bug, *rest) for bug, rest in SMALLEST.items()])
def test_each_catches_its_planted_bug_and_passes_the_known_good(bug, number, case, message):
    violations = found(f"reference:{bug}", case)
    assert number in violations
    if message is not None:
        assert violations[number] == message
    assert found(CLEAN, case) == {}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "faults",
    [
        (WeightUpdate(AtTime(0.05), 1.0, (0, 1)),),
        (RemoveReplica(AtTime(0.05), 0), AddReplica(AtTime(0.3), 0), ClearSticky(AtTime(0.4))),
        (AbortAll(AtTime(0.05), 1, 1.0), AddReplica(AtTime(0.06), 1)),
        (CancelClient(AtTime(0.03), 1), CancelClient(AfterTokens(3, 1), 3), RemoveReplica(AtTime(0.04), 2)),
    ],
    ids=["update", "leave and return", "added twice", "cancelled"],
)
@pytest.mark.parametrize("sticky", [True, False])
def test_the_known_good_balancer_counts_right_while_replicas_come_and_go(faults, sticky, seed):
    sessions = tuple(Session(2, (Turn(5, 1), Turn(3)), arrival_s=0.02 * number) for number in range(12))
    assert found(CLEAN, Case(BUDGET, sessions, faults, 3, router=Router(sticky=sticky), seed=seed)) == {}


# Hand-made messages

ROLES = {
    "acquire_server": "acquire",
    "release_server": "release",
    "add_servers": "add",
    "remove_servers": "remove",
    "clear_sticky_cache": "clear_sticky",
}


def acquire(session, replica, loads=None, turn=0):
    return Message(0, "acquire_server", session, turn, (replica,), loads, None, 0)


def release(session, replica, loads=None, total=None):
    return Message(0, "release_server", session, 0, (replica,), loads, total, 0)


def add(*replicas, loads=None):
    return Message(0, "add_servers", None, None, replicas, loads, None, 0)


def remove(*replicas):
    return Message(0, "remove_servers", None, None, replicas, None, None, 0)


CLEAR = Message(0, "clear_sticky_cache", None, None, (), None, None, 0)


def log(*messages, replicas=2, sessions=4, outcome="ok", reason="done", **settings):
    """What the invariants say of these messages; every session has one turn, which ended."""
    case = Case(BUDGET, (ONE,) * sessions, replicas=replicas, **settings)
    trace = Trace(sessions, ROLES)
    watch = RoutingWatch(case, in_force(case.policies, {}))
    for message in messages:
        trace.add(message)
        watch.handle(message, ROLES[message.kind])
    for session in range(sessions):
        trace.add(TurnStarted(0, session, 0, 2))
        trace.add(TurnEnded(0, session, 0, outcome, (), None, None, None, None))
    trace.seal(WorldEnded(0, reason))
    violations = {
        number: [violation.message for violation in judge(case, trace, [number])]
        for number in ("R1", "R2", "R3", "R4", "R5", "R7")
    }
    return {number: messages for number, messages in violations.items() if messages}, watch.log


def broken(*messages, **settings):
    """The invariants that these messages break; requests that were never released apart."""
    return set(log(*messages, **settings)[0]) - {"R3"}


def test_r1_goes_by_the_messages_delivered_to_the_balancer():
    assert broken(acquire(0, 0), acquire(1, 1), acquire(2, 0)) == set()
    assert broken(acquire(0, 0), acquire(1, 0)) == {"R1"}
    assert broken(acquire(0, 0), release(0, 0), acquire(1, 0)) == set()


def test_r1_judges_only_free_choices():
    assert broken(acquire(0, 0), acquire(0, 0), acquire(0, 0)) == set(), "it sticks"
    assert broken(acquire(0, 0), acquire(0, 0), CLEAR, acquire(0, 0)) == {"R1"}
    assert broken(acquire(0, 1), acquire(1, 0), acquire(1, 0), remove(1), acquire(0, 0)) == set(), "the only one"


def test_r1_lets_a_balancer_forget_or_remember_the_requests_of_a_replica_that_left():
    before = (acquire(0, 0), acquire(1, 1), remove(0), add(0))
    assert broken(*before, acquire(2, 0)) == set(), "replica 0 counts 0: its old request is of an earlier epoch"
    assert broken(*before, acquire(2, 1)) == set(), "replica 0 counts 1 still: both are equal"
    assert broken(*before, acquire(2, 1), acquire(3, 1)) == {"R1"}


def test_r2_a_session_stays():
    assert broken(acquire(0, 0), acquire(0, 1)) == {"R2"}
    assert broken(acquire(0, 0), remove(0), acquire(0, 1)) == set()
    assert broken(acquire(0, 0), remove(0), add(0), acquire(0, 1)) == set(), "its replica was away in between"
    assert broken(acquire(0, 0), remove(0), add(0), acquire(0, 0)) == set()
    assert broken(acquire(0, 0), remove(0), add(0), acquire(0, 0), acquire(0, 1)) == {"R2"}
    assert broken(acquire(0, 0), CLEAR, acquire(0, 1)) == set()


@pytest.mark.parametrize("replica", [0, 1])
def test_r1_and_r2_take_no_offence_at_either_where_stickiness_is_off(replica):
    assert broken(acquire(0, 0), acquire(0, replica), router=Router(sticky=False)) == set()


def test_r1_judges_who_moves_where_stickiness_is_off():
    assert broken(acquire(0, 0), acquire(1, 1), acquire(0, 1), router=Router(sticky=False)) == set()
    assert broken(acquire(0, 0), acquire(1, 1), acquire(2, 1), acquire(0, 1), router=Router(sticky=False)) == {"R1"}


def test_r3_compares_what_the_balancer_shows():
    wrong, _ = log(acquire(0, 0, loads=(1, 0)), release(0, 0, loads=(1, 0)))
    assert wrong["R3"] == [
        "after message 1 (release_server) the balancer counts 1 requests on replica 0; 0 are acquired and not released"
    ]
    wrong, _ = log(acquire(0, 0, loads=(1, 0)), release(0, 0, loads=(-1, 0)))
    assert "the balancer counts -1 requests on replica 0" in wrong["R3"][0]
    wrong, _ = log(acquire(0, 0, loads=(1, 0)), release(0, 0, loads=(0, 0), total=2))
    assert wrong["R3"] == [
        "after message 1 (release_server) the balancer's total is 2; 0 requests are acquired and not released"
    ]


def test_r3_leaves_out_who_is_not_registered_or_shows_nothing():
    assert log(acquire(0, 0), remove(0), release(0, 0, loads=(None, 0)))[0] == {}
    assert log(acquire(0, 0), release(0, 0))[0] == {}


@pytest.mark.parametrize(("shown", "wrong"), [(0, False), (1, False), (2, True)])
def test_r3_allows_either_count_of_a_replica_that_left_and_returned(shown, wrong):
    found, _ = log(acquire(0, 0), remove(0), add(0, loads=(shown, 0)), release(0, 0))
    assert ("R3" in found) == wrong


def test_r3_at_rest_nothing_is_in_flight():
    wrong, _ = log(acquire(0, 0))
    assert wrong == {"R3": ["at rest replica 0 still counts a request of session 0, whose turn 0 ended well"]}


@pytest.mark.parametrize(
    ("outcome", "how"), [("cancelled", "was cancelled while it acquired a server"), ("error", "failed")]
)
def test_r7_is_for_turns_that_did_not_end_well(outcome, how):
    wrong, _ = log(acquire(0, 0), outcome=outcome)
    assert wrong == {"R7": [f"session 0 turn 0 {how}, and its slot on replica 0 was never given back"]}
    assert log(acquire(0, 0), release(0, 0), outcome=outcome)[0] == {}


CANCELLED = {
    "while it acquired a server": Case(
        BUDGET, (Session(1),), (CancelClient(AtTime(0.1), 0),), transport=Transport(balancer_delay_s=0.25)
    ),
    "while it decoded": Case(BUDGET, (Session(1),), (CancelClient(AfterTokens(0, 3), 0),)),
    "after attempt 0 had been answered": Case(
        BUDGET, (Session(1),), (AbortAll(AfterTokens(0, 3), 0), CancelClient(AtTime(0.5), 0))
    ),
}


@pytest.mark.parametrize("where", CANCELLED)
def test_r7_says_where_a_call_was_when_it_was_cancelled(where):
    class Leaking(PinnedClient):
        async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
            _, server = await self.balancer.acquire_server.remote(request_id=request_id)
            return await server.generate.remote(
                request_id=request_id, prompt_ids=prompt_ids, sampling_params=sampling_params
            )

    leaking = sut_of("leaking", lambda context: Leaking(context.config, context.balancer))
    (message,) = [
        v.message for v in judge(CANCELLED[where], run_world(CANCELLED[where], leaking)) if v.invariant == "R7"
    ]
    assert message == f"session 0 turn 0 was cancelled {where}, and its slot on replica 0 was never given back"


@pytest.mark.parametrize("outcome", ["ok", "cancelled"])
def test_r3_and_r7_know_nothing_of_a_rest_that_was_never_reached(outcome):
    assert log(acquire(0, 0), outcome=outcome, reason="horizon")[0] == {}


def test_r5_a_removed_replica_gets_no_one():
    assert broken(acquire(0, 0), remove(0), acquire(0, 0)) == {"R5"}
    assert broken(remove(0), acquire(0, 0)) == {"R5"}
    assert broken(remove(0), add(0), acquire(0, 0)) == set()


def test_a_message_that_failed_changed_nothing():
    failed = Message(0, "acquire_server", 0, 0, (), None, None, 0, "RuntimeError: No available servers")
    assert log(failed)[0] == {}


# R4


def choices(picks, replicas):
    """One session after the other, each alone: every choice is among all replicas."""
    messages = []
    for session, replica in enumerate(picks):
        messages += [acquire(session, replica), release(session, replica)]
    return log(*messages, replicas=replicas, sessions=len(picks))


def test_r4_wants_enough_to_go_by():
    assert choices([0] * 7, 64)[0] == {}
    assert set(choices([0] * 8, 64)[0]) == {"R4"}
    assert choices([0] * 31, 2)[0] == {}, "that is 1 in 2 ** 31, more than the error rate for 2 replicas"
    assert set(choices([0] * 33, 2)[0]) == {"R4"}


def test_r4_sees_one_that_starves():
    picks = [1 + number % 2 for number in range(60)]
    (message,) = choices(picks, 3)[0]["R4"]
    assert message.startswith("replica 0 was chosen never in 60 choices among equally loaded replicas; 20.0 were ")


@pytest.mark.parametrize("replicas", [2, 3, 7, 64])
def test_r4_accepts_fair_ties(replicas):
    for seed in range(10):
        draw = random.Random(seed)
        assert choices([draw.randrange(replicas) for _ in range(200)], replicas)[0] == {}


def test_r1_is_told_with_r3_where_that_is_judged_too():
    added = Case(BUDGET, apart(6, 0.02), (AddReplica(AtTime(0.05), 0),), replicas=2)
    trace = run_world(added, load_sut("reference:zeroes-count"))
    assert {each.invariant for each in judge(added, trace, ("R1",))} == {"R1"}
    told = judge(added, trace, ("R1", "R3"))
    assert {each.invariant for each in told} == {"R3"}
    assert "; R1 follows from it, " in told[0].message


def test_r4_of_many_choices():
    draw = random.Random(1)
    assert choices([draw.randrange(5) for _ in range(4000)], 5)[0] == {}
    assert set(choices([draw.randrange(10) // 4 for _ in range(4000)], 3)[0]) == {"R4"}, "4, 4 and 2 of 10"


@given(st.integers(1, 200), st.integers(1, 200), st.data())
def test_r4_of_many_choices_never_accuses_sooner(twos, threes, data):
    offered = Counter({2: twos, 3: threes})
    chosen = data.draw(st.integers(0, twos + threes))
    exact = chance_of(offered, chosen, exact=True)
    assert chance_of(offered, chosen, exact=False) >= exact * (1 - 1e-6)


def test_r4_counts_only_ties():
    _, found = log(acquire(0, 0), acquire(1, 1), acquire(2, 0), release(2, 0), replicas=3)
    assert found.choices.offered == [{3: 1}, {3: 1, 2: 1}, {3: 1, 2: 1}]
    assert found.choices.chosen == [1, 1, 0]
    _, found = log(acquire(0, 0), acquire(1, 1), acquire(2, 2), replicas=3)
    assert found.choices.chosen == [1, 1, 0], "the third had no choice"


def test_r4_does_not_count_a_move_that_could_have_been_a_stay():
    messages = [acquire(0, 0), release(0, 0), acquire(0, 1), release(0, 1)]
    assert log(*messages, router=Router(sticky=False))[1].choices.chosen == [1, 0]


def test_r4_does_not_judge_a_router_that_is_to_take_the_first():
    case = Case(BUDGET, apart(40, 1.0), replicas=2, router=Router("first"))
    assert found(CLEAN, case) == {}


def test_a_single_replica_has_no_favourite():
    assert choices([0] * 50, 1)[0] == {}
