"""Computing many responses at once equals simulating them, or says that it cannot tell."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.case import Budget, ServerSettings
from sim.sut.registry import load_sut
from sim.waste.independent import waste_of_all
from sim.waste.ledger import waste_of
from sim.waste.lengths import NEVER, Lengths
from sim.waste.variants import parse
from sim.waste.what_if import Conditions, arrivals_ns, case_of, compare, pace_of
from sim.world import run_world

DIALECTS = ("vllm", "sglang", "trtllm")
stops = st.integers(1, 700).map(lambda tokens: NEVER if tokens > 600 else tokens)


@st.composite
def loads(draw):
    prompt_length = draw(st.integers(1, 200))
    response_length = draw(st.integers(1, 400))
    spare = draw(st.integers(-100, 100))
    context = max(2, prompt_length + response_length + spare)
    budget = Budget(prompt_length, response_length, context)
    pairs = draw(st.lists(st.tuples(st.integers(1, context), stops), min_size=1, max_size=12))
    prompts, responses = np.array(pairs, dtype=np.int64).T
    return budget, Lengths(prompts, responses[:, None])


@settings(max_examples=200, deadline=None)
@given(
    loads(),
    st.sampled_from(DIALECTS),
    st.sampled_from(("deferred", "pinned", "deferred+partial-off", "partial-off", "pinned+not-sticky")),
    st.one_of(st.none(), st.integers(104, 400)),
    st.sampled_from((0.0, 0.5, 1.0)),
    st.sampled_from((None, 0.0, 0.5, 3.0)),
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from((0.0, 0.02)),
)
def test_what_is_computed_is_what_the_world_does(
    load, dialect, name, interval, pause_s, spread_s, gate, replicas, prefill_s
):
    budget, lengths = load
    server = ServerSettings(dialect, submission_gate=gate, prefill_s=prefill_s)
    conditions = Conditions(budget=budget, server=server, replicas=replicas, pause_s=pause_s, spread_s=spread_s)
    variant = parse(name)
    computed = waste_of_all(
        lengths.prompts,
        lengths.responses[:, 0],
        arrivals_ns(conditions, lengths, interval),
        budget=budget,
        dialect=dialect,
        client=variant.builtin_client,
        partial_rollout=variant.partial_rollout,
        pace=pace_of(conditions, interval),
    )
    if computed is None:
        return
    case = case_of(conditions, lengths, variant, interval, np.arange(len(lengths)))
    assert computed == waste_of(case, run_world(case, load_sut(variant.sut)))


def computes(arrival_ns, dialect="vllm", update_tokens=200):
    conditions = Conditions(budget=Budget(100, 400, 1000), server=ServerSettings(dialect))
    return (
        waste_of_all(
            np.array([10]),
            np.array([NEVER]),
            np.array([arrival_ns]),
            budget=conditions.budget,
            dialect=dialect,
            client="pinned",
            partial_rollout=True,
            pace=pace_of(conditions, update_tokens),
        )
        is not None
    )


def test_a_race_is_left_to_the_simulation():
    token_ns = 10_000_000
    assert not computes(200 * token_ns), "arrives in the instant of an update"
    assert not computes(200 * token_ns - token_ns // 2), "vLLM's gate waits for its first token"
    assert computes(200 * token_ns - token_ns // 2, "sglang")
    assert computes(199 * token_ns)
    assert computes(201 * token_ns)


def test_every_computed_row_is_sampled_by_simulation():
    conditions = Conditions(budget=Budget(100, 400, 1000), replicas=2)
    load = Lengths(np.arange(1, 101), np.arange(1, 1001, 10)[:, None])
    found = compare(conditions, load, [parse("deferred"), parse("pinned")], [150, 300, None])
    assert [row.how for row in found.rows] == ["computed"] * 6
    assert found.sampled == 6 * 40
    whole = compare(
        Conditions(budget=Budget(100, 400, 1000), replicas=2, simulate=True),
        load,
        [parse("deferred"), parse("pinned")],
        [150, 300, None],
    )
    assert [row.how for row in whole.rows] == ["simulated"] * 6
    assert [row.waste for row in whole.rows] == [row.waste for row in found.rows]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_it_computes_nearly_always_on_the_tick(dialect):
    """Otherwise the tests above would test little: intervals in whole ticks are never left to the simulation."""
    conditions = Conditions(budget=Budget(100, 400, 1000), server=ServerSettings(dialect))
    load = Lengths(np.full(50, 7), np.full((50, 1), NEVER))
    rows = compare(conditions, load, [parse("deferred")], list(range(110, 900, 30))).rows
    assert all(row.how == "computed" for row in rows)
