"""vLLM's start-up rules: what `create_engine_config` refuses, changes in silence, or leaves for the worker to find.

The rules are data, dated by the release that brought them. Each was read in vLLM's source and then held against the
real function: 0.32 by `tests/conformance/test_startup_live.py`, 0.24 to 0.31 by the same test with those packages.
Nothing here imports vLLM.

Unset (`msgspec.UNSET`), null (`None`) and false are three different answers everywhere.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

Version = tuple[int, ...]
Device = Literal["cpu", "gpu", "gpu-70gib", "gpu-160gib"]
Usage = Literal["serve", "llm", "engine"]
Level = Literal["refused", "changed", "risky", "note"]
Stage = Literal["verl config", "verl server", "config", "engine core", "worker", "run"]

OLDEST: Version = (0, 24)
"""The oldest release the rules were held against; an older target is judged by its rules."""
NEWEST: Version = (0, 32)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of an engine: where it bites, and from which release on (`since`) until which (`until`, excluded)."""

    id: str
    level: Level
    stage: Stage
    since: Version = (0,)
    until: Version | None = None
    remedy: str

    def holds(self, version: Version) -> bool:
        return self.since <= version and (self.until is None or version < self.until)


RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        Rule(id="wrong-null", level="refused", stage="config", remedy="leave the setting out to get vLLM's default"),
        Rule(id="out-of-range", level="refused", stage="config", remedy="give a value in the allowed range"),
        Rule(id="unknown-choice", level="refused", stage="config", remedy="give one of the allowed values"),
        Rule(id="unknown-flag", level="refused", stage="config", remedy="drop the flag, or move to a release with it"),
        Rule(
            id="null-in-config-file",
            level="refused",
            stage="config",
            remedy="leave the key out of the config file",
        ),
        Rule(
            id="false-lost-in-config-file",
            level="changed",
            stage="config",
            remedy="write the flag's no- form: true",
        ),
        Rule(
            id="context-above-model",
            level="refused",
            stage="config",
            remedy="lower max_model_len; VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 only if the model really extends",
        ),
        Rule(
            id="batch-below-context",
            level="refused",
            stage="config",
            remedy="drop the stale enable_chunked_prefill=False, or set max_model_len explicitly to what is needed",
        ),
        Rule(
            id="batch-below-seqs",
            level="refused",
            stage="config",
            remedy="raise max_num_batched_tokens or lower max_num_seqs",
        ),
        Rule(
            id="active-above-seqs",
            level="refused",
            stage="config",
            since=(0, 31),
            remedy="lower max_num_active_seqs to max_num_seqs",
        ),
        Rule(
            id="threshold-above-context",
            level="refused",
            stage="config",
            since=(0, 27),
            remedy="lower long_prefill_token_threshold to max_model_len",
        ),
        Rule(
            id="heads-not-divisible",
            level="refused",
            stage="config",
            remedy="choose a tensor parallel size that divides the number of attention heads",
        ),
        Rule(
            id="batch-defaults-to-context",
            level="changed",
            stage="config",
            remedy="set max_num_batched_tokens and max_model_len explicitly",
        ),
        Rule(
            id="batch-capped-by-seqs",
            level="changed",
            stage="config",
            remedy="set max_num_batched_tokens explicitly",
        ),
        Rule(id="seqs-capped-by-batch", level="changed", stage="config", remedy="set max_num_seqs explicitly"),
        Rule(
            id="encoder-decoder-no-chunking",
            level="changed",
            stage="config",
            remedy="expect no chunked prefill with an encoder-decoder model",
        ),
        Rule(
            id="batch-above-all-seqs",
            level="risky",
            stage="config",
            remedy="lower max_num_batched_tokens to max_num_seqs × max_model_len",
        ),
        Rule(
            id="chunking-off",
            level="note",
            stage="config",
            remedy="drop enable_chunked_prefill=False unless it is there on purpose",
        ),
        Rule(
            id="vision-with-chunking",
            level="risky",
            stage="run",
            until=(0, 8, 2),
            remedy="move to a vLLM after March 2025, where chunked prefill need not be turned off",
        ),
        Rule(
            id="pool-below-context",
            level="refused",
            stage="engine core",
            remedy="lower max_model_len, or give the KV cache more memory",
        ),
        Rule(
            id="context-fitted-to-pool",
            level="changed",
            stage="engine core",
            remedy="set max_model_len explicitly",
        ),
        Rule(id="unknown-load-format", level="refused", stage="worker", remedy="give a load format that vLLM knows"),
        Rule(
            id="odd-block-size",
            level="refused",
            stage="worker",
            remedy="take a multiple of what the attention backend supports",
        ),
    )
}

