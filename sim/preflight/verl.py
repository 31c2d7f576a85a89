"""verl's rules on top of vLLM's: what verl's own code refuses or changes before the engine sees a setting.

Read in verl 0.8.0, 0.9.0 and 0.9.1 (`RolloutConfig`, the three servers' constructors, `build_cli_args_from_config`);
`tests/preflight/test_verl.py` and `properties/test_config.py` run the installed package's own code against this.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from sim.startup.batch import Device
from sim.startup.flags import FLAGS
from sim.startup.model_shape import UNKNOWN_MODEL, ModelShape
from sim.startup.rules import NEWEST, Finding, Rule, Version, dotted, table
from sim.startup.start import Startup
from sim.startup.start import start as start_vllm

BACKENDS = ("vllm", "sglang", "trtllm")

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
    setting: "tensor_parallel_size" if setting == "tensor_model_parallel_size" else setting
    for setting in (
        "max_model_len", "max_num_seqs", "enable_chunked_prefill", "max_num_batched_tokens", "enable_prefix_caching",
        "gpu_memory_utilization", "tensor_model_parallel_size", "scheduling_policy", "dtype", "load_format",
    )
}  # fmt: skip
"""Rollout setting → engine argument that verl's vLLM server passes on."""

PASSED_ON = "engine_kwargs.vllm."
"""What stands before an engine argument that a rollout section hands to vLLM itself."""


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
    """That version, taken for the newest known release that is not newer; a ValueError if it is older than them all."""
    older = [release for release in RELEASES if release.version <= version]
    if not older:
        known = ", ".join(dotted(release.version) for release in RELEASES)
        raise ValueError(f"verl {dotted(version)} is older than the releases known here: {known}")
    return msgspec.structs.replace(older[-1], version=version)


# fmt: off
RULES = table(
    Rule("sync-mode-removed", "refused", "verl config", "set mode=async or drop it"),
    Rule("pipeline-parallel-missing", "refused", "verl config", "set pipeline_model_parallel_size=1"),
    Rule("expert-parallel-mismatch", "refused", "verl config",
         "set expert_parallel_size to 1 or to tensor_model_parallel_size × data_parallel_size"),
    Rule("unknown-backend", "refused", "verl server",
         "name a backend that verl knows, or one that your own code registers"),
    Rule("backend-taken-for-vllm", "note", "verl config", "set rollout.name: verl has no default for it"),
    Rule("context-above-positions", "refused", "verl server",
         "lower max_model_len to the model's max_position_embeddings"),
    Rule("context-is-models", "note", "verl server", "set max_model_len explicitly to what the run needs"),
    Rule("batch-raised-to-context", "changed", "verl server",
         "drop the stale enable_chunked_prefill=False, or set max_model_len explicitly to what is needed"),
    Rule("net-on-frozen-field", "refused", "verl server",
         "drop the stale enable_chunked_prefill=False, or set max_model_len explicitly "
         "and max_num_batched_tokens no lower"),
    Rule("null-batch-in-net", "refused", "verl server",
         "give max_num_batched_tokens a number, or drop enable_chunked_prefill=False"),
    Rule("false-not-forwarded", "changed", "config",
         "drop the flag: it has no effect here, and takes effect on an upgrade to verl 0.9.1"),
    Rule("null-chunking", "changed", "config", "write true or false; null is neither"),
    Rule("overridden-by-engine-kwargs", "changed", "config",
         "set it in one place: the rollout setting, not engine_kwargs.vllm"),
    Rule("context-below-lengths", "risky", "run", "raise max_model_len, or lower prompt_length or response_length"),
)
# fmt: on


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
    model: ModelShape = UNKNOWN_MODEL,
    *,
    release: Release = RELEASES[-1],
    vllm: Version = NEWEST,
    device: Device = "gpu",
    allow_longer_context: bool = False,
) -> VerlStartup:
    """Whether verl's server starts with these rollout settings; unset ones take `rollout.yaml`'s defaults.

    A name that begins with `PASSED_ON` is an engine argument; verl lays them over the others last.
    Only vLLM's own rules are known here: with SGLang or TensorRT-LLM verl's part is judged and the engine's is not.
    """
    values = compose(rollout, release)
    found = check_rollout_config(values)
    backend = values["name"]
    if backend is UNSET:
        backend, why = "vllm", "rollout.name is not set here; judged as vllm"
        found.append(RULES["backend-taken-for-vllm"].found("name", why, becomes="vllm"))
    elif backend not in BACKENDS:
        why = f"rollout.name is {backend}; verl registers {', '.join(BACKENDS)}"
        found.append(RULES["unknown-backend"].found("name", why, given=backend))
    values, of_server = validate(values, model, release=release, backend=backend)
    found += of_server
    engine = None
    if backend == "vllm":
        engine_kwargs = {n.removeprefix(PASSED_ON): v for n, v in rollout.items() if n.startswith(PASSED_ON)}
        flags, of_forwarding = forward(values, engine_kwargs, release)
        found += of_forwarding
        if not any(f.level == "refused" for f in found):
            engine = start_vllm(flags, model, version=vllm, device=device, allow_longer_context=allow_longer_context)
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
        found.append(RULES["sync-mode-removed"].found("mode", "verl removed the sync rollout mode", given="sync"))
    ranks = values["pipeline_model_parallel_size"]
    if ranks > 1:
        why = "no rollout backend of verl runs pipeline parallel"
        found.append(RULES["pipeline-parallel-missing"].found("pipeline_model_parallel_size", why, given=ranks))
    experts = values["expert_parallel_size"]
    product = values["tensor_model_parallel_size"] * values["data_parallel_size"]
    if values["name"] != "trtllm" and experts > 1 and experts != product:
        why = f"expert_parallel_size {experts} is not tensor × data parallel size = {product}"
        found.append(RULES["expert-parallel-mismatch"].found("expert_parallel_size", why, given=experts))
    return found


