"""Tokens to time: affine, exact in its two sums, and dearer the deeper a token sits."""

import pytest

from sim.waste.cost import Affine, LatencyError, engine_s, parse
from sim.waste.ledger import tally


def test_the_sums_cost_what_the_steps_cost():
    """A batch of one: its steps one by one, against the two sums."""
    latency = Affine(12_000_000, 40_000)
    steps_ns = sum(latency.decode_ns(1, position) for position in range(136, 136 + 500))
    assert engine_s(latency, 1, tally(136, 500)) == pytest.approx(steps_ns / 1e9, rel=1e-9)


def test_a_batch_shares_the_step_and_not_the_depth():
    latency = Affine(12_000_000, 40_000)
    alone, shared = engine_s(latency, 1, tally(1000, 1)), engine_s(latency, 64, tally(1000, 1))
    assert alone == pytest.approx(0.012 + 1000 * 40e-9)
    assert shared == pytest.approx(0.012 / 64 + 1000 * 40e-9)


def test_deep_tokens_cost_more():
    latency = parse("affine:12,40")
    deep, shallow = engine_s(latency, 64, tally(8328, 1912)), engine_s(latency, 64, tally(136, 1912))
    assert deep > 1.5 * shallow
    constant = parse("constant:12")
    assert engine_s(constant, 64, tally(8328, 1912)) == engine_s(constant, 64, tally(136, 1912))
    assert engine_s(constant, 64, tally(5, 0)) == 0


@pytest.mark.parametrize(
    "text", ["h100", "constant", "constant:0", "constant:1,2", "affine:1", "affine:1,-2", "affine:x,y"]
)
def test_an_unknown_model_lists_the_known(text):
    with pytest.raises(LatencyError, match="known are constant:MS"):
        parse(text)
