"""A request: what a caller asks for, and where the engine is with it."""

import enum
from collections.abc import Sequence

import msgspec

from sim.tokens import TokenIds

NOT_STEADY = -1
_COMPACT = (range, TokenIds)


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


WAITING, RUNNING, PREEMPTED, FINISHED = RequestStatus
"""By these names, as CPython 3.11 takes ten times as long to find a member in its enum."""


class Request(msgspec.Struct, eq=False):
    """A request inside the scheduler, compared by identity. Counts are in tokens and mean what they mean in vLLM.

    ``num_computed_tokens`` counts the tokens whose KV the request holds, those of steps still in flight included;
    ``num_output_placeholders`` counts sampled tokens that have not come back yet (async scheduling only).

    While a request is *steady* (see `sim.engine.steady`) both counts stand as they were when it became so; only
    `Decodes` knows how far it has come since.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    num_prompt_tokens: int
    max_tokens: int
    priority: int
    arrival_time: float
    output_base: int
    final_output_tokens: int
    """Output tokens with which it ends by itself, for finish_reason: known ahead, as the model is made up."""
    finish_reason: str

    status: RequestStatus = WAITING
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    num_delivered_tokens: int = 0
    running_order: int = 0
    """Position in the running list, which is in order of admission, from 1."""
    steady_since: int = NOT_STEADY

    num_cached_blocks: int = 0
    """Of the blocks it holds, the first, full ones, which the prefix cache knows; the rest are nameless."""
    chains: Sequence[tuple[int, int]] = ()
    """Names of its content, once the prefix cache needed them."""
    kv_weight_version: int = 0
    """Oldest weight version among the KV it holds."""
    open_block_weight_version: int | None = None
    """Oldest weight version in the block being filled, where that is not the current one."""

    @staticmethod
    def from_engine_request(request: EngineRequest, final_output_tokens: int, finish_reason: str) -> "Request":
        prompt = request.prompt_token_ids
        return Request(
            request.request_id,
            prompt if isinstance(prompt, _COMPACT) else tuple(prompt),
            len(prompt),
            request.max_tokens,
            request.priority,
            request.arrival_time,
            request.output_base,
            final_output_tokens,
            finish_reason,
        )

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def tokens(self, start: int, end: int) -> Sequence[int]:
        """Token ids at positions start to end (exclusive), whether generated yet or not."""
        num_prompt_tokens = self.num_prompt_tokens
        if end <= num_prompt_tokens:
            ids = self.prompt_token_ids[start:end]
            return (ids.as_range() or ids) if isinstance(ids, TokenIds) else ids
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
