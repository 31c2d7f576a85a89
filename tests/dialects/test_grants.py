"""Grants: how each kind of server turns a request into a max_tokens.

The tables for verl's servers were read off its sources (`vLLMHttpServer.generate`, `SGLangHttpServer.generate`,
`TRTLLMHttpServer.generate`), whose arithmetic is the same in 0.8.0, 0.9.0 and 0.9.1. What differs between these
versions is the gate in front of the engine, not the grant; see `tests/servers`. Those for the engines' own servers
were read off vLLM 0.32.0 (`entrypoints/scale_out/token_in_token_out`) and SGLang 0.5.23 (`managers`).

`max_model_len` is 100 and, where it matters, prompt_length 20 and response_length 30, so that the default of verl's
servers is min(30, 50 - prompt).
"""

import numpy as np
import pytest

from sim.case import Budget
from sim.dialects import DIALECTS, Grant, Refused

BUDGET = Budget(prompt_length=20, response_length=30, max_model_len=100)

VERLS = ("vllm", "sglang", "trtllm")


def grant(dialect, prompt_tokens, **params):
    return DIALECTS[dialect].take_grant(BUDGET, prompt_tokens, params)


@pytest.mark.parametrize("dialect", VERLS)
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
def test_verls_default_is_response_length_until_the_prompt_outgrows_its_allowance(dialect, prompt_tokens, default):
    assert min(DIALECTS[dialect].default.terms(BUDGET, prompt_tokens)) == default


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
        # vLLM by itself grants what is left of the context, whatever prompt_length and response_length are.
        ("plain-vllm", 1, 99),
        ("plain-vllm", 50, 50),
        ("plain-vllm", 99, 1),
        # SGLang by itself grants 128, clipped to what is left but two.
        ("plain-sglang", 10, 88),
        ("plain-sglang", 93, 5),
    ],
)
def test_grant_without_a_limit(dialect, prompt_tokens, tokens):
    assert grant(dialect, prompt_tokens).tokens == tokens
    assert grant(dialect, prompt_tokens).rule == "default"


@pytest.mark.parametrize(("dialect", "tokens"), [("plain-vllm", 990), ("plain-sglang", 128)])
def test_the_engines_own_defaults_in_a_context_that_is_large_enough(dialect, tokens):
    large = Budget(prompt_length=20, response_length=30, max_model_len=1000)
    assert DIALECTS[dialect].take_grant(large, 10, {}) == Grant(
        tokens, "default", tokens, 990 if dialect == "plain-vllm" else 988
    )


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
def test_verls_grant_with_a_limit_in_either_spelling(dialect, limit, tokens, spelling):
    assert grant(dialect, 60, **{spelling: limit}).tokens == tokens


@pytest.mark.parametrize(
    ("dialect", "spelling", "limit", "tokens"),
    [
        # vLLM: at least 1, and one above the room (40) ends with length there.
        ("plain-vllm", "max_tokens", 1, 1),
        ("plain-vllm", "max_tokens", 40, 40),
        ("plain-vllm", "max_tokens", 41, 40),
        ("plain-vllm", "max_tokens", 10_000_000, 40),
        # SGLang: 0 is a limit, and the context is not to be exceeded; its last two tokens stay unused.
        ("plain-sglang", "max_new_tokens", 0, 0),
        ("plain-sglang", "max_new_tokens", 1, 1),
        ("plain-sglang", "max_new_tokens", 38, 38),
        ("plain-sglang", "max_new_tokens", 40, 38),
    ],
)
def test_the_engines_own_grant_with_a_limit(dialect, spelling, limit, tokens):
    params = {spelling: limit, "temperature": 1.0}
    taken = DIALECTS[dialect].take_grant(BUDGET, 60, params)
    assert (taken.tokens, taken.rule, taken.wanted_tokens) == (tokens, spelling, limit)
    assert params == {"temperature": 1.0}


@pytest.mark.parametrize(
    ("dialect", "limit", "message"),
    [
        ("plain-vllm", 0, "max_tokens is 0; it must be at least 1"),
        ("plain-vllm", -1, "max_tokens is -1; it must be at least 1"),
        ("plain-sglang", -1, "max_new_tokens is -1; it must be at least 0"),
        ("plain-sglang", 41, "60 tokens of prompt and max_new_tokens 41 exceed the context of 100 tokens"),
        ("plain-sglang", 10_000_000, "exceed the context of 100 tokens"),
    ],
)
def test_limits_that_the_engines_own_servers_refuse(dialect, limit, message):
    (spelling,) = DIALECTS[dialect].limit_keys
    with pytest.raises(Refused, match=message):
        grant(dialect, 60, **{spelling: limit})


@pytest.mark.parametrize(("dialect", "tokens"), [("plain-vllm", 940), ("plain-sglang", 938)])
def test_a_limit_of_null_asks_the_engines_own_servers_for_all_the_room_and_is_an_error_for_verls(dialect, tokens):
    """So it is not what SGLang assumes without a limit, which is 128."""
    (spelling,) = DIALECTS[dialect].limit_keys
    large = Budget(prompt_length=20, response_length=30, max_model_len=1000)
    assert DIALECTS[dialect].take_grant(large, 60, {spelling: None}) == Grant(tokens, spelling, tokens, tokens)
    with pytest.raises(TypeError, match=f"{spelling} must be an integer, not None"):
        grant(dialect.removeprefix("plain-"), 60, **{spelling: None})


