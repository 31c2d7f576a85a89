"""A request: what a caller asks for, and where the engine is with it."""

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from sim.engine.kv_cache import Block

NOT_STEADY = -1


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as handed to `Engine.add`. Output token p is ``output_base + p``."""

    request_id: str
    prompt_token_ids: Sequence[int]
    """At least one token, fewer than max_model_len; a range costs nothing to hold."""
    max_tokens: int = 16
    stop_at: int | None = None
    """Position of the output token that is its stop token, counted from 0; it is part of the output."""
    priority: int = 0
    """Lower wins, under the priority policy only; ties go to the earlier arrival_time."""
    arrival_time: float = 0.0
    output_base: int = 0
    min_tokens: int = 0
    """Matters to vLLM up to 0.28 only, see `VersionRules.min_tokens_hold_back_length`."""


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """A request inside the scheduler. Counts are in tokens and mean what they mean in vLLM.

    ``num_computed_tokens`` counts the tokens whose KV the request holds, those of steps still in flight included;
    ``num_output_placeholders`` counts sampled tokens that have not come back yet (async scheduling only).

    While a request is *steady* (see `sim.engine.decodes`) both counts stand as they were when it became so; only
    `Decodes` knows how far it has come since.
    """

    __slots__ = (
        "arrival_time",
        "block_hashes",
        "blocks",
        "final_output_tokens",
        "finish_reason",
        "kv_weight_version",
        "max_tokens",
        "num_computed_tokens",
        "num_delivered_tokens",
        "num_output_placeholders",
        "num_output_tokens",
        "num_prompt_tokens",
        "open_block_weight_version",
        "output_base",
        "priority",
        "prompt_token_ids",
        "request_id",
        "running_order",
        "status",
        "steady_since",
    )

    def __init__(self, request: EngineRequest, final_output_tokens: int, finish_reason: str) -> None:
        prompt = request.prompt_token_ids
        self.request_id = request.request_id
        self.prompt_token_ids = prompt if isinstance(prompt, range) else tuple(prompt)
        self.num_prompt_tokens = len(prompt)
        self.max_tokens = request.max_tokens
        self.priority = request.priority
        self.arrival_time = request.arrival_time
        self.output_base = request.output_base
        self.final_output_tokens = final_output_tokens
        """Output tokens with which it ends by itself, for finish_reason: known ahead, as the model is made up."""
        self.finish_reason = finish_reason

        self.status = RequestStatus.WAITING
        self.num_output_tokens = 0
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.num_delivered_tokens = 0
        self.running_order = 0
        """Position in the running list, which is in order of admission."""
        self.steady_since = NOT_STEADY

        self.blocks: list[Block] = []
        """Its full blocks that the prefix cache knows; the rest of what it holds are nameless."""
        self.block_hashes: list[int] = []
        self.kv_weight_version = 0
        """Oldest weight version among the KV it holds."""
        self.open_block_weight_version: int | None = None
        """Oldest weight version in the block being filled, where that is not the current one."""

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def tokens(self, start: int, end: int) -> Sequence[int]:
        """Token ids at positions start to end (exclusive), whether generated yet or not."""
        num_prompt_tokens = self.num_prompt_tokens
        if end <= num_prompt_tokens:
            return self.prompt_token_ids[start:end]
        first_output = self.output_base - num_prompt_tokens
        output = range(first_output + max(start, num_prompt_tokens), first_output + end)
        if start >= num_prompt_tokens:
            return output
        return (*self.prompt_token_ids[start:], *output)

    def __lt__(self, other: "Request") -> bool:
        """Order under the priority policy: as in vLLM by priority, arrival and then id."""
        return (self.priority, self.arrival_time, self.request_id) < (
            other.priority,
            other.arrival_time,
            other.request_id,
        )

    def __repr__(self) -> str:
        return f"Request({self.request_id!r}, {self.status.value}, {self.num_prompt_tokens}+{self.num_output_tokens})"