NULL_BLOCK_SINCE: Version = (0, 29)
"""From this release on the KV-pool check sets aside the pool's reserved null block; before, it forgot it."""

_ATTENTION_BLOCK_TOKENS: dict[str, int] = {"cpu": 32}
"""Block sizes the default attention backend takes are multiples of this; 16 where not listed."""


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine argument may hold.

    `default` is vLLM's; UNSET there means vLLM works the value out at start-up. `nullable` says that null counts as
    unset, as it does for every argument whose default is worked out; elsewhere null is refused.
    """

    kind: type
    default: Any = UNSET
    nullable: bool = False
    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None
    not_zero: bool = False
    bounds_since: Version = (0,)
    choices: Mapping[str, Version] | None = None
    since: Version = (0,)

    def allowed(self, version: Version) -> str:
        """The allowed values, in words, for messages."""
        if self.choices is not None:
            return ", ".join(name for name, since in self.choices.items() if since <= version)
        limits = (
            ("≥", self.low), (">", self.above), ("≤", self.high), ("<", self.below),
        )  # fmt: skip
        words = [f"{sign} {limit:g}" for sign, limit in limits if limit is not None]
        return " and ".join(words + ["not 0"] * self.not_zero) or self.kind.__name__

    def takes(self, value: Any, version: Version) -> bool:
        if self.choices is not None:
            return value in self.choices and self.choices[value] <= version
        if version < self.bounds_since or self.kind is bool:
            return True
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
            and not (self.not_zero and value == 0)
        )


_EVER: Version = (0,)
DTYPES: dict[str, Version] = dict.fromkeys(("auto", "half", "float16", "bfloat16", "float", "float32"), _EVER)
KV_CACHE_DTYPES: dict[str, Version] = {
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
LOAD_FORMATS: dict[str, Version] = {
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
    known = [name for name, since in LOAD_FORMATS.items() if since <= version]
    return sorted(known + [name for name, until in _LOAD_FORMATS_GONE.items() if version < until])


FLAGS: dict[str, Flag] = {
    "max_model_len": Flag(kind=int, nullable=True, low=-1, not_zero=True),
    "max_num_batched_tokens": Flag(kind=int, nullable=True, low=1),
    "max_num_seqs": Flag(kind=int, nullable=True, low=1),
    "max_num_active_seqs": Flag(kind=int, nullable=True, low=1, since=(0, 31)),
    "enable_chunked_prefill": Flag(kind=bool, nullable=True),
    "enable_prefix_caching": Flag(kind=bool, nullable=True),
    "long_prefill_token_threshold": Flag(kind=int, default=0, low=0, bounds_since=(0, 25)),
    "scheduling_policy": Flag(kind=str, default="fcfs", choices={"fcfs": _EVER, "priority": _EVER}),
    "watermark": Flag(kind=float, default=0.0, low=0, below=1),
    "tensor_parallel_size": Flag(kind=int, default=1, low=1),
    "pipeline_parallel_size": Flag(kind=int, default=1, low=1),
    "gpu_memory_utilization": Flag(kind=float, default=0.92, above=0, high=1),
    "kv_cache_memory_bytes": Flag(kind=int, nullable=True),
    "num_gpu_blocks_override": Flag(kind=int, nullable=True),
    "block_size": Flag(kind=int, nullable=True, above=0),
    "kv_cache_dtype": Flag(kind=str, default="auto", choices=KV_CACHE_DTYPES),
    "dtype": Flag(kind=str, default="auto", choices=DTYPES),
    "load_format": Flag(kind=str, default="auto"),
}
"""The engine arguments that decide whether an engine starts, by the name `EngineArgs` gives them."""


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


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules need to know of a model; UNSET is "not known", and a rule that needs it says so.

    `max_position_embeddings` is what verl reads; `derived_max_model_len` is what vLLM makes of the same file, which
    differs where RoPE scaling stretches the context or another key shortens it.
    """

    max_position_embeddings: int | UnsetType = UNSET
    derived_max_model_len: int | UnsetType = UNSET
    model_max_length: int | UnsetType = UNSET
    num_attention_heads: int | UnsetType = UNSET
    num_key_value_heads: int | UnsetType = UNSET
    num_hidden_layers: int | UnsetType = UNSET
    hidden_size: int | UnsetType = UNSET
    head_dim: int | UnsetType = UNSET
    intermediate_size: int | UnsetType = UNSET
    is_moe: bool = False
    is_encoder_decoder: bool = False
    is_vision: bool = False


