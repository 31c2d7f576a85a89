"""verl's rules on top of vLLM's: what verl's own code refuses or changes before the engine sees a setting.

Read in verl 0.8.0, 0.9.0 and 0.9.1 (`RolloutConfig`, the three servers' constructors, `build_cli_args_from_config`);
`tests/preflight/test_verl.py` and `properties/test_config.py` run the installed package's own code against this.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET

from sim.startup import startup
from sim.startup.startup import Device, Finding, Model, Rule, Startup, Version, finding

Backend = Literal["vllm", "sglang", "trtllm"]
BACKENDS: tuple[str, ...] = get_args(Backend)

ROLLOUT_DEFAULTS: dict[str, Any] = {
    "name": UNSET,
    "mode": "async",
    "prompt_length": 512,
    "response_length": 512,
    "max_model_len": None,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "gpu_memory_utilization": 0.5,
    "tensor_model_parallel_size": 2,
    "data_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "expert_parallel_size": 1,
    "scheduling_policy": "fcfs",
    "dtype": "bfloat16",
    "load_format": "dummy",
}
"""The rollout settings that decide a start, with `rollout.yaml`'s defaults: unset never reaches verl, null does."""

NULLABLE = frozenset(("max_model_len", "max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill",
                      "enable_prefix_caching", "scheduling_policy", "dtype"))  # fmt: skip
"""Settings that take null without a fault in `RolloutConfig`; what null then means is up to the rules."""

KINDS: dict[str, type] = {
    name: type(default) if isinstance(default, (bool, int, float, str)) else int
    for name, default in ROLLOUT_DEFAULTS.items()
} | {"name": str}

FORWARDED: dict[str, str] = {
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "enable_prefix_caching": "enable_prefix_caching",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "tensor_model_parallel_size": "tensor_parallel_size",
    "scheduling_policy": "scheduling_policy",
    "dtype": "dtype",
    "load_format": "load_format",
}
"""Rollout setting → engine argument that verl's vLLM server passes on."""


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between verl's releases. A fork is a release with other answers (`installed.release`)."""

    version: Version
    max_num_seqs: int = 256
    has_net: bool = False
    batch_is_frozen: bool = False
    forwards_false: bool = False


RELEASES: tuple[Release, ...] = (
    Release(version=(0, 8, 0), max_num_seqs=1024, batch_is_frozen=True),
    Release(version=(0, 9, 0), batch_is_frozen=True),
    Release(version=(0, 9, 1), batch_is_frozen=True, has_net=True, forwards_false=True),
)
"""0.9.1 brought the safety net of PR 7632, yet its `RolloutConfig` does not let max_num_batched_tokens change."""


def release_for(version: Version) -> Release:
    """The newest known release that is not newer than `version`; older than all of them is an error."""
    older = [release for release in RELEASES if release.version <= version]
    if not older:
        known = ", ".join(".".join(map(str, r.version)) for r in RELEASES)
        raise ValueError(f"verl {'.'.join(map(str, version))} is older than the releases known here: {known}")
    return older[-1]


RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        Rule(id="sync-mode-removed", level="refused", stage="verl config", remedy="set mode=async or drop it"),
        Rule(
            id="pipeline-parallel-missing",
            level="refused",
            stage="verl config",
            remedy="set pipeline_model_parallel_size=1",
        ),
        Rule(
            id="expert-parallel-mismatch",
            level="refused",
            stage="verl config",
            remedy="set expert_parallel_size to 1 or to tensor_model_parallel_size × data_parallel_size",
        ),
        Rule(
            id="unknown-backend",
            level="refused",
            stage="verl server",
            remedy="name a backend that verl knows, or one that your own code registers",
        ),
        Rule(
            id="backend-taken-for-vllm",
            level="note",
            stage="verl config",
            remedy="set rollout.name: verl has no default for it",
        ),
        Rule(
            id="context-above-positions",
            level="refused",
            stage="verl server",
            remedy="lower max_model_len to the model's max_position_embeddings",
        ),
        Rule(
            id="context-is-models",
            level="note",
            stage="verl server",
            remedy="set max_model_len explicitly to what the run needs",
        ),
        Rule(
            id="batch-raised-to-context",
            level="changed",
            stage="verl server",
            remedy="drop the stale enable_chunked_prefill=False, or set max_model_len explicitly to what is needed",
        ),
        Rule(
            id="net-on-frozen-field",
            level="refused",
            stage="verl server",
            remedy="drop the stale enable_chunked_prefill=False, or set max_model_len explicitly "
            "and max_num_batched_tokens no lower",
        ),
        Rule(
            id="null-batch-in-net",
            level="refused",
            stage="verl server",
            remedy="give max_num_batched_tokens a number, or drop enable_chunked_prefill=False",
        ),
        Rule(
            id="false-not-forwarded",
            level="changed",
            stage="config",
            remedy="drop the flag: it has no effect here, and takes effect on an upgrade to verl 0.9.1",
        ),
        Rule(
            id="null-chunking",
            level="changed",
            stage="config",
            remedy="write true or false; null is neither",
        ),
        Rule(
            id="overridden-by-engine-kwargs",
            level="changed",
            stage="config",
            remedy="set it in one place: the rollout setting, not engine_kwargs.vllm",
        ),
        Rule(
            id="context-below-lengths",
            level="risky",
            stage="run",
            remedy="raise max_model_len, or lower prompt_length or response_length",
        ),
    )
}


