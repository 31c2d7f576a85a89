"""The ledger of waste: each fate where it alone is non-zero, and the sum over all of them everywhere."""

import asyncio
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.case import (
    AbortAll,
    AfterTokens,
    AtTime,
    Budget,
    CancelClient,
    Case,
    Limit,
    ServerSettings,
    Session,
    Turn,
    WeightUpdate,
)
from sim.search.schedules import under_schedules
from sim.search.strategies import response_cases, routing_cases
from sim.sut.interface import Sut
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import builtin_names, load_sut
from sim.trace import Decoded
from sim.waste.ledger import FATES, LOSSES, Tally, pieces_of, tally, waste_of
from sim.world import run_world

BUDGET = Budget(prompt_length=8, response_length=10, max_model_len=64)
ONE = Session(2)


class RetryingClient(PinnedClient):
    """Asks for the whole response once more when the first answer takes too long, and lets the first one run on."""

    async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
        try:
            return await asyncio.wait_for(super().attempt(request_id, prompt_ids, sampling_params, **kwargs), 0.055)
        except TimeoutError:
            return await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)


class GivingUpClient(PinnedClient):
    """Raises when the answer takes too long."""

    async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
        return await asyncio.wait_for(super().attempt(request_id, prompt_ids, sampling_params, **kwargs), 0.055)


def own(client):
    return Sut(client.__name__, client.__name__, lambda context: client(context.config, context.balancer))


def wasted(case, sut="reference:pinned"):
    """The losses that are not zero, in tokens, and what is kept."""
    waste = waste_of(case, run_world(case, load_sut(sut) if isinstance(sut, str) else sut))
    return {fate: tally.tokens for fate, tally in waste.fates.items() if tally.tokens}


