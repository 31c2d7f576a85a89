"""How long a world may take, and how often what comes again may do so."""

import pytest
from msgspec.structs import replace

from sim.case import Budget, Case, Limit, ServerSettings, Session, Transport, Turn
from sim.faults import AbortAll, AtTime, DelayReleases, Every, WeightUpdate
from sim.invariants.judging import judge
from sim.schema import MAX_TIME_S
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world
from sim.world.bounds import CLIENT_WAIT_S, LEAST_TIMES, SLACK_S, bounds_of

BUDGET = Budget(prompt_length=4, response_length=10, max_model_len=64)
ONE = Case(BUDGET, (Session(4),), server=ServerSettings(token_time_s=1.0, engine=None))
ALL = 64
"""Seconds: a client may ask for all of the context."""
CALL_S = 1.0 + CLIENT_WAIT_S
"""An attempt beside its tokens: the first of them may have to wait for a step, and the client for itself."""


def seconds(case):
    return bounds_of(case).virtual_s


def test_twice_what_the_work_takes_one_by_one():
    assert seconds(ONE) == 2 * (ALL + CALL_S) + SLACK_S
    assert seconds(replace(ONE, sessions=ONE.sessions * 3)) == 2 * 3 * (ALL + CALL_S) + SLACK_S
    assert seconds(replace(ONE, repeat=3)) == seconds(replace(ONE, sessions=ONE.sessions * 3))


def test_a_session_waits_for_its_arrival_its_tools_and_no_longer_than_its_model_talks():
    talks = replace(ONE, sessions=(Session(4, (Turn(2, tool_time_s=5.0), Turn(3)), arrival_s=7.0),))
    assert seconds(talks) == 2 * (7 + 5 + 2 + 3 + 2 * CALL_S) + SLACK_S


@pytest.mark.parametrize(
    ("dialect", "tokens"), [("vllm", 90), ("sglang", 90), ("trtllm", 90), ("plain-vllm", 540), ("plain-sglang", 1152)]
)
def test_what_its_server_grants_may_be_granted_anew_at_each_abort(dialect, tokens):
    aborts = tuple(AbortAll(AtTime(0.0), 0) for _ in range(8))
    case = replace(ONE, server=replace(ONE.server, dialect=dialect), faults=aborts)
    assert seconds(case) == 2 * (tokens + 9 * CALL_S + 8 * CALL_S) + SLACK_S


def test_an_explicit_limit_may_be_more():
    one = (Session(4, limit=Limit("max_tokens", 80)),)
    aborted = replace(ONE, sessions=one, faults=(AbortAll(AtTime(0.0), 0),))
    assert seconds(aborted) == 2 * (2 * 80 + 2 * CALL_S + CALL_S) + SLACK_S


def test_delays_count_for_each_call():
    slow = replace(ONE, transport=Transport(server_delay_s=3.0, balancer_delay_s=0.5))
    assert seconds(slow) == 2 * (ALL + CALL_S + 2 * 3.0 + 3 * 0.5) + SLACK_S


@pytest.mark.parametrize(
    ("fault", "costs_s"),
    [
        (AbortAll(AtTime(2.0), 0, pause_s=3.0), 2.0 + 3.0),
        (WeightUpdate(AtTime(2.0), pause_s=3.0), 2.0 + 3.0),
        (DelayReleases(AtTime(2.0), 4.0), 2.0 + 4.0),
    ],
)
def test_a_fault_costs_its_time_its_pause_and_a_call_with_all_tokens_granted_anew(fault, costs_s):
    work_s = ALL + 2 * CALL_S  # each fault may cost an attempt
    assert seconds(replace(ONE, faults=(fault,))) == 2 * (work_s + costs_s + CALL_S) + SLACK_S
    assert bounds_of(replace(ONE, faults=(fault,))).times == (1,)


def test_what_comes_again_does_so_often_enough_for_each_token():
    often = replace(ONE, faults=(AbortAll(AtTime(0.0), 0), AbortAll(Every(0.5), 0)))
    once, again = bounds_of(often).times
    assert once == 1
    assert again >= LEAST_TIMES + 10


def test_no_world_takes_longer_than_a_case_can_say():
    endless = replace(ONE, faults=(AbortAll(Every(1e7), 0, pause_s=1e7),))
    assert seconds(endless) == MAX_TIME_S


@pytest.mark.parametrize(
    "case",
    [replace(ONE, sessions=(Session(4, arrival_s=1e7),)), replace(ONE, faults=(DelayReleases(AtTime(0.0), 1e7),))],
    ids=["an arrival", "a release"],
)
def test_a_case_whose_own_times_are_as_long_as_can_be_is_given_them(case):
    assert seconds(case) > 2e7
    assert judge(case, run_world(case, load_sut(CLEAN))) == []