UNKNOWN_MODEL = Model()

_LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_LENGTH_WITHOUT_KEYS = 2048
_ROPE_ALREADY_SCALED = frozenset(("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"))


def model_from_config(config: Mapping[str, Any]) -> Model:
    """A model's facts from its Hugging Face `config.json`, read as vLLM and verl read it."""
    text = {**config, **config["text_config"]} if isinstance(config.get("text_config"), Mapping) else dict(config)
    lengths = [text[key] for key in _LENGTH_KEYS if isinstance(text.get(key), int)]
    derived: float = text.get("model_max_length") or min(lengths, default=_LENGTH_WITHOUT_KEYS)
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if rope and "gemma3" not in str(text.get("model_type")):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in _ROPE_ALREADY_SCALED:
            derived *= rope.get("factor") or 1.0

    def known(*names: str) -> int | UnsetType:
        return next((text[name] for name in names if isinstance(text.get(name), int)), UNSET)

    heads, hidden = known("num_attention_heads", "n_head"), known("hidden_size", "n_embd")
    head_dim = known("head_dim")
    if head_dim is UNSET and isinstance(heads, int) and isinstance(hidden, int):
        head_dim = hidden // heads
    kv_heads = known("num_key_value_heads")
    length_seen_by_verl = config.get("max_position_embeddings", text.get("max_position_embeddings"))
    return Model(
        max_position_embeddings=length_seen_by_verl if isinstance(length_seen_by_verl, int) else UNSET,
        derived_max_model_len=int(derived),
        model_max_length=known("model_max_length"),
        num_attention_heads=heads,
        num_key_value_heads=heads if kv_heads is UNSET else kv_heads,
        num_hidden_layers=known("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        head_dim=head_dim,
        intermediate_size=known("intermediate_size"),
        is_moe=any(name in text for name in ("num_experts", "n_routed_experts", "num_local_experts")),
        is_encoder_decoder=bool(config.get("is_encoder_decoder", False)),
        is_vision="vision_config" in config,
    )


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that bit: on which setting, what was given, what it becomes, and why.

    `condition` is set where the verdict hangs on something not known here (most often the model's context length).
    """

    rule: str
    level: Level
    stage: Stage
    setting: str
    given: Any = UNSET
    becomes: Any = UNSET
    why: str
    remedy: str
    condition: str | None = None


def finding(rule: Rule, setting: str, why: str, **more: Any) -> Finding:
    return Finding(rule=rule.id, level=rule.level, stage=rule.stage, setting=setting, why=why,
                   remedy=more.pop("remedy", rule.remedy), **more)  # fmt: skip


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


def check_flags(flags: Mapping[str, Any], version: Version) -> list[Finding]:
    """Each explicit value against what its flag may hold; UNSET values are left alone."""
    found = []
    for name, value in flags.items():
        flag = FLAGS[name]
        if value is UNSET:
            continue
        if version < flag.since:
            since = ".".join(map(str, flag.since))
            found.append(finding(RULES["unknown-flag"], name, f"vLLM has {name} from {since} on", given=value))
        elif value is None:
            if not flag.nullable:
                found.append(finding(RULES["wrong-null"], name, f"null is not unset: {name} must be given a value",
                                     given=None))  # fmt: skip
        elif not flag.takes(value, version):
            rule = RULES["unknown-choice" if flag.choices is not None else "out-of-range"]
            found.append(finding(rule, name, f"{name} is {value}; allowed: {flag.allowed(version)}", given=value))
    return found


def start(
    flags: Mapping[str, Any],
    model: Model = UNKNOWN_MODEL,
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
    final = {name: _value(flags, name) for name in FLAGS if version >= FLAGS[name].since}
    bad = {f.setting for f in found}
    context = UNSET if "max_model_len" in bad else _context(final, model, allow_longer_context, found)
    if bad:
        # The rules below compare values with one another; with one of them impossible they would only mislead.
        return Startup(findings=tuple(found), final=final)

    chunking = _chunking(final, model, found)
    batched, seqs = _batch(final, chunking, context, batch_defaults(device, usage, version), found)
    threshold = 0 if model.is_encoder_decoder else final["long_prefill_token_threshold"]
    final |= {
        "max_model_len": context,
        "enable_chunked_prefill": chunking,
        "max_num_batched_tokens": batched,
        "max_num_seqs": seqs,
        "long_prefill_token_threshold": threshold,
        "enable_prefix_caching": _or(final["enable_prefix_caching"], not model.is_encoder_decoder),
        "block_size": _or(final["block_size"], 128 if device == "cpu" else 16),
    }
    found += _scheduler(final, version)
    found += _parallel(final, model)
    found += _later(final, flags, model, version, device)
    return Startup(findings=tuple(found), final=final)


def _value(flags: Mapping[str, Any], name: str) -> Any:
    """An argument as `EngineArgs` holds it: null counts as unset, and unset as the default where there is one."""
    value = flags.get(name, UNSET)
    return FLAGS[name].default if value is UNSET or value is None else value


def _or(value: Any, default: Any) -> Any:
    return default if value is UNSET else value


def _context(final: dict[str, Any], model: Model, allow_longer: bool, found: list[Finding]) -> Any:
    given, derived = final["max_model_len"], model.derived_max_model_len
    if given is UNSET or given == -1:
        return derived
    if derived is UNSET or given <= derived:
        return given
    if allow_longer or (model.model_max_length is not UNSET and given <= model.model_max_length):
        return given
    found.append(
        finding(
            RULES["context-above-model"],
            "max_model_len",
            f"max_model_len {given} is more than the {derived} tokens that the model's config.json gives",
            given=given,
        )
    )
    return given


def _chunking(final: dict[str, Any], model: Model, found: list[Finding]) -> bool:
    given = final["enable_chunked_prefill"]
    if model.is_encoder_decoder:
        if given is True:
            why = "an encoder-decoder model runs without chunked prefill whatever is asked for"
            rule = RULES["encoder-decoder-no-chunking"]
            found.append(finding(rule, "enable_chunked_prefill", why, given=True, becomes=False))
        return False
    if given is False:
        why = "vLLM only warns, but calls running this model without chunked prefill unsupported"
        found.append(finding(RULES["chunking-off"], "enable_chunked_prefill", why, given=False))
    return bool(_or(given, True))


def _batch(
    final: dict[str, Any], chunking: bool, context: Any, defaults: BatchDefaults, found: list[Finding]
) -> tuple[Any, Any]:
    """max_num_batched_tokens and max_num_seqs; only what is unset moves."""
    ranks = final["tensor_parallel_size"] * final["pipeline_parallel_size"] if defaults.per_rank else 1
    batched, seqs = final["max_num_batched_tokens"], final["max_num_seqs"]
    default_seqs = defaults.seqs * ranks
    if batched is UNSET:
        batched = usual = defaults.batched_tokens * ranks
        if context is UNSET:
            # Chunked, the default stands unless the model is tiny; unchunked, it follows a length not known here.
            batched = usual if chunking else UNSET
        else:
            if not chunking and context > usual:
                batched = context
                why = f"chunked prefill is off, so the default of {usual} is raised to max_model_len"
                rule = RULES["batch-defaults-to-context"]
                found.append(finding(rule, "max_num_batched_tokens", why, given=usual, becomes=batched))
            cap = _or(seqs, default_seqs) * context
            if batched > cap:
                why = f"max_num_seqs × max_model_len is {cap}, less than the default of {batched}"
                rule = RULES["batch-capped-by-seqs"]
                found.append(finding(rule, "max_num_batched_tokens", why, given=batched, becomes=cap))
                batched = cap
    if seqs is UNSET:
        seqs = default_seqs
        if batched is not UNSET and batched < seqs:
            why = f"a step of {batched} tokens cannot hold the default of {seqs} sequences"
            found.append(finding(RULES["seqs-capped-by-batch"], "max_num_seqs", why, given=seqs, becomes=batched))
            seqs = batched
    return batched, seqs


def _scheduler(final: dict[str, Any], version: Version) -> list[Finding]:
    found = []
    context, batched, seqs = (final[n] for n in ("max_model_len", "max_num_batched_tokens", "max_num_seqs"))
    if not final["enable_chunked_prefill"] and batched is not UNSET and (context is UNSET or batched < context):
        unknown = context is UNSET
        length = "the model's context length" if unknown else f"max_model_len {context}"
        found.append(
            finding(
                RULES["batch-below-context"],
                "max_num_batched_tokens",
                f"with chunked prefill off one prefill must fit in one step: {batched} is less than {length}",
                given=batched,
                condition=f"the model's context length is more than {batched}" if unknown else None,
            )
        )
    if batched is not UNSET and batched < seqs:
        why = f"max_num_batched_tokens {batched} is less than max_num_seqs {seqs}"
        found.append(finding(RULES["batch-below-seqs"], "max_num_batched_tokens", why, given=batched))
    active = final.get("max_num_active_seqs", UNSET)
    if RULES["active-above-seqs"].holds(version) and active is not UNSET and active > seqs:
        why = f"max_num_active_seqs {active} is more than max_num_seqs {seqs}"
        found.append(finding(RULES["active-above-seqs"], "max_num_active_seqs", why, given=active))
    if context is UNSET:
        return found
    threshold = final["long_prefill_token_threshold"]
    if RULES["threshold-above-context"].holds(version) and threshold > context:
        why = f"long_prefill_token_threshold {threshold} is more than max_model_len {context}"
        found.append(finding(RULES["threshold-above-context"], "long_prefill_token_threshold", why, given=threshold))
    if batched > seqs * context:
        why = f"a step of {batched} tokens is more than max_num_seqs × max_model_len = {seqs * context} could fill"
        found.append(finding(RULES["batch-above-all-seqs"], "max_num_batched_tokens", why, given=batched))
    return found


def _parallel(final: dict[str, Any], model: Model) -> list[Finding]:
    heads, ranks = model.num_attention_heads, final["tensor_parallel_size"]
    if heads is UNSET or heads % ranks == 0:
        return []
    why = f"{heads} attention heads cannot be split over {ranks} ranks"
    return [finding(RULES["heads-not-divisible"], "tensor_parallel_size", why, given=ranks)]


def _later(
    final: dict[str, Any], flags: Mapping[str, Any], model: Model, version: Version, device: Device
) -> list[Finding]:
    """What `create_engine_config` lets through and a later stage does not."""
    found = []
    load_format, known = final["load_format"].lower(), load_formats(version)
    if load_format not in known:
        why = f"load_format {load_format} is looked up in the worker only; known there: {', '.join(known)}"
        found.append(finding(RULES["unknown-load-format"], "load_format", why, given=load_format))
    multiple = _ATTENTION_BLOCK_TOKENS.get(device, 16)
    if final["block_size"] % multiple:
        why = f"block_size {final['block_size']} is not a multiple of {multiple}; only the worker notices"
        found.append(finding(RULES["odd-block-size"], "block_size", why, given=final["block_size"]))
    if RULES["vision-with-chunking"].holds(version) and model.is_vision and final["enable_chunked_prefill"]:
        why = (
            "chunked prefill cuts image placeholders apart (vLLM issue 15185, fixed in March 2025): "
            "the old reason for enable_chunked_prefill=False"
        )
        found.append(finding(RULES["vision-with-chunking"], "enable_chunked_prefill", why, given=True))
    blocks = final["num_gpu_blocks_override"]
    if blocks is not UNSET and final["max_model_len"] is not UNSET:
        auto = flags.get("max_model_len", UNSET) == -1
        length, block_size = final["max_model_len"], final["block_size"]
        final["max_model_len"], of_pool = fit_pool(length, block_size, blocks, auto=auto, version=version)
        found += of_pool
    return found


def blocks_needed(max_model_len: int, block_size: int, version: Version = NEWEST) -> int:
    """Blocks the pool must have so that one request of `max_model_len` fits, as `get_kv_cache_configs` counts them."""
    return -(-max_model_len // block_size) + (version >= NULL_BLOCK_SINCE)


def fit_pool(
    max_model_len: int, block_size: int, num_gpu_blocks: int, *, auto: bool = False, version: Version = NEWEST
) -> tuple[int, list[Finding]]:
    """The KV-pool rule: one request of `max_model_len` must fit, or with `auto` (-1) the length shrinks to what does.

    Full attention in every layer is assumed; a sliding window needs less. Returns the length and what bit.
    """
    needed = blocks_needed(max_model_len, block_size, version)
    if needed <= num_gpu_blocks:
        return max_model_len, []
    fitting = (num_gpu_blocks - (version >= NULL_BLOCK_SINCE)) * block_size
    if auto and fitting > 0:
        why = f"{num_gpu_blocks} blocks of {block_size} hold no more than one request of {fitting} tokens"
        rule = RULES["context-fitted-to-pool"]
        return fitting, [finding(rule, "max_model_len", why, given=max_model_len, becomes=fitting)]
    why = f"one request of {max_model_len} tokens needs {needed} blocks of {block_size}; the pool has {num_gpu_blocks}"
    return max_model_len, [finding(RULES["pool-below-context"], "max_model_len", why, given=max_model_len)]
