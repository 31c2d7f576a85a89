"""How settings and their values are spelled: verl's dotted paths and Hydra values, vLLM's flags and numbers."""

import re
from typing import Any

from msgspec import UNSET

from sim.preflight import verl
from sim.preflight.launch import PreflightError
from sim.startup.flags import FLAGS

_ENGINE_PATH = re.compile(r"(?P<engine>(?:\w+\.)*(?:rollout|inference))\.(?P<setting>\w+(?:\.vllm\.\w+)?)")
_DATA_PATHS = {"data.max_prompt_length": "prompt_length", "data.max_response_length": "response_length"}
CONFIG_ROOT = "actor_rollout_ref"
"""Of what drives the rollouts, in verl's config."""

DATA_FED_ENGINE = f"{CONFIG_ROOT}.rollout"
"""The engine whose prompt_length and response_length follow `data.*` unless set, by `rollout.yaml`."""

_VLLM_ALIASES = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_INTEGER = re.compile(r"[+-]?\d+(?:_\d+)*")
_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?")
_SUFFIXES = "kmgt"
_HYDRA_CONSTANTS = {"null": None, "true": True, "false": False}
_KIND_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a word"}


def verl_path(path: str) -> tuple[str, str] | None:
    """(engine, setting) of a dotted path that names a rollout setting, else None."""
    if path in _DATA_PATHS:
        return DATA_FED_ENGINE, f"data:{_DATA_PATHS[path]}"
    match = _ENGINE_PATH.fullmatch(path)
    if match is None:
        return None
    setting = match["setting"]
    passed_on = setting.removeprefix(verl.PASSED_ON)
    if setting in verl.ROLLOUT_DEFAULTS or (passed_on != setting and passed_on in FLAGS):
        return match["engine"], setting
    return None


def vllm_flag(word: str) -> tuple[str, bool] | None:
    """(argument, negated) of a vLLM flag, dashes or underscores alike; None for a flag the rules do not need."""
    name = word.lstrip("-").replace("-", "_")
    name = _VLLM_ALIASES.get(name, name)
    if name in FLAGS:
        return name, False
    negated = name.removeprefix("no_")
    if negated != name and negated in FLAGS and FLAGS[negated].kind is bool:
        return negated, True
    return None


def dashed(argument: str) -> str:
    """An argument as vLLM's command line spells it, without the dashes before it."""
    return argument.replace("_", "-")


def hydra_value(text: str) -> Any:
    """A value as Hydra reads an override: null, true, 8192, 0.5, 'quoted'. `None` is a word like any other there."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.lower() in _HYDRA_CONSTANTS:
        return _HYDRA_CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def vllm_value(argument: str, text: str) -> Any:
    """A value as vLLM's command line reads it: 8k is 8000, 8K is 8192, and max_model_len takes `auto`."""
    kind = FLAGS[argument].kind
    if argument == "max_model_len" and text.lower() == "auto":
        return -1
    if kind is int and (match := _NUMBER.fullmatch(text)):
        number, suffix = match.groups()
        power = _SUFFIXES.index(suffix.lower()) + 1
        if suffix.islower():
            return int(float(number) * 1000**power)
        if "." not in number:
            return int(number) * 1024**power
    elif kind is int and _INTEGER.fullmatch(text):
        return int(text)
    elif kind is float and _FLOAT.fullmatch(text):
        return float(text)
    elif kind is str:
        return text
    examples = " (8192, 8k, 8K)" if kind is int else ""
    raise PreflightError(f"--{dashed(argument)} {text}: expected {_KIND_WORDS[kind]}{examples}")


def typed(dialect: str, setting: str, value: Any, spelled: str) -> Any:
    """`value` if it has the type the setting needs; bad ones are an error that says what is allowed."""
    passed_on = setting.removeprefix(verl.PASSED_ON)
    if dialect == "vllm" or passed_on != setting:
        kind, nullable = FLAGS[passed_on].kind, True
    else:
        plain = setting.removeprefix("data:")
        kind, nullable = verl.KINDS[plain], plain in verl.NULLABLE
    if value is None and nullable:
        return None
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is kind:
        return value
    allowed = _KIND_WORDS[kind] + (" or null" if nullable else "")
    hint = ""
    if value == "None":
        hint = "; None is a word here, write null"
    elif kind is bool and isinstance(value, str):
        hint = "; any quoted word counts as true"
    raise PreflightError(f"{spelled} = {show(value)}: expected {allowed}{hint}")


def show(value: Any) -> str:
    """A value as a config file would spell it; UNSET is said in words."""
    if value is UNSET:
        return "unset"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return repr(value) if isinstance(value, str) else str(value)