def validate(
    values: Mapping[str, Any], model: ModelShape, *, release: Release, backend: str
) -> tuple[dict[str, Any], list[Finding]]:
    """What a server's constructor does to the settings: the context rule on every backend, the net on vLLM's.

    Returns the settings afterwards, the input left as it was. UNSET as max_model_len: follows a model not known here.
    """
    after, found = dict(values), list[Finding]()
    positions, context = model.max_position_embeddings, values["max_model_len"]
    if context is None:
        after["max_model_len"] = context = positions
        why = "verl takes the model's max_position_embeddings where max_model_len is null or unset"
        found.append(RULES["context-is-models"].found("max_model_len", why, given=None, becomes=positions))
    elif positions is not UNSET and context > positions:
        why = f"max_model_len {context} is more than the model's max_position_embeddings {positions}"
        return after, [RULES["context-above-positions"].found("max_model_len", why, given=context)]
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
    off = f"chunked prefill is {'off' if chunking is False else 'null, which the net takes for off'}"
    if batched is None:
        why = f"{off} and max_num_batched_tokens null cannot be compared with max_model_len"
        return batched, [RULES["null-batch-in-net"].found("max_num_batched_tokens", why, given=None)]
    condition, length = None, f"max_model_len {context}"
    if context is UNSET:
        length = "the model's max_position_embeddings"
        condition = f"{length} is more than {batched}"
    elif batched >= context:
        return batched, []
    raised = f"max_num_batched_tokens from {batched} to {length}"
    rule, why = RULES["batch-raised-to-context"], f"{off}; verl warns and raises {raised}"
    if frozen:
        rule, why = (
            RULES["net-on-frozen-field"],
            (
                f"{off}; the safety net means to raise {raised}, but RolloutConfig is frozen there and the assignment "
                f"raises FrozenInstanceError"
            ),
        )
    found = rule.found("max_num_batched_tokens", why, given=batched, becomes=context, condition=condition)
    return batched if frozen else context, [found]


def forward(
    values: Mapping[str, Any], engine_kwargs: Mapping[str, Any], release: Release
) -> tuple[dict[str, Any], list[Finding]]:
    """The engine arguments verl makes of the settings: null is left out, and false too before 0.9.1.

    `engine_kwargs` (rollout.engine_kwargs.vllm) is laid over them last, after the net has been.
    """
    found = []
    passed: dict[str, Any] = {}
    laid_over = {name: value for name, value in engine_kwargs.items() if value is not None}

    def pass_on(setting: str, argument: str, value: Any) -> None:
        if value is False and not release.forwards_false:
            why = f"verl {dotted(release.version)} does not pass false on, so vLLM takes its default, true"
            found.append(RULES["false-not-forwarded"].found(setting, why, given=False, becomes=True))
        else:
            passed[argument] = value

    for setting, argument in FORWARDED.items():
        value = values[setting]
        if argument in laid_over:
            if laid_over[argument] != value:
                why = f"{PASSED_ON}{argument} replaces rollout.{setting} after verl's own checks"
                rule = RULES["overridden-by-engine-kwargs"]
                found.append(rule.found(setting, why, given=value, becomes=laid_over[argument]))
        elif value is None and setting == "enable_chunked_prefill":
            why = "null is not passed on, so vLLM takes its default, true"
            found.append(RULES["null-chunking"].found(setting, why, given=None, becomes=True))
        elif value is not None and value is not UNSET:
            pass_on(setting, argument, value)
    for argument, value in laid_over.items():
        if argument in FLAGS:
            pass_on(f"{PASSED_ON}{argument}", argument, value)
    return passed, found


def _run_time(values: Mapping[str, Any]) -> list[Finding]:
    wanted = values["prompt_length"] + values["response_length"]
    context = values["max_model_len"]
    if context is UNSET or context == -1 or wanted <= context:
        return []
    why = f"prompt_length + response_length is {wanted}, more than max_model_len {context}: responses are cut short"
    return [RULES["context-below-lengths"].found("max_model_len", why, given=context)]
