"""The settings that waste depends on, from a verl config."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from sim.case import EngineSettings
from sim.preflight import read_yaml, scan, verl
from sim.preflight.launch import Launch, PreflightError
from sim.schema import explained
from sim.waste.what_if import WhatIfError

_DIALECTS = ("vllm", "sglang", "trtllm")
_GPU_SECTIONS = ("actor_rollout_ref.rollout", "rollout", "trainer")
_GPU_PATHS = tuple(f"{section}.{name}" for section in _GPU_SECTIONS for name in ("n_gpus_per_node", "nnodes"))
_GPU_OVERRIDE = re.compile(
    r"(?<![\w.])((?:actor_rollout_ref\.rollout|rollout|trainer)\.(?:n_gpus_per_node|nnodes))=(\d+)\b"
)
_NNODES = 1
"""verl's default of trainer.nnodes."""
_OF_ENGINE = ("max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "enable_chunked_prefill")
"""Rollout settings that `EngineSettings` has under the same name."""
_REQUESTS = "max_num_seqs"


class FromVerl(NamedTuple):
    """What a config says; what it leaves unset is as in verl. Lengths are tokens."""

    prompt_length: int
    response_length: int
    max_model_len: int | None
    dialect: str
    gpus_per_replica: int
    gpus: int | None
    """Of all nodes; None where the file names none."""
    replicas: int | None
    """As many as fit on the GPUs."""
    engine: dict[str, Any]
    """What the file says of the engine: fields of `EngineSettings`. Requests at once are always among them, as verl
    tells its engines how many."""
    unset: tuple[str, ...]
    """Which of the first two, and of the requests at once, the file does not say."""


def read(path: Path, env: Mapping[str, str]) -> FromVerl:
    """Reads YAML or a launch script. Raises `WhatIfError` that names the file and the setting."""
    if not path.is_file():
        raise WhatIfError(f"--from {path}: no such file")
    try:
        launches = scan.read_file(path, env).launches
    except PreflightError as error:
        raise WhatIfError(f"--from {error}") from None
    launch = next((each for each in launches if each.dialect == "verl"), None)
    if launch is None:
        raise WhatIfError(f"--from {path}: holds no rollout settings of verl")
    name = _value(launch, "name", path)
    if name is UNSET:
        name = "vllm"
    if name not in _DIALECTS:
        raise WhatIfError(f"--from {path}: rollout.name is {name!r}; {', '.join(_DIALECTS)} are known")
    sizes = [_value(launch, f"{kind}_parallel_size", path) for kind in ("tensor_model", "data", "pipeline_model")]
    found = {name: _value(launch, name, path) for name in ("prompt_length", "response_length")}
    for length, value in found.items():
        if type(value) is not int or value < 1:
            raise WhatIfError(f"--from {path}: {length} is {value!r}; a number of tokens is needed")
    gpus_per_replica = sizes[0] * sizes[1] * sizes[2]
    gpus = _gpus(path, env)
    if gpus is not None and gpus < gpus_per_replica:
        raise WhatIfError(
            f"--from {path}: nnodes × n_gpus_per_node is {gpus}, and a replica needs {gpus_per_replica} GPUs "
            f"(tensor_model × data × pipeline_model parallel size)"
        )
    return FromVerl(
        **found,
        max_model_len=_value(launch, "max_model_len", path),
        dialect=name,
        gpus_per_replica=gpus_per_replica,
        gpus=gpus,
        replicas=None if gpus is None else gpus // gpus_per_replica,
        engine=_engine(launch, path),
        unset=tuple(name for name in ("prompt_length", "response_length", _REQUESTS) if name not in launch.settings),
    )


def _gpus(path: Path, env: Mapping[str, str]) -> int | None:
    """Of the rollout's own nodes where it has some, else of the trainer's; None where the file does not tell."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in scan.YAML_SUFFIXES:
        found = read_yaml.values(text, str(path), env, _GPU_PATHS)
    else:
        found = {each: int(number) for each, number in _GPU_OVERRIDE.findall(text)}
    for section in _GPU_SECTIONS:
        gpus, nodes = found.get(f"{section}.n_gpus_per_node"), found.get(f"{section}.nnodes")
        if section != "trainer":
            gpus = (found.get("trainer.n_gpus_per_node") if gpus is None else gpus) if nodes else None
        elif gpus is not None and nodes is None:
            nodes = _NNODES
        if type(gpus) is int and type(nodes) is int and min(gpus, nodes) >= 1:
            return gpus * nodes
    return None


def _engine(launch: Launch, path: Path) -> dict[str, Any]:
    found = {name: launch.settings[name].value for name in _OF_ENGINE if name in launch.settings}
    found = {name: value for name, value in found.items() if value is not None}
    if _REQUESTS not in found:
        batch_tokens = found.get("max_num_batched_tokens")
        default: int = verl.ROLLOUT_DEFAULTS[_REQUESTS]
        found[_REQUESTS] = min(default, batch_tokens) if type(batch_tokens) is int else default
    try:
        msgspec.convert(found, EngineSettings)
    except msgspec.ValidationError as error:
        raise WhatIfError(f"--from {path}: {explained(error, found, EngineSettings)}") from None
    return found


def _value(launch: Launch, name: str, path: Path) -> Any:
    if name in launch.unknown:
        spelled = launch.unknown[name].spelled
        raise WhatIfError(f"--from {path}: {spelled} cannot be known from the file alone; give it on the command line")
    setting = launch.settings.get(name)
    return verl.ROLLOUT_DEFAULTS[name] if setting is None else setting.value
