"""Whether vLLM starts with given engine arguments, and with which values."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from sim.startup.batch import Device, Usage, batch_defaults, batch_in_force, check_batch, chunking_in_force
from sim.startup.flags import FLAGS, check_flags, load_formats
from sim.startup.kv_pool import fit_pool
from sim.startup.model_shape import UNKNOWN_MODEL, ModelShape
from sim.startup.rules import NEWEST, RULES, Finding, Version

_ATTENTION_BLOCK_TOKENS: dict[str, int] = {"cpu": 32}
"""Block sizes the default attention backend takes are multiples of this; 16 where not listed."""


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: what bites, and the values the engine would run with (UNSET where the model leaves them open)."""

    findings: tuple[Finding, ...]
    final: dict[str, Any]

    @property
    def accepted(self) -> bool:
        """Whether `create_engine_config` returns. A pool too small or a bad load format comes to light later."""
        return not any(f.level == "refused" and f.stage == "config" and f.condition is None for f in self.findings)

    @property
    def starts(self) -> bool:
        """Whether nothing known here keeps the engine from serving."""
        return not any(f.level == "refused" for f in self.findings)


def start(
    flags: Mapping[str, Any],
    model: ModelShape = UNKNOWN_MODEL,
    *,
    version: Version = NEWEST,
    device: Device = "gpu",
    usage: Usage = "serve",
    allow_longer_context: bool = False,
) -> Startup:
    """Whether vLLM starts with `flags` (names and types of `FLAGS`), and with which values.

    `allow_longer_context` is VLLM_ALLOW_LONG_MAX_MODEL_LEN. Source: `EngineArgs.create_engine_config`, 0.24 to 0.32.
    """
    found = check_flags(flags, version)
    impossible = {f.setting for f in found}
    final = {name: _given(flags, name) for name, flag in FLAGS.items() if version >= flag.since}
    context: int | UnsetType = UNSET
    if "max_model_len" not in impossible:
        context, of_context = _context(final["max_model_len"], model, allow_longer_context)
        found += of_context
    if impossible:
        # The rules below compare values with one another; with one of them impossible they would only mislead.
        return Startup(findings=tuple(found), final=final)

    chunking, of_chunking = chunking_in_force(final["enable_chunked_prefill"], model.is_encoder_decoder)
    final |= {"max_model_len": context, "enable_chunked_prefill": chunking}
    batched, seqs, of_batch = batch_in_force(final, batch_defaults(device, usage, version))
    final |= {"max_num_batched_tokens": batched, "max_num_seqs": seqs}
    if model.is_encoder_decoder:
        final["long_prefill_token_threshold"] = 0
    if final["enable_prefix_caching"] is UNSET:
        final["enable_prefix_caching"] = not model.is_encoder_decoder
    if final["block_size"] is UNSET:
        final["block_size"] = 128 if device == "cpu" else 16
    found += of_chunking + of_batch + check_batch(final, version)
    found += check_ranks(final, model) + _later(final, model, version, device)
    if context is not UNSET and final["num_gpu_blocks_override"] is not UNSET:
        auto = flags.get("max_model_len", UNSET) == -1
        blocks = final["num_gpu_blocks_override"]
        final["max_model_len"], of_pool = fit_pool(context, final["block_size"], blocks, auto=auto, version=version)
        found += of_pool
    return Startup(findings=tuple(found), final=final)


def _given(flags: Mapping[str, Any], name: str) -> Any:
    """An argument as `EngineArgs` holds it: null counts as unset, and unset as the default where there is one."""
    value = flags.get(name, UNSET)
    return FLAGS[name].default if value is UNSET or value is None else value


def _context(given: int | UnsetType, model: ModelShape, allow_longer: bool) -> tuple[int | UnsetType, list[Finding]]:
    """max_model_len in force; UNSET where it is the model's and that is not known."""
    derived, own = model.derived_max_model_len, model.model_max_length
    if given is UNSET or given == -1:
        return derived, []
    if derived is UNSET or given <= derived or allow_longer or (own is not UNSET and given <= own):
        return given, []
    why = f"max_model_len {given} is more than the {derived} tokens that the model's config.json gives"
    return given, [RULES["context-above-model"].found("max_model_len", why, given=given)]


def check_ranks(final: Mapping[str, Any], model: ModelShape) -> list[Finding]:
    """Each rank takes an equal share of the attention heads."""
    heads, ranks = model.num_attention_heads, final["tensor_parallel_size"]
    if heads is UNSET or heads % ranks == 0:
        return []
    why = f"{heads} attention heads cannot be split over {ranks} ranks"
    return [RULES["heads-not-divisible"].found("tensor_parallel_size", why, given=ranks)]


def _later(final: Mapping[str, Any], model: ModelShape, version: Version, device: Device) -> list[Finding]:
    """What `create_engine_config` lets through and the worker, or a run, does not."""
    found = []
    load_format, known = final["load_format"].lower(), load_formats(version)
    if load_format not in known:
        why = f"load_format {load_format} is looked up in the worker only; known there: {', '.join(known)}"
        found.append(RULES["unknown-load-format"].found("load_format", why, given=load_format))
    block_size, multiple = final["block_size"], _ATTENTION_BLOCK_TOKENS.get(device, 16)
    if block_size % multiple:
        why = f"block_size {block_size} is not a multiple of {multiple}; only the worker notices"
        found.append(RULES["odd-block-size"].found("block_size", why, given=block_size))
    if RULES["vision-with-chunking"].holds(version) and model.is_vision and final["enable_chunked_prefill"]:
        why = (
            "chunked prefill cuts image placeholders apart (vLLM issue 15185, fixed in March 2025): "
            "the old reason for enable_chunked_prefill=False"
        )
        found.append(RULES["vision-with-chunking"].found("enable_chunked_prefill", why, given=True))
    return found
