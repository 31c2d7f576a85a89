"""Staleness invariants: KV of older weights is found wherever somebody uses it, and nowhere else."""

import pytest

from sim.case import Budget, Case, ServerSettings, Session
from sim.case import EngineSettings as Settings
from sim.events import Prefilled, Sent, TurnStarted, VersionChanged, WorldEnded
from sim.faults import AbortAll, AfterTokens, WeightUpdate
from sim.invariants.judging import judge
from sim.sut.registry import CLEAN, load_sut
from sim.trace import Trace
from sim.verdicts import judged
from sim.world import run_world

BUDGET = Budget(prompt_length=40, response_length=40, max_model_len=128)


def updated(**fault):
    return Case(BUDGET, (Session(30),), (WeightUpdate(AfterTokens(0, 20), **fault),))


def found(sut, case):
    return [each.message for each in judge(case, run_world(case, load_sut(sut))) if each.invariant == "S2"]


def test_s2_catches_a_server_that_keeps_its_cache_and_passes_the_known_good():
    assert found("reference:keeps-cache", updated()) == [
        "request 1 (session 0) took 48 tokens from the prefix cache of replica 0 that older weights had computed"
    ]
    assert found(CLEAN, updated()) == []


@pytest.mark.parametrize(
    ("sut", "fault", "told"),
    [
        (CLEAN, {}, "request 1 (session 0) took 48 tokens from the prefix cache of replica 0"),
        (CLEAN, {"pause_mode": "keep"}, "replica 0 went to weight version 1 while 1 of its requests keep KV"),
    ],
)
def test_s2_warns_of_a_setting_that_keeps_the_cache_and_blames_no_client(sut, fault, told):
    run = judged(updated(reset_prefix_cache=False, **fault), load_sut(sut))
    assert run.violations == []
    (warning,) = run.warnings
    assert warning.message.startswith(told)
    assert warning.message.endswith(", as the case has it: faults[0].reset_prefix_cache is false")


def test_versions_are_not_judged_where_an_update_goes_by_without_an_abort():
    """What is aborted behind a frozen update names its version, which none of its tokens has."""
    twice = (WeightUpdate(AfterTokens(0, 20), pause_mode="keep"), AbortAll(AfterTokens(0, 20), 0))
    case = Case(BUDGET, (Session(30),), twice, partial_rollout=False)
    assert judged(case, load_sut(CLEAN)).violations == []


def test_the_cache_may_be_kept_where_the_weights_stay():
    case = Case(BUDGET, (Session(30),), (AbortAll(AfterTokens(0, 20), 0, reset_prefix_cache=False),))
    trace = run_world(case, load_sut(CLEAN))
    assert [(event.computed_tokens, event.cached_tokens) for event in trace.events if isinstance(event, Prefilled)] == [
        (30, 0),
        (2, 48),
    ]
    assert judge(case, trace) == []


def test_without_prefix_caching_nothing_can_be_kept():
    case = updated(reset_prefix_cache=False)
    server = ServerSettings(engine=Settings(enable_prefix_caching=False))
    assert found(CLEAN, Case(case.budget, case.sessions, case.faults, server=server)) == []


def test_s2_catches_requests_that_run_on_over_an_update():
    trace = Trace(1)
    for event in (TurnStarted(0, 0, 0, 2), Sent(0, 0, 0, 0, 0, 0, 2, {}), VersionChanged(5, 0, 3, stale_requests=2)):
        trace.add(event)
    trace.seal(WorldEnded(9, "done"))
    (violation,) = judge(updated(), trace, ["S2"])
    assert violation.message == ("replica 0 went to weight version 3 while 2 of its requests keep KV of older weights")
