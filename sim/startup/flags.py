"""The engine arguments that decide whether an engine starts, and what each may hold."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from sim.startup.rules import RULES, Finding, Version, dotted

_EVER: Version = (0,)
_HOLDS: dict[str, Callable[[Any, float], bool]] = {
    "≥": operator.ge,
    ">": operator.gt,
    "≤": operator.le,
    "<": operator.lt,
    "not": operator.ne,
}


class Flag(msgspec.Struct, frozen=True):
    """What one engine argument may hold.

    `default` is vLLM's; UNSET there means vLLM works the value out at start-up. `nullable` says that null counts as
    unset, as it does for every argument whose default is worked out; elsewhere null is refused. `bounds` are pairs of a
    sign and a number, `choices` the words allowed, with the release that brought each.
    """

    kind: type
    default: Any = UNSET
    nullable: bool = False
    bounds: tuple[tuple[str, float], ...] = ()
    bounds_since: Version = _EVER
    choices: Mapping[str, Version] | None = None
    since: Version = _EVER

    def allowed(self, version: Version) -> str:
        """The allowed values, in words, for messages."""
        if self.choices is not None:
            return ", ".join(_known_by(self.choices, version))
        return " and ".join(f"{sign} {limit:g}" for sign, limit in self.bounds) or self.kind.__name__

    def takes(self, value: Any, version: Version) -> bool:
        if self.choices is not None:
            return value in _known_by(self.choices, version)
        return version < self.bounds_since or all(_HOLDS[sign](value, limit) for sign, limit in self.bounds)


def _known_by(names: Mapping[str, Version], version: Version) -> list[str]:
    return [name for name, since in names.items() if since <= version]


_DTYPES = dict.fromkeys(("auto", "half", "float16", "bfloat16", "float", "float32"), _EVER)
_KV_CACHE_DTYPES: dict[str, Version] = {
    **dict.fromkeys(
        (
            "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "turboquant_k8v4",
            "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "int8_per_token_head",
            "fp8_per_token_head", "nvfp4",
        ),
        _EVER,
    ),
    "int4_per_token_head": (0, 25),
    "nvfp4_4over6": (0, 28),
    "nvfp4_ds_mla": (0, 30),
    "ultraquant_4bit": (0, 32),
}  # fmt: skip
_LOAD_FORMATS: dict[str, Version] = {
    **dict.fromkeys(
        (
            "auto", "dummy", "fastsafetensors", "hf", "instanttensor", "mistral", "modelexpress", "npcache", "pt",
            "runai_streamer", "runai_streamer_sharded", "safetensors", "sharded_state", "tensorizer",
        ),
        _EVER,
    ),
    "ipc_cache": (0, 30),
}  # fmt: skip
_LOAD_FORMATS_GONE: dict[str, Version] = {"bitsandbytes": (0, 28)}


def load_formats(version: Version) -> list[str]:
    """The load formats a release brings along. A plugin may register more, so vLLM looks them up in the worker only."""
    gone_later = [name for name, until in _LOAD_FORMATS_GONE.items() if version < until]
    return sorted(_known_by(_LOAD_FORMATS, version) + gone_later)


_AT_LEAST_1 = (("≥", 1),)

FLAGS: dict[str, Flag] = {
    "max_model_len": Flag(int, nullable=True, bounds=(("≥", -1), ("not", 0))),
    "max_num_batched_tokens": Flag(int, nullable=True, bounds=_AT_LEAST_1),
    "max_num_seqs": Flag(int, nullable=True, bounds=_AT_LEAST_1),
    "max_num_active_seqs": Flag(int, nullable=True, bounds=_AT_LEAST_1, since=(0, 31)),
    "enable_chunked_prefill": Flag(bool, nullable=True),
    "enable_prefix_caching": Flag(bool, nullable=True),
    "long_prefill_token_threshold": Flag(int, 0, bounds=(("≥", 0),), bounds_since=(0, 25)),
    "scheduling_policy": Flag(str, "fcfs", choices={"fcfs": _EVER, "priority": _EVER}),
    "watermark": Flag(float, 0.0, bounds=(("≥", 0), ("<", 1))),
    "tensor_parallel_size": Flag(int, 1, bounds=_AT_LEAST_1),
    "pipeline_parallel_size": Flag(int, 1, bounds=_AT_LEAST_1),
    "gpu_memory_utilization": Flag(float, 0.92, bounds=((">", 0), ("≤", 1))),
    "kv_cache_memory_bytes": Flag(int, nullable=True),
    "num_gpu_blocks_override": Flag(int, nullable=True),
    "block_size": Flag(int, nullable=True, bounds=((">", 0),)),
    "kv_cache_dtype": Flag(str, "auto", choices=_KV_CACHE_DTYPES),
    "dtype": Flag(str, "auto", choices=_DTYPES),
    "load_format": Flag(str, "auto"),
}
"""By the name `EngineArgs` gives each argument."""


def check_flags(flags: Mapping[str, Any], version: Version) -> list[Finding]:
    """Each explicit value against what its flag may hold; UNSET values are left alone."""
    found = []
    for name, value in flags.items():
        flag = FLAGS[name]
        if value is UNSET:
            continue
        if version < flag.since:
            rule, why = "unknown-flag", f"vLLM has {name} from {dotted(flag.since)} on"
        elif value is None:
            if flag.nullable:
                continue
            rule, why = "wrong-null", f"null is not unset: {name} must be given a value"
        elif not flag.takes(value, version):
            rule = "unknown-choice" if flag.choices is not None else "out-of-range"
            why = f"{name} is {value}; allowed: {flag.allowed(version)}"
        else:
            continue
        found.append(RULES[rule].found(name, why, given=value))
    return found
