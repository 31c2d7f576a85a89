"""The closed form of the budget: one response, aborted after every `every` tokens, `aborts` times."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.case import (
    Budget,
    Case,
    ServerSettings,
    Session,
)
from sim.dialects import DIALECTS, Refused
from sim.faults import (
    AbortAll,
    AfterTokens,
)
from sim.invariants.judging import judge
from sim.sut.registry import load_sut
from sim.world import run_world
from tests.world.worlds import decoded


def closed_form(dialect, budget, prompt_tokens, every, aborts, pinned):
    """The tokens decoded in each attempt, by the grants alone. An attempt that would end at the abort has ended."""
    parts = []
    while True:
        generated = sum(parts)
        left = budget.response_length - generated if pinned else None
        if (pinned and left <= 0) or prompt_tokens + generated >= budget.context_tokens:
            return parts
        params = {"max_tokens": left} if pinned else {}
        try:
            granted = DIALECTS[dialect].take_grant(budget, prompt_tokens + generated, params).tokens
        except Refused:
            return parts
        next_abort = every * (generated // every + 1)
        if granted <= next_abort - generated or next_abort > every * aborts:
            return [*parts, granted]
        parts.append(next_abort - generated)


@pytest.mark.parametrize(
    ("client", "parts"),
    [("reference:deferred", [2000] * 5 + [104]), ("reference:pinned", [2000] * 4 + [192])],
)
def test_the_overrun_of_verl_pr_7207(client, parts):
    """10104 tokens against a budget of 8192, and 8192 with the fix."""
    budget = Budget(prompt_length=2048, response_length=8192, max_model_len=32_768)
    faults = tuple(AbortAll(AfterTokens(0, 2000 * number), 0) for number in range(1, 7))
    trace = run_world(Case(budget, (Session(136),), faults), load_sut(client))

    assert decoded(trace) == parts
    assert closed_form("vllm", budget, 136, 2000, 6, pinned=client.endswith("pinned")) == parts


SMALL_WORLDS = {
    "prompt_length": st.integers(1, 30),
    "response_length": st.integers(1, 40),
    "context": st.integers(1, 80),
    "prompt_tokens": st.integers(1, 40),
    "every": st.integers(1, 30),
    "aborts": st.integers(0, 8),
    "token_time_s": st.sampled_from([0.01, 1.0, 0.000000001]),
    "gate": st.booleans(),
}


def check_closed_form(
    dialect, pinned, prompt_length, response_length, context, prompt_tokens, every, aborts, token_time_s, gate
):
    budget = Budget(prompt_length, response_length, context)
    prompt_tokens = min(prompt_tokens, context)
    faults = tuple(AbortAll(AfterTokens(0, every * number), 0) for number in range(1, aborts + 1))
    case = Case(budget, (Session(prompt_tokens),), faults, server=ServerSettings(dialect, gate, token_time_s))
    trace = run_world(case, load_sut("reference:pinned" if pinned else "reference:deferred"))

    expected = closed_form(dialect, budget, prompt_tokens, every, aborts, pinned)
    assert [tokens for tokens in decoded(trace) if tokens] == [tokens for tokens in expected if tokens]
    overrun = sum(expected) > budget.response_length
    assert overrun == ("B1" in {violation.invariant for violation in judge(case, trace)})
    if dialect != "trtllm" and pinned:
        assert not overrun


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(dialect=st.sampled_from(["vllm", "sglang", "trtllm"]), pinned=st.booleans(), **SMALL_WORLDS)
def test_the_world_agrees_with_the_closed_form(dialect, pinned, **settings):
    check_closed_form(dialect, pinned, **settings)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    server=st.sampled_from([("plain-vllm", True), ("plain-vllm", False), ("plain-sglang", False)]),
    **SMALL_WORLDS,
)
def test_it_does_so_on_the_engines_own_servers(server, **settings):
    """Whose default knows no response_length. The pinned client spells its limit as SGLang does not know it."""
    check_closed_form(*server, **settings)


@settings(deadline=None, derandomize=True, database=None)
@given(
    prompt_length=st.integers(1, 300),
    prompt_tokens=st.integers(1, 300),
    response_length=st.integers(1, 800),
    every=st.integers(1, 1000),
)
def test_in_general_the_overrun_is_the_unused_prompt_allowance(prompt_length, prompt_tokens, response_length, every):
    """For a model that never stops and aborts that never end, as soon as one comes before the first attempt is over.

    From the first attempt that starts with the allowance used up, each is granted just what is left to
    prompt_length + response_length.
    """
    prompt_tokens = min(prompt_tokens, prompt_length)
    budget = Budget(prompt_length, response_length)
    overrun = prompt_length - prompt_tokens if every < response_length else 0

    parts = closed_form("vllm", budget, prompt_tokens, every, 10**6, pinned=False)
    assert sum(parts) == response_length + overrun
