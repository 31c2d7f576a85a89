"""What an engine is built from, and what differs between the vLLM versions it can stand in for."""

import re
from typing import Literal, NamedTuple, TypeAlias

import msgspec

SCHEDULING_POLICIES = ("fcfs", "priority")

PauseMode: TypeAlias = Literal["abort", "wait", "keep"]
"""What a pause does with the requests that are there: see `Engine.pause`."""


class VersionRules(NamedTuple):
    """The scheduling rules that changed between vLLM 0.24 and 0.32."""

    caps_lone_prefill: bool
    """``long_prefill_token_threshold`` applies even to the only request there is (up to 0.30)."""
    min_tokens_hold_back_length: bool
    """No finish rule, not even a length limit, is looked at before ``min_tokens`` outputs (up to 0.28)."""
    reports_reset_preemptions: bool
    """A step's ``preempted`` names the requests that a cache reset preempted since the last step (from 0.25)."""


VERSION_RULES = {
    "0.24": VersionRules(caps_lone_prefill=True, min_tokens_hold_back_length=True, reports_reset_preemptions=False),
    "0.25": VersionRules(caps_lone_prefill=True, min_tokens_hold_back_length=True, reports_reset_preemptions=True),
    "0.26": VersionRules(caps_lone_prefill=True, min_tokens_hold_back_length=True, reports_reset_preemptions=True),
    "0.27": VersionRules(caps_lone_prefill=True, min_tokens_hold_back_length=True, reports_reset_preemptions=True),
    "0.28": VersionRules(caps_lone_prefill=True, min_tokens_hold_back_length=True, reports_reset_preemptions=True),
    "0.29": VersionRules(caps_lone_prefill=True, min_tokens_hold_back_length=False, reports_reset_preemptions=True),
    "0.30": VersionRules(caps_lone_prefill=True, min_tokens_hold_back_length=False, reports_reset_preemptions=True),
    "0.31": VersionRules(caps_lone_prefill=False, min_tokens_hold_back_length=False, reports_reset_preemptions=True),
    "0.32": VersionRules(caps_lone_prefill=False, min_tokens_hold_back_length=False, reports_reset_preemptions=True),
}


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one engine, under vLLM's names.

    Only what a scheduling step cannot do without is checked here; which combinations vLLM refuses at start-up
    is another matter.

    Raises:
        ValueError: a field is out of range; the message has its name, its value and what is allowed.
    """

    num_gpu_blocks: int
    """KV blocks in the pool, with the reserved null block: one fewer is usable."""
    block_size: int
    """Tokens a block."""
    max_num_seqs: int
    """Requests that may run at once."""
    max_num_batched_tokens: int
    """Tokens one step may schedule: the token budget."""
    max_model_len: int
    """Tokens a request may have, prompt and output together."""
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    """Tokens of one prefill that a step may schedule while there is anyone else; 0 is no limit."""
    watermark: float = 0.0
    """Share of the pool that an admission must leave free while anything runs."""
    scheduler_reserve_full_isl: bool = True
    """Admit only a request whose whole prompt fits in the free blocks, not just its first chunk."""
    async_scheduling: bool = False
    """Schedule a step before the output of the one before it is known (depth 2; not confirmed on a GPU)."""
    vllm_version: str = "0.32"

    def __post_init__(self) -> None:
        _require_int(self, "num_gpu_blocks", at_least=2)
        _require_int(self, "block_size", at_least=1)
        _require_int(self, "max_num_seqs", at_least=1)
        _require_int(self, "max_num_batched_tokens", at_least=1)
        _require_int(self, "max_model_len", at_least=2)
        _require_int(self, "long_prefill_token_threshold", at_least=0)
        for field in ("enable_chunked_prefill", "enable_prefix_caching", "scheduler_reserve_full_isl"):
            _require_bool(self, field)
        _require_bool(self, "async_scheduling")
        if self.scheduling_policy not in SCHEDULING_POLICIES:
            raise _refused("scheduling_policy", self.scheduling_policy, f"one of {', '.join(SCHEDULING_POLICIES)}")
        if not isinstance(self.watermark, int | float) or not 0 <= self.watermark < 1:
            raise _refused("watermark", self.watermark, "a number in [0, 1)")
        self.version_rules  # noqa: B018 - refuses an unknown version at once

    @property
    def version_rules(self) -> VersionRules:
        """The rules of ``vllm_version``; a patch level ("0.32.1") makes no difference."""
        minor = re.fullmatch(r"(\d+\.\d+)(\..*)?", str(self.vllm_version))
        if minor is None or minor[1] not in VERSION_RULES:
            raise _refused("vllm_version", self.vllm_version, f"one of {', '.join(VERSION_RULES)}")
        return VERSION_RULES[minor[1]]

    @property
    def usable_blocks(self) -> int:
        return self.num_gpu_blocks - 1

    @property
    def watermark_blocks(self) -> int:
        return int(self.watermark * self.num_gpu_blocks)


def _require_int(config: EngineConfig, field: str, *, at_least: int) -> None:
    value = getattr(config, field)
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise _refused(field, value, f"an int of at least {at_least}")


def _require_bool(config: EngineConfig, field: str) -> None:
    value = getattr(config, field)
    if not isinstance(value, bool):
        raise _refused(field, value, "True or False")


def _refused(field: str, value: object, allowed: str) -> ValueError:
    return ValueError(f"{field}={value!r} is not possible: it must be {allowed}")
