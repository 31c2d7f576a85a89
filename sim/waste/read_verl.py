"""The settings that waste depends on, from a verl config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from sim.case import EngineSettings, explained
from sim.preflight import scan, verl
from sim.preflight.launch import Launch, PreflightError
from sim.waste.what_if import WhatIfError

_DIALECTS = ("vllm", "sglang", "trtllm")
_OF_ENGINE = ("max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "enable_chunked_prefill")
"""Rollout settings that `EngineSettings` has under the same name."""


def read(path: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """`prompt_length`, `response_length`, `max_model_len`, `dialect` and `gpus_per_replica`; unset ones as verl's, and
    under `unset` which of the two lengths that are. Under `engine` what the file says of the engine.

    Raises `WhatIfError` that names the file and the setting.
    """
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
    return {
        **found,
        "max_model_len": _value(launch, "max_model_len", path),
        "dialect": name,
        "gpus_per_replica": sizes[0] * sizes[1] * sizes[2],
        "engine": _engine(launch, path),
        "unset": tuple(length for length in ("prompt_length", "response_length") if length not in launch.settings),
    }


def _engine(launch: Launch, path: Path) -> dict[str, Any]:
    found = {name: launch.settings[name].value for name in _OF_ENGINE if name in launch.settings}
    found = {name: value for name, value in found.items() if value is not None}
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
