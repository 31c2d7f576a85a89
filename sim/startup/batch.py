"""What a step may hold: chunked prefill, max_num_batched_tokens, max_num_seqs, and how they limit one another."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sim.startup.rules import NEWEST, RULES, Finding, Version

Device = Literal["cpu", "gpu", "gpu-70gib", "gpu-160gib"]
Usage = Literal["serve", "llm", "engine"]


class BatchDefaults(msgspec.Struct, frozen=True):
    """vLLM's own max_num_batched_tokens and max_num_seqs for one device and one way of being started."""

    batched_tokens: int
    seqs: int
    per_rank: bool = False


BATCH_DEFAULTS: dict[tuple[Device, Usage], BatchDefaults] = {
    ("cpu", "serve"): BatchDefaults(2048, 128, per_rank=True),
    ("cpu", "llm"): BatchDefaults(4096, 256, per_rank=True),
    ("gpu", "serve"): BatchDefaults(2048, 256),
    ("gpu", "llm"): BatchDefaults(8192, 256),
    ("gpu-70gib", "serve"): BatchDefaults(8192, 1024),
    ("gpu-70gib", "llm"): BatchDefaults(16384, 1024),
    ("gpu-160gib", "serve"): BatchDefaults(16384, 1024),
    ("gpu-160gib", "llm"): BatchDefaults(16384, 1024),
}
"""`gpu` is a card under 70 GiB, or any A100; `gpu-70gib` one from 70 GiB on. `llm` is the offline `LLM` class."""
_ENGINE_DEFAULTS = BatchDefaults(2048, 128)
_160GIB_SINCE: Version = (0, 28)


def batch_defaults(device: Device, usage: Usage, version: Version) -> BatchDefaults:
    """What vLLM takes where a batch limit is unset. Before 0.28 a 160 GiB card counted as a 70 GiB one."""
    if usage == "engine":
        return _ENGINE_DEFAULTS
    if device == "gpu-160gib" and version < _160GIB_SINCE:
        device = "gpu-70gib"
    return BATCH_DEFAULTS[device, usage]


def chunking_in_force(given: bool | UnsetType, is_encoder_decoder: bool) -> tuple[bool, list[Finding]]:
    """Whether prefills are chunked, which they are unless told otherwise."""
    if is_encoder_decoder:
        if given is not True:
            return False, []
        why = "an encoder-decoder model runs without chunked prefill whatever is asked for"
        rule = RULES["encoder-decoder-no-chunking"]
        return False, [rule.found("enable_chunked_prefill", why, given=True, becomes=False)]
    if given is False:
        why = "vLLM only warns, but calls running this model without chunked prefill unsupported"
        return False, [RULES["chunking-off"].found("enable_chunked_prefill", why, given=False)]
    return True, []


def batch_in_force(settings: Mapping[str, Any], defaults: BatchDefaults) -> tuple[int | UnsetType, int, list[Finding]]:
    """max_num_batched_tokens and max_num_seqs, of which only what is unset moves.

    UNSET as max_num_batched_tokens: follows a context that is not known here.
    """
    found = []
    ranks = settings["tensor_parallel_size"] * settings["pipeline_parallel_size"] if defaults.per_rank else 1
    usual_tokens, usual_seqs = defaults.batched_tokens * ranks, defaults.seqs * ranks
    context, chunking = settings["max_model_len"], settings["enable_chunked_prefill"]
    batched, seqs = settings["max_num_batched_tokens"], settings["max_num_seqs"]
    if batched is UNSET and (chunking or context is not UNSET):
        batched = usual_tokens
        if not chunking and context > batched:
            why = f"chunked prefill is off, so the default of {batched} is raised to max_model_len"
            rule = RULES["batch-defaults-to-context"]
            found.append(rule.found("max_num_batched_tokens", why, given=batched, becomes=context))
            batched = context
        # A context not known here is taken for one that is long enough for the default.
        cap = batched if context is UNSET else context * (usual_seqs if seqs is UNSET else seqs)
        if batched > cap:
            why = f"max_num_seqs × max_model_len is {cap}, less than the default of {batched}"
            rule = RULES["batch-capped-by-seqs"]
            found.append(rule.found("max_num_batched_tokens", why, given=batched, becomes=cap))
            batched = cap
    if seqs is UNSET:
        seqs = usual_seqs
        if batched is not UNSET and batched < seqs:
            why = f"a step of {batched} tokens cannot hold the default of {seqs} sequences"
            rule = RULES["seqs-capped-by-batch"]
            found.append(rule.found("max_num_seqs", why, given=seqs, becomes=batched))
            seqs = batched
    return batched, seqs, found


def check_batch(settings: Mapping[str, Any], version: Version = NEWEST) -> list[Finding]:
    """What the scheduler's settings, under vLLM's names and with the values in force, ask of one another.

    UNSET as max_model_len or max_num_batched_tokens: not known. max_num_active_seqs may be left out.
    """
    found = []
    context, batched, seqs = (settings[n] for n in ("max_model_len", "max_num_batched_tokens", "max_num_seqs"))
    threshold, active = settings["long_prefill_token_threshold"], settings.get("max_num_active_seqs", UNSET)
    if not settings["enable_chunked_prefill"] and batched is not UNSET and (context is UNSET or batched < context):
        unknown = context is UNSET
        length = "the model's context length" if unknown else f"max_model_len {context}"
        why = f"with chunked prefill off one prefill must fit in one step: {batched} is less than {length}"
        condition = f"the model's context length is more than {batched}" if unknown else None
        error = (
            f"max_num_batched_tokens is {batched}: with enable_chunked_prefill false it must be at least max_model_len"
            f" ({context}), or vLLM would not start"
        )
        rule = RULES["batch-below-context"]
        found.append(rule.found("max_num_batched_tokens", why, given=batched, condition=condition, error=error))
    if batched is not UNSET and batched < seqs:
        why = f"max_num_batched_tokens {batched} is less than max_num_seqs {seqs}"
        error = f"max_num_seqs is {seqs}: more than max_num_batched_tokens ({batched}), and vLLM would not start"
        found.append(RULES["batch-below-seqs"].found("max_num_batched_tokens", why, given=batched, error=error))
    if RULES["active-above-seqs"].holds(version) and active is not UNSET and active > seqs:
        why = f"max_num_active_seqs {active} is more than max_num_seqs {seqs}"
        found.append(RULES["active-above-seqs"].found("max_num_active_seqs", why, given=active))
    if context is UNSET:
        return found
    if RULES["threshold-above-context"].holds(version) and threshold > context:
        name = "long_prefill_token_threshold"
        why = f"{name} {threshold} is more than max_model_len {context}"
        error = f"{name} is {threshold}: more than max_model_len ({context}), and vLLM would not start"
        found.append(RULES["threshold-above-context"].found(name, why, given=threshold, error=error))
    if batched > seqs * context:
        why = f"a step of {batched} tokens is more than max_num_seqs × max_model_len = {seqs * context} could fill"
        found.append(RULES["batch-above-all-seqs"].found("max_num_batched_tokens", why, given=batched))
    return found
