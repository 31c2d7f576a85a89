"""The rules that decide a start, dated by the release that brought them, and what is found where one bites."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET

Version = tuple[int, ...]
Level = Literal["refused", "changed", "risky", "note"]
StartStage = str

NEWEST: Version = (0, 32)
"""The newest release of vLLM that the rules were held against."""


def dotted(version: Version) -> str:
    return ".".join(map(str, version))


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that bit: on which setting, what was given, what it becomes, and why.

    `condition` is set where the verdict hangs on something not known here (most often the model's context length).
    `error` is `why` as the settings' holder says it: it begins with the one to change, its value and what is allowed.
    """

    rule: str
    level: Level
    stage: StartStage
    setting: str
    given: Any = UNSET
    becomes: Any = UNSET
    why: str
    remedy: str
    condition: str | None = None
    error: str | None = None


class Rule(msgspec.Struct, frozen=True):
    """One rule of an engine: where it bites, and from which release on (`since`) until which (`until`, excluded)."""

    id: str
    level: Level
    stage: StartStage
    remedy: str
    since: Version = (0,)
    until: Version | None = None

    def holds(self, version: Version) -> bool:
        return self.since <= version and (self.until is None or version < self.until)

    def found(self, setting: str, why: str, **more: Any) -> Finding:
        """That the rule bit; `more` are further fields of the `Finding`."""
        fields = {"remedy": self.remedy, **more}
        return Finding(rule=self.id, level=self.level, stage=self.stage, setting=setting, why=why, **fields)


def table(*rules: Rule) -> dict[str, Rule]:
    return {rule.id: rule for rule in rules}


# fmt: off
RULES = table(
    # What one setting may hold
    Rule("wrong-null", "refused", "config", "leave the setting out to get vLLM's default"),
    Rule("out-of-range", "refused", "config", "give a value in the allowed range"),
    Rule("unknown-choice", "refused", "config", "give one of the allowed values"),
    Rule("unknown-flag", "refused", "config", "drop the flag, or move to a release with it"),
    Rule("null-in-config-file", "refused", "config", "leave the key out of the config file"),
    Rule("false-lost-in-config-file", "changed", "config", "write the flag's no- form: true"),
    # How the context, the step and the sequences limit one another
    Rule("context-above-model", "refused", "config",
         "lower max_model_len; VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 only if the model really extends"),
    Rule("batch-below-context", "refused", "config",
         "drop the stale enable_chunked_prefill=False, or set max_model_len explicitly to what is needed"),
    Rule("batch-below-seqs", "refused", "config", "raise max_num_batched_tokens or lower max_num_seqs"),
    Rule("active-above-seqs", "refused", "config", "lower max_num_active_seqs to max_num_seqs", since=(0, 31)),
    Rule("threshold-above-context", "refused", "config",
         "lower long_prefill_token_threshold to max_model_len", since=(0, 27)),
    Rule("batch-defaults-to-context", "changed", "config", "set max_num_batched_tokens and max_model_len explicitly"),
    Rule("batch-capped-by-seqs", "changed", "config", "set max_num_batched_tokens explicitly"),
    Rule("seqs-capped-by-batch", "changed", "config", "set max_num_seqs explicitly"),
    Rule("batch-above-all-seqs", "risky", "config", "lower max_num_batched_tokens to max_num_seqs × max_model_len"),
    # Chunked prefill
    Rule("encoder-decoder-no-chunking", "changed", "config",
         "expect no chunked prefill with an encoder-decoder model"),
    Rule("chunking-off", "note", "config", "drop enable_chunked_prefill=False unless it is there on purpose"),
    Rule("vision-with-chunking", "risky", "run",
         "move to a vLLM after March 2025, where chunked prefill need not be turned off", until=(0, 8, 2)),
    # Ranks, and what comes to light only behind the configuration
    Rule("heads-not-divisible", "refused", "config",
         "choose a tensor parallel size that divides the number of attention heads"),
    Rule("pool-below-context", "refused", "engine core", "lower max_model_len, or give the KV cache more memory"),
    Rule("context-fitted-to-pool", "changed", "engine core", "set max_model_len explicitly"),
    Rule("unknown-load-format", "refused", "worker", "give a load format that vLLM knows"),
    Rule("odd-block-size", "refused", "worker", "take a multiple of what the attention backend supports"),
)
# fmt: on
