"""Worlds whose engines are short of something: KV blocks, places in a step, time. In a share of the worlds, so that all
others stay as they are.

Pools hold little more than one request of the context, so that two preempt each other; for that the context is short.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import UNSET

from sim.case import Budget, EngineSettings, FittedLatency, LatencyModel, RooflineLatency, ServerSettings
from sim.startup.kv_pool import blocks_needed

Fit = Callable[[Budget, ServerSettings], tuple[Budget, ServerSettings]]
"""Puts an engine into a server, and a context into a budget that leaves it to the model."""

ONE_IN = 4
"""Worlds that have another engine than the usual one."""

_BLOCK_SIZES = (16, 4, 1, 8)
_MOST_SEQS = (None, None, 1, 2, 4)
_STEP_TOKENS = (8192, 8192, 64, 16, 7)
_THRESHOLDS = (0, 0, 0, 5, 16)
_WATERMARKS = (0.0, 0.0, 0.0, 0.1)
_TOKEN_TIMES_S = (0.01, 0.25, 1.0, 0.25, 0.0)
"""Most of them so long that sessions meet in the engine."""

_SPARE_TOKENS = (8, 0, 0, 32)
_LATENCIES: tuple[LatencyModel | None, ...] = (
    *[None] * 9,
    FittedLatency(0.01),
    FittedLatency(0.1, 0.001, 0.0001),
    RooflineLatency("H100-SXM", "Qwen2.5-7B"),
    RooflineLatency("A100-SXM-80GB", "Qwen2.5-32B", 2, 0.01),
)


def _engine(drawn: tuple[Any, ...]) -> Fit:
    blocks, block_size, batch, flags, token_time_s, latency, context = drawn
    spare_blocks = blocks - 1
    max_num_seqs, step_tokens, threshold, watermark = batch
    is_whole, is_uncached, by_priority, is_rate, brings_experts = flags

    def settings(max_model_len: int) -> EngineSettings:
        return EngineSettings(
            num_gpu_blocks=None if spare_blocks < 0 else blocks_needed(max_model_len, block_size) + spare_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=step_tokens,
            enable_chunked_prefill=not is_whole,
            enable_prefix_caching=not is_uncached,
            scheduling_policy="priority" if by_priority else "fcfs",
            long_prefill_token_threshold=threshold,
            watermark=watermark,
        ).fitted(max_model_len)

    def fit(budget: Budget, server: ServerSettings) -> tuple[Budget, ServerSettings]:
        kind, spare_tokens = context
        if budget.max_model_len is UNSET and (kind or spare_blocks >= 0):
            short = budget.prompt_length + budget.response_length + spare_tokens
            if kind < 2:
                budget = msgspec.structs.replace(budget, max_model_len=short)
            else:
                unset: Any = UNSET if kind == 2 else None
                budget = msgspec.structs.replace(budget, max_model_len=unset, max_position_embeddings=short)
        return budget, msgspec.structs.replace(
            server,
            engine=None if is_rate else settings(budget.context_tokens),
            latency=None if is_rate else latency,
            token_time_s=token_time_s,
            routed_experts="list" if brings_experts else "none",
        )

    return fit


def _rarely(one_in: int) -> st.SearchStrategy[bool]:
    return st.integers(0, one_in - 1).map(lambda number: number == one_in - 1)


_engines = st.tuples(
    st.integers(0, 4),
    st.sampled_from(_BLOCK_SIZES),
    st.tuples(*map(st.sampled_from, (_MOST_SEQS, _STEP_TOKENS, _THRESHOLDS, _WATERMARKS))),
    st.tuples(_rarely(4), _rarely(6), _rarely(2), _rarely(12), _rarely(12)),
    st.sampled_from(_TOKEN_TIMES_S),
    st.sampled_from(_LATENCIES),
    st.tuples(st.integers(0, 3), st.sampled_from(_SPARE_TOKENS)),
).map(_engine)

ENGINES: st.SearchStrategy[Fit | None] = st.one_of(*[st.none()] * (ONE_IN - 1), _engines)
"""None: the engine stays as it is."""