class VerlStartup(msgspec.Struct, frozen=True, kw_only=True):
    """verl's answer: what bit in verl and in the engine, and the values in force at the end."""

    findings: tuple[Finding, ...]
    rollout: dict[str, Any]
    engine: Startup | None

    @property
    def starts(self) -> bool:
        return not any(f.level == "refused" for f in self.findings)

    @property
    def final(self) -> dict[str, Any]:
        return self.rollout if self.engine is None else self.engine.final


def start(
    rollout: Mapping[str, Any],
    model: Model = startup.UNKNOWN_MODEL,
    *,
    engine_kwargs: Mapping[str, Any] | None = None,
    release: Release = RELEASES[-1],
    vllm: Version = startup.NEWEST,
    device: Device = "gpu",
    allow_longer_context: bool = False,
) -> VerlStartup:
    """Whether verl's server starts with these rollout settings; unset ones take `rollout.yaml`'s defaults.

    Only vLLM's own rules are known here: with SGLang or TensorRT-LLM verl's part is judged and the engine's is not.
    """
    values = compose(rollout, release)
    found = check_rollout_config(values)
    backend = values["name"]
    if backend is UNSET:
        backend, rule = "vllm", RULES["backend-taken-for-vllm"]
        found.append(finding(rule, "name", "rollout.name is not set here; judged as vllm", becomes="vllm"))
    elif backend not in BACKENDS:
        why = f"rollout.name is {backend}; verl registers {', '.join(BACKENDS)}"
        found.append(finding(RULES["unknown-backend"], "name", why, given=backend))
    values, of_server = validate(values, model, release=release, backend=backend)
    found += of_server
    engine = None
    if backend == "vllm":
        flags, of_forwarding = forward(values, engine_kwargs or {}, release)
        found += of_forwarding
        if not any(f.level == "refused" for f in found):
            engine = startup.start(
                flags, model, version=vllm, device=device, usage="serve", allow_longer_context=allow_longer_context
            )
            found += engine.findings
    found += _run_time(values)
    return VerlStartup(findings=tuple(found), rollout=values, engine=engine)


def compose(rollout: Mapping[str, Any], release: Release) -> dict[str, Any]:
    """The settings as Hydra hands them over: what is unset takes the default; null and false stay as they are."""
    defaults = ROLLOUT_DEFAULTS | {"max_num_seqs": release.max_num_seqs}
    return {name: default if rollout.get(name, UNSET) is UNSET else rollout[name] for name, default in defaults.items()}


def check_rollout_config(values: Mapping[str, Any]) -> list[Finding]:
    """What `RolloutConfig` itself refuses (0.8.0 to 0.9.1)."""
    found = []
    if values["mode"] == "sync":
        found.append(finding(RULES["sync-mode-removed"], "mode", "verl removed the sync rollout mode", given="sync"))
    ranks = values["pipeline_model_parallel_size"]
    if ranks > 1:
        why = "no rollout backend of verl runs pipeline parallel"
        found.append(finding(RULES["pipeline-parallel-missing"], "pipeline_model_parallel_size", why, given=ranks))
    experts = values["expert_parallel_size"]
    product = values["tensor_model_parallel_size"] * values["data_parallel_size"]
    if values["name"] != "trtllm" and experts > 1 and experts != product:
        why = f"expert_parallel_size {experts} is not tensor × data parallel size = {product}"
        found.append(finding(RULES["expert-parallel-mismatch"], "expert_parallel_size", why, given=experts))
    return found