@pytest.mark.parametrize("dialect", ["plain-vllm", "plain-sglang"])
@pytest.mark.parametrize("limit", [8.0, "8", [8]])
def test_a_limit_that_is_no_integer_is_an_error(dialect, limit):
    (spelling,) = DIALECTS[dialect].limit_keys
    with pytest.raises(TypeError, match=f"{spelling} must be an integer, not "):
        grant(dialect, 60, **{spelling: limit})


def test_vllm_by_itself_does_not_look_at_fields_that_it_does_not_know():
    assert grant("plain-vllm", 60, max_new_tokens=3)[:2] == (40, "default")


@pytest.mark.parametrize(
    ("dialect", "rule", "tokens", "left"),
    [
        ("trtllm", "default", 30, {"max_tokens": 3, "max_new_tokens": 5}),
        ("plain-vllm", "max_tokens", 3, {"max_new_tokens": 5}),
    ],
)
def test_of_two_spellings_each_server_takes_its_own_and_leaves_the_other(dialect, rule, tokens, left):
    params = {"max_tokens": 3, "max_new_tokens": 5}

    assert DIALECTS[dialect].take_grant(BUDGET, 10, params)[:2] == (tokens, rule)
    assert params == left


@pytest.mark.parametrize(
    ("dialect", "own", "other"),
    [
        ("vllm", "max_tokens", "max_new_tokens"),
        ("sglang", "max_new_tokens", "max_tokens"),
        ("plain-sglang", "max_new_tokens", "max_tokens"),
    ],
)
def test_what_is_left_of_two_spellings_is_a_keyword_that_the_engine_does_not_know(dialect, own, other):
    params = {"max_tokens": 3, "max_new_tokens": 5}
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{other}'"):
        DIALECTS[dialect].take_grant(BUDGET, 10, params)
    assert own not in params


@pytest.mark.parametrize(
    ("dialect", "prompt_tokens", "room"),
    [
        *(("vllm", 99, 1), ("vllm", 100, 0), ("vllm", 101, -1)),
        *(("sglang", 98, 1), ("sglang", 99, 0), ("sglang", 100, -1)),
        *(("plain-vllm", 99, 1), ("plain-vllm", 100, 0), ("plain-vllm", 101, -1)),
        *(("plain-sglang", 93, 5), ("plain-sglang", 94, 4), ("plain-sglang", 100, -2)),
    ],
)
def test_a_prompt_is_refused_by_vllm_below_a_room_of_1_by_verl_for_sglang_below_0_and_by_sglang_below_5(
    dialect, prompt_tokens, room
):
    server = DIALECTS[dialect]
    assert server.room_tokens(BUDGET, prompt_tokens) == room
    assert server.least_room is not None
    limit = {server.limit_keys[0]: 1}
    if room >= server.least_room:
        assert grant(dialect, prompt_tokens, **limit).tokens == min(1, room)
    else:
        with pytest.raises(Refused, match=f"a prompt of {prompt_tokens} tokens leaves no room .* context of 100"):
            grant(dialect, prompt_tokens, **limit)


@pytest.mark.parametrize("prompt_tokens", [99, 100, 101, 1000])
def test_trtllm_never_refuses_a_prompt(prompt_tokens):
    assert grant("trtllm", prompt_tokens, max_tokens=7) == Grant(0, "default", 50 - prompt_tokens, 100 - prompt_tokens)


@pytest.mark.parametrize("dialect", ["vllm", "plain-vllm"])
def test_a_request_that_is_refused_for_its_prompt_keeps_its_limit(dialect):
    params = {"max_tokens": 7}
    with pytest.raises(Refused):
        DIALECTS[dialect].take_grant(BUDGET, 100, params)
    assert params == {"max_tokens": 7}


def test_sglang_by_itself_does_not_know_vllms_spelling():
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_tokens'"):
        grant("plain-sglang", 60, max_tokens=3)


def test_the_resume_that_overruns():
    """The numbers of verl PR 7207: what a server grants by default, aborted about every 2000 tokens."""
    budget = Budget(prompt_length=2048, response_length=8192, max_model_len=32_768)
    grants = [DIALECTS["vllm"].take_grant(budget, 136 + generated, {}).tokens for generated in range(0, 12_000, 2000)]
    assert grants == [8192, 8104, 6104, 4104, 2104, 104]


@pytest.mark.parametrize("max_model_len", [None, 100])
def test_context_is_the_models_where_max_model_len_is_not_set(max_model_len):
    budget = Budget(20, 30, max_model_len, max_position_embeddings=500)
    assert DIALECTS["vllm"].room_tokens(budget, 40) == (60 if max_model_len else 460)


@pytest.mark.parametrize(
    ("dialect", "spelled"),
    [
        ("vllm", "min(30, 20 + 30 − 40 = 10)"),
        ("sglang", "min(30, 20 + 30 − 40 = 10)"),
        ("trtllm", "min(30, 20 + 30 − 40 = 10)"),
        ("plain-vllm", "100 − 40 = 60"),
        ("plain-sglang", "128"),
    ],
)
def test_each_default_spells_its_formula(dialect, spelled):
    assert DIALECTS[dialect].default.spelled(BUDGET, 40) == spelled


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_default_is_the_same_for_an_array_of_prompts(dialect):
    prompts = np.arange(1, 100)
    terms = DIALECTS[dialect].default.terms(BUDGET, prompts)
    least = np.minimum.reduce(np.broadcast_arrays(*terms, prompts * 0 + 10**9))
    assert least.tolist() == [min(DIALECTS[dialect].default.terms(BUDGET, int(each))) for each in prompts]