ALONE = {
    "duplicate": (Case(BUDGET, (ONE,)), own(RetryingClient), {"duplicate": 10, "kept": 10}),
    # A cancel before the first token: the call is not withdrawn, and the server decodes for nobody.
    "zombie": (Case(BUDGET, (ONE,), (CancelClient(AtTime(0.005), 0),)), "reference:pinned", {"zombie": 10}),
    "dropped": (
        Case(BUDGET, (ONE,), (AbortAll(AfterTokens(0, 4), 0),), partial_rollout=False),
        "reference:pinned",
        {"dropped": 4},
    ),
    "overrun": (
        Case(BUDGET, (ONE,), (AbortAll(AfterTokens(0, 4), 0), AbortAll(AfterTokens(0, 8), 0))),
        "reference:deferred",
        {"overrun": 6, "kept": 10},
    ),
    "sliced": (
        Case(BUDGET, (Session(2, limit=Limit("max_tokens", 13)),)),
        "reference:pinned",
        {"sliced": 3, "kept": 10},
    ),
    "discarded": (Case(BUDGET, (ONE,)), own(GivingUpClient), {"discarded": 10}),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_alone(loss):
    case, sut, expected = ALONE[loss]
    assert wasted(case, sut) == expected
    assert set(expected) - {"kept"} == {loss}


def test_without_any_fault_nothing_is_lost():
    for sut in ("reference:pinned", "reference:deferred"):
        assert wasted(Case(BUDGET, (ONE, Session(3, (Turn(4, 2), Turn(3)))), replicas=2), sut) == {"kept": 10 + 4 + 3}


# Precedence, and where one fate ends and the next begins


def test_a_cancel_parts_a_burst_to_the_token():
    case = Case(BUDGET, (ONE,), (CancelClient(AtTime(0.045), 0),))
    assert wasted(case) == {"discarded": 4, "zombie": 6}


def test_a_zombie_beyond_the_budget_is_a_zombie():
    faults = (AbortAll(AfterTokens(0, 4), 0), CancelClient(AfterTokens(0, 5), 0))
    assert wasted(Case(BUDGET, (ONE,), faults), "reference:deferred") == {"sliced": 4, "discarded": 1, "zombie": 9}


def test_a_response_cancelled_while_it_waits_to_resume_is_dropped_whole():
    faults = (AbortAll(AfterTokens(0, 4), 0), AbortAll(AfterTokens(0, 7), 0), CancelClient(AtTime(1.5), 0))
    assert wasted(Case(BUDGET, (ONE,), faults)) == {"dropped": 7}


def test_a_response_with_its_whole_budget_is_not_dropped_by_an_abort():
    faults = (AbortAll(AfterTokens(0, 4), 0), AbortAll(AfterTokens(0, 12), 0))
    drops = Case(BUDGET, (ONE,), faults[1:], partial_rollout=False)
    assert wasted(drops, "reference:deferred") == {"kept": 10}
    cancelled = Case(BUDGET, (ONE,), (*faults, CancelClient(AtTime(1.5), 0)))
    assert wasted(cancelled, "reference:deferred") == {"sliced": 10, "overrun": 2}


def test_an_abort_at_the_very_end_of_the_budget_drops_nothing():
    faults = (AbortAll(AfterTokens(0, 10), 0),)
    server = ServerSettings(dialect="trtllm")
    case = Case(BUDGET, (Session(2, limit=Limit("max_tokens", 10)),), faults, server=server)
    assert wasted(case) == {"kept": 10}


def test_turns_beyond_the_trajectory_are_sliced_or_by_policy_overrun():
    sessions = (Session(2, (Turn(6, 1), Turn())),)
    assert wasted(Case(BUDGET, sessions)) == {"kept": 10 - 1, "sliced": 6 + 1 + 10 - 10}
    trajectory = Budget(8, 10, 64, policy="trajectory")
    assert wasted(Case(trajectory, sessions)) == {"kept": 10 - 1, "overrun": 6 + 1 + 10 - 10}


def test_a_session_that_fails_keeps_nothing_of_its_earlier_turns():
    case = Case(BUDGET, (Session(2, (Turn(3, 1), Turn(5))),), (CancelClient(AfterTokens(0, 4), 0),))
    assert wasted(case) == {"sliced": 3, "discarded": 1, "zombie": 4}


def test_a_lost_token_is_decoded_twice():
    case = Case(BUDGET, (ONE,), (AbortAll(AfterTokens(0, 4), 0),))
    assert wasted(case, "reference:loses-tokens") == {"duplicate": 1, "kept": 10}


def test_a_world_that_never_ends_keeps_nothing():
    case = Case(BUDGET, (ONE,), (WeightUpdate(AfterTokens(0, 4)),))
    assert wasted(case, "reference:stuck-gate") == {"sliced": 4}


# Prefill, depth


def test_a_resume_recomputes_its_whole_prompt():
    faults = (AbortAll(AfterTokens(0, 4), 0), AbortAll(AfterTokens(0, 8), 0))
    case = Case(BUDGET, (ONE,), faults)
    waste = waste_of(case, run_world(case, load_sut("reference:pinned")))
    assert (waste.prefill_tokens, waste.recomputed_tokens) == (2, (2 + 4) + (2 + 8))


def test_depth_is_what_a_token_reads():
    assert tally(5, 3) == Tally(3, 5 + 6 + 7)
    assert tally(5, 3).depth_tokens == 6
    assert Tally().depth_tokens == 0


def test_the_overrun_sits_deepest():
    case, sut, _ = ALONE["overrun"]
    waste = waste_of(case, run_world(case, load_sut(sut)))
    assert waste.fates["overrun"] == tally(2 + 10, 6)
    assert waste.fates["overrun"].depth_tokens > waste.decoded.depth_tokens > waste.fates["kept"].depth_tokens


# The sum rule

WORLDS = int(os.environ.get("WASTE_WORLDS", "300"))
"""How many random worlds; WASTE_WORLDS=10000 for the long run."""


@settings(max_examples=WORLDS, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(("vllm", "sglang", "trtllm")).flatmap(
        lambda dialect: st.one_of(
            response_cases(dialect), response_cases(dialect, "trajectory"), routing_cases(dialect)
        )
    ),
    st.sampled_from([*builtin_names(), RetryingClient, GivingUpClient]),
    st.integers(0, 3),
)
def test_the_fates_add_up_to_what_was_decoded(case, subject, schedule):
    sut = load_sut(subject) if isinstance(subject, str) else own(subject)
    case = under_schedules(case)[schedule]
    trace = run_world(case, sut)
    waste = waste_of(case, trace)

    decoded = [event for event in trace.events if isinstance(event, Decoded)]
    assert waste.decoded.tokens == sum(event.tokens for event in decoded)
    assert waste.decoded.kv_tokens == sum(sum(range(e.position, e.position + e.tokens)) for e in decoded)
    assert waste.wasted.tokens + waste.kept_tokens == waste.decoded.tokens
    assert all(piece.tokens > 0 and piece.fate in FATES for piece in pieces_of(case, trace))

    by_request: dict[int, set[int]] = {}
    for piece in pieces_of(case, trace):
        positions = by_request.setdefault(piece.request, set())
        mine = set(range(piece.position, piece.position + piece.tokens))
        assert not positions & mine, "a token has two fates"
        positions |= mine
    sessions = [ended.kept_tokens for session in trace.ledger.sessions.values() if (ended := session.ended) is not None]
    assert waste.kept_tokens <= min(sum(sessions), waste.delivered_tokens)
