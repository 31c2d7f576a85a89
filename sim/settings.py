"""How the replicas of a Case behave: their dialect, their gate, their engine, and how long its work takes."""

import functools
from importlib.util import find_spec
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from sim.dialects import DIALECTS, Dialect
from sim.engine.config import EngineConfig
from sim.engine.latency import Affine, Constant, Fitted, Latency, Roofline
from sim.schema import MAX_TOKENS, CaseError, Data, PositiveTokenCount, Seconds, TokenCount
from sim.startup.batch import check_batch
from sim.startup.kv_pool import blocks_needed, fit_pool

MAX_PARKED_S = 60.0
"""Unless a framework says otherwise."""


class EngineSettings(Data, frozen=True):
    """The settings of a replica's engine, under vLLM's names; the defaults are those of verl's rollouts.

    `num_gpu_blocks` counts the null block. Null: as on a GPU with 30 GB to spare for the KV of a 7B model, or what
    one request of max_model_len needs, if that is more. `max_num_seqs` null: 1024, or `max_num_batched_tokens` where
    that is fewer, as vLLM lowers it.
    """

    num_gpu_blocks: Annotated[int, Meta(ge=2, le=MAX_TOKENS)] | None = None
    block_size: Annotated[int, Meta(ge=1, le=65_536)] = 16
    max_num_seqs: PositiveTokenCount | None = None
    max_num_batched_tokens: PositiveTokenCount = 8192
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: TokenCount = 0
    watermark: Annotated[float, Meta(ge=0, lt=1)] = 0.0

    def fitted(self, max_model_len: int) -> "EngineSettings":
        """As they are, but for what vLLM would not start with at this max_model_len."""
        pool, batched = self.num_gpu_blocks, max(self.max_num_batched_tokens, self.max_num_seqs or 1)
        return msgspec.structs.replace(
            self,
            num_gpu_blocks=None if pool is None else max(pool, blocks_needed(max_model_len, self.block_size)),
            max_num_batched_tokens=batched if self.enable_chunked_prefill else max(batched, max_model_len),
            long_prefill_token_threshold=min(self.long_prefill_token_threshold, max_model_len),
        )

    @functools.lru_cache(maxsize=64)  # noqa: B019 - settings are plain data, equal ones share the result
    def config(self, max_model_len: int) -> EngineConfig:
        """For an engine; a CaseError for what vLLM would not start with."""
        limits: dict[str, Any] = {
            "max_model_len": max_model_len,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs or min(_MAX_NUM_SEQS, self.max_num_batched_tokens),
            "enable_chunked_prefill": self.enable_chunked_prefill,
            "long_prefill_token_threshold": self.long_prefill_token_threshold,
        }
        num_gpu_blocks = self.num_gpu_blocks
        if num_gpu_blocks is None:
            num_gpu_blocks = max(_NUM_GPU_BLOCKS, blocks_needed(max_model_len, self.block_size))
        _, of_pool = fit_pool(max_model_len, self.block_size, num_gpu_blocks)
        for found in (*of_pool, *check_batch(limits)):
            if found.level == "refused":
                raise CaseError(f"server.engine.{found.error}")
        return EngineConfig(
            **limits | {"max_model_len": max(2, max_model_len)},
            num_gpu_blocks=num_gpu_blocks,
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            scheduling_policy=self.scheduling_policy,
            watermark=self.watermark,
        )


USUAL_ENGINE = EngineSettings()
_NUM_GPU_BLOCKS = 32_768
_MAX_NUM_SEQS = 1024


class RooflineLatency(Data, frozen=True, tag_field="latency", tag="roofline"):
    """A step takes what `hardware` needs at its peak for a model's weights, KV and sums; see `sim.engine.latency`."""

    hardware: str
    model: str
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=1024)] = 1
    overhead_s: Seconds = 0.0


class FittedLatency(Data, frozen=True, tag_field="latency", tag="fitted"):
    """A step takes `fixed_s`, and so much for each token that it schedules and for each token in its KV. The figures
    are those that `sim.engine.latency.Fitted` finds in measurements."""

    fixed_s: Seconds
    scheduled_token_s: Seconds = 0.0
    kv_token_s: Seconds = 0.0


LatencyModel: TypeAlias = RooflineLatency | FittedLatency


Face: TypeAlias = Literal["vllm", "sglang"]

FACE_DIALECTS: dict[Face, str] = {"vllm": "plain-vllm", "sglang": "plain-sglang"}
"""What answers behind an HTTP face."""


class ServerSettings(Data, frozen=True):
    """How a replica behaves: the dialect of its grants, its gate, its engine, and how long its work takes.

    `submission_gate`: verl 0.9.1's servers park (or reject) what arrives between an abort and its resume;
    without it the paused engine queues it. `admission_s`: from passing the gate to being in the engine.
    A step of the engine takes `token_time_s`, and `prefill_s` more if it computes any prompt, unless `latency` says
    otherwise. `engine` null: there are no steps and no KV, and each request decodes a token each `token_time_s` after
    `prefill_s`, however many there are. `routed_experts`: in which container answers bring the experts that each token
    was routed to (`sim.servers.experts`). `max_parked_s`: how long a request may wait at a closed gate beyond the
    pauses that the Case asks for; adapters declare their own, and a search writes it here. `face`: the HTTP that
    replicas also speak, on a network of the world (`sim.face`).
    """

    dialect: str = "vllm"
    submission_gate: bool = True
    token_time_s: Seconds = 0.01
    prefill_s: Seconds = 0.0
    admission_s: Seconds = 0.0
    engine: EngineSettings | None = EngineSettings()
    latency: LatencyModel | None = None
    routed_experts: Literal["none", "list", "numpy", "torch"] = "none"
    max_parked_s: Seconds = MAX_PARKED_S
    face: Face | None = None

    def __post_init__(self) -> None:
        if self.face is not None and self.dialect != FACE_DIALECTS[self.face]:
            needed = FACE_DIALECTS[self.face]
            raise CaseError(f"server.dialect is {self.dialect!r}; with server.face {self.face!r} it is {needed!r}")
        if self.dialect not in DIALECTS and DIALECTS.find(self.dialect) is None:
            raise CaseError(f"server.dialect: {DIALECTS.unknown(self.dialect)}")
        if self.routed_experts == "torch" and find_spec("torch") is None:
            raise CaseError("server.routed_experts is torch: that package is not installed; list and numpy do without")

    @property
    def rules(self) -> Dialect:
        """What servers of its dialect do."""
        return DIALECTS[self.dialect]

    @property
    def has_gate(self) -> bool:
        """Whether what arrives during a pause waits in front of the engine."""
        return self.submission_gate and self.rules.has_gate

    def make_latency(self) -> Latency:
        """How long the engine's steps take; a CaseError for hardware or a model that is unknown."""
        match self.latency:
            case RooflineLatency(hardware, model, tensor_parallel_size, overhead_s):
                try:
                    return Roofline(
                        hardware,
                        model,
                        tensor_parallel_size=tensor_parallel_size,
                        overhead_ns=round(overhead_s * 10**9),
                    )
                except ValueError as error:
                    raise CaseError(f"server.latency: {error}") from None
            case FittedLatency(fixed_s, scheduled_token_s, kv_token_s):
                return Fitted(Affine(*(round(part_s * 10**15) for part_s in (fixed_s, scheduled_token_s, kv_token_s))))
            case None:
                return Constant(round(self.token_time_s * 10**9), round(self.prefill_s * 10**9))
