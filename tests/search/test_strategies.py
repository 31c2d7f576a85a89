"""Strategies: cases that fit together, simple ones first, and the rare settings within reach."""

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from sim.case import Case, ServerSettings, Transport, dumps, loads
from sim.events import Prefilled
from sim.faults import AddReplica, CancelClient, DelayReleases, RemoveReplica, WeightUpdate
from sim.invariants.kinds import KINDS
from sim.search.strategies import MOST_SESSIONS_IN_A_ROW, MOST_TOKENS, STRATEGIES, response_cases, routing_cases
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world

QUICK = settings(
    max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def test_every_kind_of_invariant_has_worlds_to_look_in():
    assert set(STRATEGIES) == set(KINDS)


@QUICK
@given(st.one_of(response_cases(), routing_cases()))
def test_what_is_drawn_is_a_valid_case_that_survives_its_json(case: Case):
    assert loads(dumps(case)) == case
    assert max(session.prompt_tokens for session in case.sessions) <= MOST_TOKENS
    assert len(case.sessions) <= MOST_SESSIONS_IN_A_ROW


@QUICK
@given(response_cases(dialect="sglang", policy="trajectory", most_turns=1))
def test_the_options_of_hunt_hold_for_each_case(case: Case):
    assert case.server.dialect == "sglang"
    assert case.budget.policy == "trajectory"
    assert {len(session.turns) for session in case.sessions} == {1}


@QUICK
@given(st.one_of(response_cases(max_parked_s=5.0), routing_cases(max_parked_s=5.0)))
def test_what_an_adapter_fixes_is_written_into_each_case(case: Case):
    assert case.server.max_parked_s == 5.0


def drawn(strategy, condition, *phases):
    return find(strategy, condition, settings=settings(QUICK, max_examples=2000, phases=phases))


@pytest.mark.parametrize(("strategy", "replicas"), [(response_cases(), 1), (routing_cases(), 2)])
def test_the_simplest_case_is_one_short_session_on_the_fewest_replicas(strategy, replicas):
    case = drawn(strategy, lambda _: True, Phase.generate, Phase.shrink)
    assert (len(case.sessions), case.replicas, case.seed) == (1, replicas, 0)
    assert case.sessions[0].prompt_tokens == 1
    assert (case.transport, case.server) == (Transport(), ServerSettings())


@pytest.mark.parametrize(
    ("strategy", "condition"),
    [
        (response_cases(), lambda case: case.budget.client_view is not None),
        (response_cases(), lambda case: not case.partial_rollout),
        (response_cases(), lambda case: case.transport.objects == "shared"),
        (response_cases(), lambda case: any(session.shares_params_with == 0 for session in case.sessions)),
        (response_cases(), lambda case: any(s.limit is not None and s.limit.tokens == 0 for s in case.sessions)),
        (response_cases(), lambda case: any(isinstance(f, WeightUpdate) and f.leaving for f in case.faults)),
        (response_cases(), lambda case: case.budget.context_tokens < 20),
        (routing_cases(), lambda case: {type(f) for f in case.faults} >= {AddReplica, RemoveReplica}),
        (routing_cases(), lambda case: any(isinstance(f, (CancelClient, DelayReleases)) for f in case.faults)),
        (routing_cases(), lambda case: len(case.sessions) >= 40),
    ],
)
def test_what_is_rare_is_within_reach(strategy, condition):
    assert condition(drawn(strategy, condition, Phase.generate))


# What hunts are to meet

PINNED = load_sut(CLEAN)


def prefills(case):
    """What was computed for each request in the known-good client's run; nothing where there is no engine."""
    if case.server.engine is None or case.repeat > 1:
        return []
    return [event for event in run_world(case, PINNED).events if isinstance(event, Prefilled)]


def has_preempted(case):
    return any(event.recomputed_tokens for event in prefills(case))


def has_stale_kv(case):
    keeps = any(isinstance(fault, WeightUpdate) and not fault.reset_prefix_cache for fault in case.faults)
    return keeps and any(event.stale_tokens for event in prefills(case))


def has_found_anothers_prompt(case):
    shares = any(session.shares_prompt_with == 0 for session in case.sessions)
    return shares and any(event.cached_tokens for event in prefills(case))


def has_queued(case):
    """Whether there were several requests for an engine that runs one at a time."""
    is_single = case.server.engine is not None and case.server.engine.max_num_seqs == 1
    return is_single and len(prefills(case)) > 1


@pytest.mark.parametrize("meets", [has_preempted, has_stale_kv, has_found_anothers_prompt, has_queued])
def test_what_only_some_engines_do_is_met(meets):
    assert meets(drawn(response_cases(), meets, Phase.generate))