def validate(
    values: Mapping[str, Any], model: Model, *, release: Release, backend: str
) -> tuple[dict[str, Any], list[Finding]]:
    """What a server's constructor does to the settings: the context rule on every backend, the net on vLLM's.

    Returns the settings afterwards, the input left as it was. UNSET as max_model_len: follows a model not known here.
    """
    after, found = dict(values), list[Finding]()
    positions, context = model.max_position_embeddings, values["max_model_len"]
    if context is None:
        after["max_model_len"] = context = positions
        why = "verl takes the model's max_position_embeddings where max_model_len is null or unset"
        found.append(finding(RULES["context-is-models"], "max_model_len", why, given=None, becomes=positions))
    elif positions is not UNSET and context > positions:
        why = f"max_model_len {context} is more than the model's max_position_embeddings {positions}"
        return after, [finding(RULES["context-above-positions"], "max_model_len", why, given=context)]
    if backend == "vllm" and release.has_net:
        after["max_num_batched_tokens"], of_net = safety_net(
            values["enable_chunked_prefill"], values["max_num_batched_tokens"], context, frozen=release.batch_is_frozen
        )
        found += of_net
    return after, found


def safety_net(chunking: bool | None, batched: int | None, context: Any, *, frozen: bool) -> tuple[Any, list[Finding]]:
    """The net of PR 7632: with chunked prefill off, max_num_batched_tokens is raised to max_model_len if smaller.

    `frozen` says that the config refuses the assignment, as verl 0.9.1's own does: the net then ends the start.
    """
    if chunking:
        return batched, []
    off = "off" if chunking is False else "null, which the net takes for off"
    if batched is None:
        why = f"chunked prefill is {off} and max_num_batched_tokens null cannot be compared with max_model_len"
        return batched, [finding(RULES["null-batch-in-net"], "max_num_batched_tokens", why, given=None)]
    if context is not UNSET and batched >= context:
        return batched, []
    unknown = context is UNSET
    condition = f"the model's max_position_embeddings is more than {batched}" if unknown else None
    length = "the model's max_position_embeddings" if unknown else f"max_model_len {context}"
    if frozen:
        why = (
            f"chunked prefill is {off}; the safety net means to raise max_num_batched_tokens from {batched} to "
            f"{length}, but RolloutConfig is frozen there and the assignment raises FrozenInstanceError"
        )
        rule = RULES["net-on-frozen-field"]
        return batched, [
            finding(rule, "max_num_batched_tokens", why, given=batched, becomes=context, condition=condition)
        ]
    why = f"chunked prefill is {off}; verl warns and raises max_num_batched_tokens from {batched} to {length}"
    rule = RULES["batch-raised-to-context"]
    return context, [finding(rule, "max_num_batched_tokens", why, given=batched, becomes=context, condition=condition)]


def forward(
    values: Mapping[str, Any], engine_kwargs: Mapping[str, Any], release: Release
) -> tuple[dict[str, Any], list[Finding]]:
    """The engine arguments verl makes of the settings: null is left out, and false too before 0.9.1.

    `engine_kwargs` (rollout.engine_kwargs.vllm) is laid over them last, after the net has been.
    """
    found = []
    passed: dict[str, Any] = {}
    for setting, argument in FORWARDED.items():
        value = values[setting]
        if argument in engine_kwargs and engine_kwargs[argument] is not None:
            if engine_kwargs[argument] != value:
                why = f"engine_kwargs.vllm.{argument} replaces rollout.{setting} after verl's own checks"
                rule = RULES["overridden-by-engine-kwargs"]
                found.append(finding(rule, setting, why, given=value, becomes=engine_kwargs[argument]))
            continue
        if value is False and not release.forwards_false:
            why = f"verl {'.'.join(map(str, release.version))} does not pass false on, so vLLM takes its default, true"
            found.append(finding(RULES["false-not-forwarded"], setting, why, given=False, becomes=True))
        elif value is None and setting == "enable_chunked_prefill":
            why = "null is not passed on, so vLLM takes its default, true"
            found.append(finding(RULES["null-chunking"], setting, why, given=None, becomes=True))
        elif value is not None and value is not UNSET:
            passed[argument] = value
    for argument, value in engine_kwargs.items():
        if argument not in startup.FLAGS or value is None:
            continue
        if value is False and not release.forwards_false:
            why = f"verl {'.'.join(map(str, release.version))} does not pass false on, so vLLM takes its default, true"
            setting = f"engine_kwargs.vllm.{argument}"
            found.append(finding(RULES["false-not-forwarded"], setting, why, given=False, becomes=True))
        else:
            passed[argument] = value
    return passed, found


def _run_time(values: Mapping[str, Any]) -> list[Finding]:
    wanted = values["prompt_length"] + values["response_length"]
    context = values["max_model_len"]
    if context is UNSET or context == -1 or wanted <= context:
        return []
    why = f"prompt_length + response_length is {wanted}, more than max_model_len {context}: responses are cut short"
    return [finding(RULES["context-below-lengths"], "max_model_len", why, given=context)]
