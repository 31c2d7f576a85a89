"""Tokens to time: what the steps cost, apportioned so that the parts add up, and dearer the deeper a token sits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.engine import StepTotals
from sim.engine.latency import HARDWARE, MODELS, Fitted
from sim.waste.cost import PREFILL_CHUNK_TOKENS, LatencyError, Rates, parse, rates
from sim.waste.ledger import Tally, tally, total

SPELLINGS = ("constant:12", "affine:12,40", "roofline:H100-SXM:Qwen2.5-7B", "roofline:A100-SXM-80GB:Llama-3.1-70B:8")


def rates_at(text, batch, some):
    return rates(parse(text).latency, batch, some.depth_tokens)


@pytest.mark.parametrize("text", SPELLINGS)
def test_the_sums_cost_what_the_steps_cost(text):
    """A batch of one: its steps one by one, against the two sums."""
    latency, some = parse(text).latency, tally(136, 500)
    steps_fs = sum(latency.stretch(StepTotals(1, 0, 1, position)).first_fs for position in range(136, 136 + 500))
    assert rates_at(text, 1, some).engine_s(some) == pytest.approx(steps_fs / 1e15, rel=1e-9)


@given(st.sampled_from(SPELLINGS), st.integers(1, 1000), st.integers(0, 30_000), st.integers(1, 5000))
def test_the_parts_add_up_and_a_mean_step_costs_what_the_model_says(text, batch, position, tokens):
    some, deeper = tally(position, tokens), tally(position + tokens, tokens)
    both = total(some, deeper)
    spent = rates_at(text, batch, both)
    assert spent.engine_s(some) + spent.engine_s(deeper) == pytest.approx(spent.engine_s(both), rel=1e-9)
    step = StepTotals(batch, 0, batch, round(batch * both.depth_tokens))
    step_s = parse(text).latency.stretch(step).first_fs / 1e15
    assert spent.engine_s(both) / both.tokens * batch == pytest.approx(step_s, rel=1e-3)
    assert min(spent) >= 0


def test_a_batch_shares_the_step_and_not_the_depth():
    one = tally(1000, 1)
    alone, shared = (rates_at("affine:12,40", batch, one).engine_s(one) for batch in (1, 64))
    assert alone == pytest.approx(0.012 + 1000 * 40e-9)
    assert shared == pytest.approx(0.012 / 64 + 1000 * 40e-9)


@pytest.mark.parametrize("text", SPELLINGS[1:])
def test_overrun_tokens_cost_more_than_the_mean(text):
    """The report's response: 8192 tokens behind a prompt of 136, and 1912 beyond them."""
    kept, overrun = tally(136, 8192), tally(136 + 8192, 1912)
    spent = rates_at(text, 64, total(kept, overrun))
    per_token = [spent.engine_s(some) / some.tokens for some in (kept, overrun)]
    assert per_token[1] > 1.1 * per_token[0]
    flat = rates_at("constant:12", 64, kept)
    assert flat.engine_s(overrun) / overrun.tokens == pytest.approx(flat.engine_s(kept) / kept.tokens)
    assert flat.engine_s(Tally()) == 0


def test_prefill_costs_what_it_adds_to_a_step():
    assert rates_at("affine:12,40", 64, tally(1000, 1)).prefill_token_s == pytest.approx(40e-9)
    roofline = rates_at("roofline:H100-SXM:Qwen2.5-7B", 1, tally(0, 1))
    sums_s = PREFILL_CHUNK_TOKENS * 2 * 7_615_616_512 / 989e12
    step_of_one_s = 2 * 7_615_616_512 / 3.35e12
    assert roofline.prefill_token_s * PREFILL_CHUNK_TOKENS == pytest.approx(sums_s - step_of_one_s, rel=0.02)


def test_every_preset_can_be_named():
    for hardware in HARDWARE:
        for model in MODELS:
            spelled = parse(f"roofline:{hardware}:{model}:2")
            assert (spelled.gpus, isinstance(rates(spelled.latency, 8, 100), Rates)) == (2, True)
    assert parse("roofline:L40S:Qwen2.5-7B").gpus == 1


def test_measured_steps(tmp_path):
    path = tmp_path / "steps.csv"
    rows = [f"{batch},{tokens},{0.012 + 4e-8 * tokens}" for batch in (1, 64) for tokens in (100, 90_000)]
    path.write_text("batch,tokens,seconds\n" + "\n".join(rows))
    fitted, affine = parse(str(path)), parse("affine:12,40")
    assert isinstance(fitted.latency, Fitted)
    assert "off by 0.0% on average" in fitted.about
    assert rates(fitted.latency, 64, 500)[:2] == pytest.approx(rates(affine.latency, 64, 500)[:2], rel=1e-6)


@pytest.mark.parametrize(
    "text", ["h100", "constant", "constant:0", "constant:1,2", "affine:1", "affine:1,-2", "affine:x,y", "roofline"]
)
def test_an_unknown_model_lists_the_known(text):
    with pytest.raises(LatencyError, match=r"known are constant:MS .* H100-SXM, .* Qwen2\.5-7B"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("roofline:H100:Qwen2.5-7B", "hardware='H100' is unknown; known are A100-SXM-80GB, H100-SXM"),
        ("roofline:H100-SXM:gpt-2", "model='gpt-2' is unknown; known are Qwen2.5-0.5B"),
        ("roofline:H100-SXM:Qwen2.5-7B:0", "tensor_parallel_size=0 is not possible"),
        ("roofline:H100-SXM:Qwen2.5-7B:x", "roofline:HARDWARE:MODEL:TENSOR_PARALLEL_SIZE is needed"),
        ("none.csv", "none.csv: cannot be read: No such file"),
    ],
)
def test_what_is_wrong_is_said(text, says):
    with pytest.raises(LatencyError) as error:
        parse(text)
    assert str(error.value).startswith(f"--latency {text}")
    assert says in str(error.value)
