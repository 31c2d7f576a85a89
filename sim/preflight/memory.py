"""What a raise of max_num_batched_tokens costs: activation memory taken, and the KV cache that no longer fits there.

vLLM profiles one step of max_num_batched_tokens tokens at start-up and gives the KV cache what is left, so every
token of a raise costs twice: once as activations, once as KV blocks that are not there.
"""

import msgspec
from msgspec import UNSET

from sim.startup.model_shape import ModelShape

_BYTES_PER_VALUE = {"float": 4, "float32": 4}
"""Two bytes where not listed: `auto` is the checkpoint's own dtype, which has two for nearly all of them."""
_KV_BYTES_PER_VALUE = dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), 1)


class RaiseCost(msgspec.Struct, frozen=True, kw_only=True):
    """Per rank. `activation_bytes` is an estimate, the KV figures follow from it; None where the model is not known."""

    extra_tokens: int
    activation_bytes: int | None
    kv_bytes_per_token: int | None
    kv_tokens_lost: int | None
    kv_bytes_full_context: int | None


def kv_bytes_per_token(
    model: ModelShape, *, tensor_parallel: int = 1, dtype: str = "auto", kv_cache_dtype: str = "auto"
) -> int | None:
    """KV-cache bytes a token takes on one rank: a key and a value for every layer and KV head."""
    heads, layers, head_dim = model.num_key_value_heads, model.num_hidden_layers, model.head_dim
    if heads is UNSET or layers is UNSET or head_dim is UNSET:
        return None
    heads_here = max(1, heads // tensor_parallel)
    value_bytes = _KV_BYTES_PER_VALUE.get(kv_cache_dtype, _BYTES_PER_VALUE.get(dtype, 2))
    return 2 * layers * heads_here * head_dim * value_bytes


def activation_bytes_per_token(model: ModelShape, *, tensor_parallel: int = 1, dtype: str = "auto") -> int | None:
    """Activation bytes a token takes at a step's peak, on one rank; None for mixtures of experts.

    The peak of a dense decoder lies in the gated MLP: residual and hidden state, gate and up, and their product are
    alive together (2 × hidden + 3 × intermediate / ranks values). Layers run one after another, so only one counts;
    logits are made for max_num_seqs rows at most and do not grow with the step.
    """
    if model.hidden_size is UNSET or model.intermediate_size is UNSET or model.is_moe:
        return None
    values = 2 * model.hidden_size + 3 * model.intermediate_size // tensor_parallel
    return values * _BYTES_PER_VALUE.get(dtype, 2)


def raise_cost(
    model: ModelShape,
    before_tokens: int,
    after_tokens: int,
    *,
    max_model_len: int | None = None,
    tensor_parallel: int = 1,
    dtype: str = "auto",
    kv_cache_dtype: str = "auto",
) -> RaiseCost:
    """The price of raising max_num_batched_tokens from `before_tokens` to `after_tokens`."""
    if after_tokens < before_tokens:
        raise ValueError(f"a raise from {before_tokens} to {after_tokens} is none")
    extra = after_tokens - before_tokens
    per_token = activation_bytes_per_token(model, tensor_parallel=tensor_parallel, dtype=dtype)
    kv = kv_bytes_per_token(model, tensor_parallel=tensor_parallel, dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    activation = None if per_token is None else extra * per_token
    return RaiseCost(
        extra_tokens=extra,
        activation_bytes=activation,
        kv_bytes_per_token=kv,
        kv_tokens_lost=None if activation is None or kv is None else activation // kv,
        kv_bytes_full_context=None if kv is None or max_model_len is None else kv * max_model_len,
    )
