"""Grants: how each of verl's three servers turns a request into a max_tokens.

The tables below were read off verl's sources (`vLLMHttpServer.generate`, `SGLangHttpServer.generate`,
`TRTLLMHttpServer.generate`), whose arithmetic is the same in 0.8.0, 0.9.0 and 0.9.1. What differs between these
versions is the gate in front of the engine, not the grant; see `test_server.py`.

`max_model_len` is 100 and, where it matters, prompt_length 20 and response_length 30, so that the default is
min(30, 50 - prompt).
"""

import pytest
from sim.dialects.grants import RULES, default_tokens, room_tokens, take_grant

from sim.case import Budget
from sim.dialects import Grant, NoRoom

BUDGET = Budget(prompt_length=20, response_length=30, max_model_len=100)


def grant(dialect, prompt_tokens, **params):
    return take_grant(dialect, BUDGET, prompt_tokens, params)


@pytest.mark.parametrize(
    ("prompt_tokens", "default"),
    [
        (1, 30),
        (19, 30),
        (20, 30),  # an ordinary first attempt: never more than response_length
        (21, 29),
        (49, 1),
        (50, 0),
        (51, -1),
        (100, -50),
    ],
)
def test_default_is_response_length_until_the_prompt_outgrows_its_allowance(prompt_tokens, default):
    assert default_tokens(BUDGET, prompt_tokens) == default


@pytest.mark.parametrize(
    ("dialect", "prompt_tokens", "tokens"),
    [
        # vllm clamps to [1, room]: a default below 1 becomes 1.
        ("vllm", 10, 30),
        ("vllm", 40, 10),
        ("vllm", 49, 1),
        ("vllm", 50, 1),
        ("vllm", 80, 1),
        ("vllm", 99, 1),  # room 1
        # sglang and trtllm clamp to [0, room].
        ("sglang", 10, 30),
        ("sglang", 49, 1),
        ("sglang", 50, 0),
        ("sglang", 80, 0),
        ("sglang", 99, 0),  # room 0: one context token is kept back
        ("trtllm", 10, 30),
        ("trtllm", 49, 1),
        ("trtllm", 50, 0),
        ("trtllm", 99, 0),
        ("trtllm", 100, 0),  # room 0
        ("trtllm", 101, 0),  # room -1
    ],
)
def test_grant_without_a_limit(dialect, prompt_tokens, tokens):
    assert grant(dialect, prompt_tokens).tokens == tokens
    assert grant(dialect, prompt_tokens).rule == "default"


@pytest.mark.parametrize(
    ("dialect", "limit", "tokens"),
    [
        # room 40 for vllm and trtllm, 39 for sglang
        ("vllm", -5, 1),
        ("vllm", 0, 1),  # a limit of nothing is granted one token (B6)
        ("vllm", 1, 1),
        ("vllm", 39, 39),
        ("vllm", 40, 40),
        ("vllm", 41, 40),
        ("vllm", 10_000_000, 40),
        ("sglang", -5, 0),
        ("sglang", 0, 0),
        ("sglang", 1, 1),
        ("sglang", 39, 39),
        ("sglang", 40, 39),
        ("sglang", 10_000_000, 39),
        # trtllm: the default, whatever the client sent (B10); 60 tokens of prompt leave min(30, 50 - 60) -> 0
        ("trtllm", 0, 0),
        ("trtllm", 1, 0),
        ("trtllm", 40, 0),
    ],
)
@pytest.mark.parametrize("spelling", ["max_tokens", "max_new_tokens"])
def test_grant_with_a_limit_in_either_spelling(dialect, limit, tokens, spelling):
    assert grant(dialect, 60, **{spelling: limit}).tokens == tokens


@pytest.mark.parametrize(
    ("dialect", "rule", "tokens", "left"),
    [
        ("vllm", "max_tokens", 3, {"max_new_tokens": 5}),
        ("sglang", "max_new_tokens", 5, {"max_tokens": 3}),
        ("trtllm", "default", 30, {"max_tokens": 3, "max_new_tokens": 5}),
    ],
)
def test_of_two_spellings_each_server_takes_its_own_first_and_leaves_the_other(dialect, rule, tokens, left):
    params = {"max_tokens": 3, "max_new_tokens": 5}

    assert take_grant(dialect, BUDGET, 10, params)[:2] == (tokens, rule)
    assert params == left


@pytest.mark.parametrize(
    ("dialect", "prompt_tokens", "room"),
    [("vllm", 99, 1), ("vllm", 100, 0), ("vllm", 101, -1), ("sglang", 98, 1), ("sglang", 99, 0), ("sglang", 100, -1)],
)
def test_a_prompt_without_room_is_refused_by_vllm_below_1_and_by_sglang_below_0(dialect, prompt_tokens, room):
    assert room_tokens(dialect, BUDGET, prompt_tokens) == room
    least = RULES[dialect].least_room
    assert least is not None
    if room >= least:
        assert grant(dialect, prompt_tokens, max_tokens=7).tokens == min(7, room)
    else:
        with pytest.raises(NoRoom, match=f"a prompt of {prompt_tokens} tokens leaves no room .* context of 100"):
            grant(dialect, prompt_tokens, max_tokens=7)


@pytest.mark.parametrize("prompt_tokens", [99, 100, 101, 1000])
def test_trtllm_never_refuses_a_prompt(prompt_tokens):
    assert grant("trtllm", prompt_tokens, max_tokens=7) == Grant(0, "default", 50 - prompt_tokens, 100 - prompt_tokens)


def test_a_refused_request_keeps_its_limit():
    params = {"max_tokens": 7}
    with pytest.raises(NoRoom):
        take_grant("vllm", BUDGET, 100, params)
    assert params == {"max_tokens": 7}


def test_the_resume_that_overruns():
    """The numbers of verl PR 7207: what a server grants by default, aborted about every 2000 tokens."""
    budget = Budget(prompt_length=2048, response_length=8192, max_model_len=32_768)
    grants = [take_grant("vllm", budget, 136 + generated, {}).tokens for generated in range(0, 12_000, 2000)]
    assert grants == [8192, 8104, 6104, 4104, 2104, 104]


@pytest.mark.parametrize("max_model_len", [None, 100])
def test_context_is_the_models_where_max_model_len_is_not_set(max_model_len):
    budget = Budget(20, 30, max_model_len, max_position_embeddings=500)
    assert room_tokens("vllm", budget, 40) == (60 if max_model_len else 460)
