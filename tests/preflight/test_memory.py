"""The price of a raise against a calculation by hand."""

import pytest

from sim.preflight.memory import activation_bytes_per_token, kv_bytes_per_token, raise_cost
from sim.startup.model_shape import ModelShape

VL_3B = ModelShape(
    hidden_size=2048,
    intermediate_size=11_008,
    num_hidden_layers=36,
    num_attention_heads=16,
    num_key_value_heads=2,
    head_dim=128,
)
"""Qwen2.5-VL-3B's language model."""


def test_by_hand() -> None:
    """8192 → 128000 on one rank in bfloat16.

    A token's KV: key and value × 36 layers × 2 heads × 128 × 2 bytes = 36,864 bytes.
    A token's activations: (2 × 2048 + 3 × 11008) values = 37,120, × 2 bytes = 74,240 bytes.
    119,808 more tokens: 119,808 × 74,240 = 8,894,545,920 bytes = 8.28 GiB; over 36,864 that is 241,280 tokens of KV.
    A full request: 128,000 × 36,864 = 4,718,592,000 bytes = 4.39 GiB.
    """
    cost = raise_cost(VL_3B, 8192, 128_000, max_model_len=128_000, dtype="bfloat16")
    assert cost.extra_tokens == 119_808
    assert cost.kv_bytes_per_token == 36_864
    assert cost.activation_bytes == 8_894_545_920
    assert cost.kv_tokens_lost == 241_280
    assert cost.kv_bytes_full_context == 4_718_592_000


def test_ranks_and_dtypes_by_hand() -> None:
    """Two ranks: one KV head each and half the MLP; heads are not split below one; fp8 halves the KV, not the rest."""
    assert kv_bytes_per_token(VL_3B, tensor_parallel=2) == 36_864 // 2
    assert kv_bytes_per_token(VL_3B, tensor_parallel=8) == 36_864 // 2
    assert kv_bytes_per_token(VL_3B, kv_cache_dtype="fp8") == 36_864 // 2
    assert kv_bytes_per_token(VL_3B, dtype="float32") == 36_864 * 2
    assert activation_bytes_per_token(VL_3B, tensor_parallel=2) == (2 * 2048 + 3 * 11_008 // 2) * 2


def test_no_raise_costs_nothing_and_a_fall_is_an_error() -> None:
    free = raise_cost(VL_3B, 8192, 8192)
    assert (free.extra_tokens, free.activation_bytes, free.kv_tokens_lost) == (0, 0, 0)
    with pytest.raises(ValueError, match="8192 to 4096"):
        raise_cost(VL_3B, 8192, 4096)


def test_what_is_not_known_is_not_guessed() -> None:
    assert raise_cost(ModelShape(), 8192, 32_768).activation_bytes is None
    mixture = ModelShape(hidden_size=2048, intermediate_size=11_008, is_moe=True)
    assert activation_bytes_per_token(mixture) is None
