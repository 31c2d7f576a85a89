"""What `rollcage waste` does with its options: compare, then tell, draw and write."""

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from msgspec import UNSET

from sim.case import Budget, EngineSettings, ServerSettings
from sim.cli.durations import seconds_of
from sim.dialects import DIALECTS
from sim.report import plots
from sim.report import waste as report
from sim.report.spans import spans_of
from sim.schema import MAX_TOKENS, CaseError
from sim.sut.interface import SutError
from sim.sut.registry import load_sut
from sim.waste import cost, lengths, policies, read_verl, what_if
from sim.waste.closed_form import NEVER
from sim.waste.ledger import Waste
from sim.waste.loads import DEFAULT_COUNT, DEFAULT_LOAD, LOADS, SUFFIXES
from sim.waste.what_if import Comparison, Setting

INTERRUPTED = 130
ENGINE_OPTIONS = (
    "num_gpu_blocks",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "enable_chunked_prefill",
)
"""Fields of `EngineSettings` that have an option: one that is given puts the servers on simulated engines."""
DEFAULT_UPDATES = ("1000", "2000", "4000", "8000", "16000", "32000")
_DEFAULT_LENGTHS = {"prompt_length": 2048, "response_length": 8192, "max_model_len": None}
ERRORS = (
    CaseError,
    SutError,
    what_if.WhatIfError,
    lengths.LengthsError,
    policies.PolicyError,
    cost.LatencyError,
    plots.PlotError,
)
"""What a person can act on: the message says how."""


def _check_writable(path: Path, option: str) -> None:
    """Before the work, not after it: what it finds must have a place."""
    try:
        if path.exists():
            with path.open("ab"):
                pass
        else:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
    except OSError as error:
        raise click.BadParameter(f"{path}: cannot be written: {error.strerror}", param_hint=option) from None


class Options:
    """What was given, with what follows from it."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.policies = [policies.parse(name) for name in dict.fromkeys(given["policy_names"] or policies.DEFAULT)]
        self.suts = {policy.name: load_sut(policy.sut).key for policy in self.policies}
        """What is driven, with its version: loaded before any work is done."""
        self.of_verl = {} if given["source"] is None else read_verl.read(given["source"], os.environ)
        self.named = LOADS.get(given["load_name"] or ("" if given["prompts"] else DEFAULT_LOAD))
        self.replicas = given["replicas"] or self.of_verl.get("replicas") or 1
        self.setting = self._setting()
        self.latency: cost.Spelled | None = None
        self.price = self._price()
        self.is_single = given["prompt_tokens"] is not None or given["abort_every_tokens"] is not None
        if given["plot"] is not None:
            plots.check_plot(given["plot"])
        for option, name in (("--plot", "plot"), ("--csv", "csv_path")):
            if given[name] is not None:
                _check_writable(given[name], option)

    def length(self, name: str) -> int | None:
        """From the command line, else from the config, else of the named load, else the default."""
        if self.given[name] is not None:
            return int(self.given[name])
        if name in self.of_verl:
            value: int | None = self.of_verl[name]
            return value
        of_load = getattr(self.named, name, None)
        return _DEFAULT_LENGTHS[name] if of_load is None else int(of_load)

    def _setting(self) -> Setting:
        given = self.given
        prompt_length, response_length = self.length("prompt_length"), self.length("response_length")
        context = self.length("max_model_len")
        assert prompt_length is not None
        assert response_length is not None
        positions = max(32_768, prompt_length + response_length, context or 0)
        engine = {name: given[name] for name in ENGINE_OPTIONS if given[name] is not None}
        of_verl = self.of_verl.get("engine", {})
        server = ServerSettings(
            dialect=given["dialect"] or self.of_verl.get("dialect", "vllm"),
            token_time_s=given["token_time_s"],
            prefill_s=given["prefill_s"],
            engine=EngineSettings(**of_verl | engine),
        )
        setting = Setting(
            budget=Budget(prompt_length, response_length, UNSET if context is None else context, positions),
            server=server,
            replicas=self.replicas,
            update_mode=given["update_mode"],
            pause_s=given["pause_s"],
            spread_s=given["spread_s"],
            seed=given["seed"],
            simulate=given["simulate"],
            with_engine=bool(engine) or any(policy.needs_engine for policy in self.policies),
        )
        what_if.check_setting(setting)
        return setting

    def _price(self) -> report.Price | None:
        given = self.given
        if given["latency"] is None:
            if given["batch"] or given["gpus_per_replica"]:
                raise cost.LatencyError(
                    "--batch and --gpus-per-replica need --latency: without a model there is no time"
                )
            return None
        self.latency = cost.parse(given["latency"])
        if given["batch"] is None and given["prompt_tokens"] is None:
            raise cost.LatencyError("--latency needs --batch: how many responses a replica decodes at once")
        gpus = given["gpus_per_replica"] or self.of_verl.get("gpus_per_replica") or self.latency.gpus
        return report.Price(self.latency.latency, given["batch"] or 1, gpus)

    @property
    def spelled_token_time_s(self) -> float | None:
        """The token time, where the user thinks in seconds and wants intervals so."""
        in_seconds = any(part.strip().endswith("s") for text in self.given["updates"] for part in text.split(","))
        return self.setting.server.token_time_s if in_seconds else None

    @property
    def capped(self) -> list[str]:
        """Policies whose overrun ends at the server's own default, prompt_length + response_length − prompt."""
        ignores_limits = not DIALECTS[self.setting.server.dialect].limit_keys
        return [each.name for each in self.policies if each.builtin_client == "deferred" or not ignores_limits]

    @property
    def about(self) -> str:
        """The settings in one line."""
        budget, server = self.setting.budget, self.setting.server
        lengths_and_grants = (
            f"prompt_length {budget.prompt_length} · response_length {budget.response_length} · "
            f"max_model_len {budget.context_tokens} · {server.dialect} grants"
        )
        for released in dict.fromkeys(key for key in self.suts.values() if "==" in key):
            lengths_and_grants += f" · {released}"
        if not self.setting.with_engine or server.engine is None:
            return lengths_and_grants
        config = server.engine.config(budget.context_tokens)
        return (
            f"{lengths_and_grants}\nengines of {config.usable_blocks:,} KV blocks of {config.block_size} tokens · "
            f"max_num_seqs {config.max_num_seqs:,} · max_num_batched_tokens {config.max_num_batched_tokens:,} · "
            f"prefix caching {'on' if config.enable_prefix_caching else 'off'}"
        )

    @property
    def taken(self) -> str | None:
        """What was taken from the config, in one line."""
        given, found = self.given, self.of_verl
        if not found:
            return None
        parts = []
        for name in _DEFAULT_LENGTHS:
            if given[name] is None and found[name] is not None:
                parts.append(f"{name} {found[name]}" + " (unset: verl's default)" * (name in found["unset"]))
        if given["dialect"] is None:
            parts.append(found["dialect"])
        if self.setting.with_engine:
            parts += [f"{name} {value}" for name, value in found["engine"].items() if given.get(name) is None]
        if given["replicas"] is None and found["replicas"] is not None:
            parts.append(
                f"{found['replicas']} replica{'s' * (found['replicas'] > 1)} "
                f"({found['gpus']} GPUs, {found['gpus_per_replica']} for each)"
            )
        elif given["gpus_per_replica"] is None:
            parts.append(f"{found['gpus_per_replica']} GPUs a replica")
        return f"taken from {given['source']}: {', '.join(parts)}" if parts else None


def run(options: Options) -> None:
    """Compares what was asked for. Exits with 130 when it was interrupted, having told what there is."""
    if options.is_single:
        _run_single(options)
    else:
        _run_load(options)


# One response


def _run_single(options: Options) -> None:
    given = options.given
    prompt, every = given["prompt_tokens"], given["abort_every_tokens"]
    if prompt is None or every is None:
        raise click.UsageError("--prompt-tokens and --abort-every-tokens go together")
    for name in ("load_name", "prompts", "responses", "count", "spread_s"):
        if given[name] is not None:
            raise click.UsageError("--prompt-tokens is about one response: it excludes the options of a load")
    if given["updates"]:
        raise click.UsageError("--abort-every-tokens and --update-every exclude each other")
    if given["csv_path"] is not None:
        raise click.UsageError("--csv is for a load")
    found: dict[str, Waste] = {}
    stories = []
    for policy in options.policies:
        case = what_if.single_case(options.setting, policy, prompt, every, given["stops_after"])
        trace, found[policy.name] = what_if.run_single(case, policy)
        stories.append(plots.Story(policy.name, spans_of(case, trace)))
    about = f"a prompt of {prompt} tokens, aborted every {every} · {options.about}"
    if given["plot"] is not None:
        plots.draw(given["plot"], [], stories, options.about, f"A prompt of {prompt} tokens, aborted every {every}")
    if given["as_json"]:
        ledgers = {name: report.as_data(one, options.price) for name, one in found.items()}
        settings = {"prompt_tokens": prompt, "abort_every_tokens": every, **_settings_data(options)}
        click.echo(json.dumps({"settings": settings, "policies": ledgers}))
        return
    if options.taken is not None:
        click.echo(options.taken)
    click.echo(about + "\n")
    click.echo(report.waste_table([((name,), one) for name, one in found.items()], ("policy",), options.price))
    _tell_rest([report.Group("", list(found.items()))], options, [prompt])


def _settings_data(options: Options) -> dict[str, Any]:
    setting = options.setting
    data: dict[str, Any] = msgspec.to_builtins(setting)
    data["budget"] = {
        "prompt_length": setting.budget.prompt_length,
        "response_length": setting.budget.response_length,
        "max_model_len": setting.budget.context_tokens,
    }
    data["server"] = msgspec.to_builtins(msgspec.structs.asdict(setting.of_servers))
    data["latency"] = options.given["latency"]
    data["suts"] = options.suts
    return data


def _tell_rest(groups: list[report.Group], options: Options, prompts: list[int], late: str | None = None) -> None:
    """What the table means, and what is saved. `late`: what is to be said of updates that came late."""
    wastes = [waste for group in groups for _, waste in group.wastes]
    click.echo()
    meanings = report.meaning_lines(wastes)
    for line in meanings:
        click.echo(f"  {line}")
    if meanings:
        click.echo()
    worst = max(wastes, key=lambda one: one.fates["overrun"].tokens, default=Waste())
    budget = options.setting.budget
    for sentence in (
        report.cap_line(groups, options.capped, budget.prompt_length, prompts) if prompts else None,
        report.depth_line(worst, options.price),
        report.prefill_line(groups, options.price),
    ):
        if sentence is not None:
            click.echo(sentence)
    for line in report.saving_lines(groups, options.price):
        click.echo(line)
    if late is not None:
        click.echo(late)
    if options.latency is not None and options.price is not None:
        summed = ", summed over the replicas" if options.setting.replicas > 1 else ""
        click.echo(f"Engine time{summed}: {options.latency.about}; {options.price.batch} responses at once.")


# A load


def _run_load(options: Options) -> None:
    given = options.given
    if given["stops_after"] is not None:
        raise click.UsageError("--stops-after is about one response; --responses gives the lengths of a load")
    load = _load_of(options)
    setting = options.setting
    intervals = _intervals(given["updates"] or DEFAULT_UPDATES, setting)
    with _progress() as tick:
        comparison = what_if.compare(setting, load, options.policies, intervals, tick)
    if given["csv_path"] is not None and comparison.rows:
        given["csv_path"].write_text(report.comparison_csv(comparison, options.price), encoding="utf-8")
    if given["plot"] is not None and comparison.rows:
        stories, of_story = _stories(options, load, intervals)
        about = f"{_about_load(options, load)}\n{options.about}"
        plots.draw(given["plot"], comparison.rows, stories, about, of_story, options.spelled_token_time_s)
    if given["as_json"]:
        data = {"settings": _settings_data(options), "responses": len(load), "note": load.note}
        click.echo(json.dumps(data | report.comparison_data(comparison, options.price)))
    else:
        _tell_load(options, load, comparison)
    if comparison.interrupted:
        sys.exit(INTERRUPTED)


def _load_of(options: Options) -> lengths.Lengths:
    given, budget = options.given, options.setting.budget
    prompts, responses, name = given["prompts"], given["responses"], given["load_name"]
    if prompts is not None or responses is not None:
        if prompts is None or responses is None or name is not None:
            raise click.UsageError("--prompts and --responses go together, and exclude --lengths")
        return lengths.of_distributions(
            prompts, responses, given["count"] or DEFAULT_COUNT, given["seed"], most_prompt=_most_prompt(budget)
        )
    if name is not None and (Path(name).suffix.lower() in SUFFIXES or Path(name).exists()):
        load = lengths.read(Path(name), budget.response_length)
        load = lengths.fitting(load, _most_prompt(budget), name)
        return load if given["count"] is None else lengths.resized(load, given["count"], given["seed"])
    return lengths.named(
        name or DEFAULT_LOAD, given["count"] or DEFAULT_COUNT, given["seed"], most_prompt=_most_prompt(budget)
    )


def _most_prompt(budget: Budget) -> int:
    """verl leaves out prompts beyond prompt_length, and a case has none beyond the context."""
    return min(budget.prompt_length, budget.context_tokens)


def _intervals(texts: tuple[str, ...], setting: Setting) -> list[int | None]:
    """Intervals in token times; seconds are rounded to whole ticks of arrival."""
    found: list[int | None] = []
    for text in texts:
        for part in text.split(","):
            found += _interval(part.strip(), setting)
    return list(dict.fromkeys(found))


def _interval(text: str, setting: Setting) -> list[int | None]:
    if text == "never":
        return [None]
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?)/(\d+))?(s?)", text)
    if match is None:
        meant_s = seconds_of(text)
        guess = "" if meant_s is None else f"; did you mean {meant_s:.12g}s?"
        raise what_if.WhatIfError(
            f"--update-every {text}: a number of tokens (2000), of seconds (60s), a range of N (500-8000/20), or never"
            + guess
        )
    first, last, steps, unit = match.groups()
    ends = [float(first), float(last or first)]
    count = int(steps or 1)
    if not 1 <= count <= 1000 or (last is not None and count < 2) or ends[1] < ends[0]:
        raise what_if.WhatIfError(f"--update-every {text}: a range goes upwards, in 2 to 1000 intervals")
    values = [ends[0] + (ends[1] - ends[0]) * step / max(1, count - 1) for step in range(count)]
    if unit:
        values = [value / setting.server.token_time_s for value in values]
    tick = what_if.ARRIVAL_TICK_TOKENS
    whole = [round(value / tick) * tick if unit or last is not None else int(value) for value in values]
    if any(not 1 <= value <= MAX_TOKENS for value in whole):
        raise what_if.WhatIfError(f"--update-every {text}: is {whole[0]} tokens; 1 to {MAX_TOKENS} are possible")
    if not unit and last is None:
        try:
            what_if.check_interval(setting, whole[0])
        except what_if.WhatIfError as error:
            raise what_if.WhatIfError(f"--update-every {text}: {error}; did you mean {text}s?") from None
    return list(whole)


def _stories(options: Options, load: lengths.Lengths, intervals: list[int | None]) -> tuple[list[plots.Story], str]:
    """The longest response of the load in each policy's world, and what it is; of equals the shortest prompt.

    Shown at the longest interval that still aborts it a few times.
    """
    setting = options.setting
    usual = load.responses.clip(max=2 * setting.budget.response_length).sum(axis=1)
    index = int(np.lexsort((load.prompts, -usual))[0])
    given = sorted(interval for interval in intervals if interval is not None)
    fitting = [interval for interval in given if interval <= setting.budget.response_length // 3]
    interval = fitting[-1] if fitting else given[0] if given else None
    stories = []
    for policy in options.policies:
        case = what_if.case_of(setting, load, policy, interval, [index])
        trace, _ = what_if.run_single(case, policy)
        stories.append(plots.Story(policy.name, spans_of(case, trace)))
    if interval is None:
        return stories, "The longest response"
    token_time_s = options.spelled_token_time_s
    every = f"{interval:,} tokens" if token_time_s is None else f"{interval * token_time_s:.6g} s"
    return stories, f"The longest response, with a weight update every {every}"


def _about_load(options: Options, load: lengths.Lengths) -> str:
    endless = int((load.responses >= NEVER).any(axis=1).sum())
    named = None if options.named is None else options.named.about
    replicas = f"{options.setting.replicas} replica{'s' * (options.setting.replicas > 1)}"
    means = f"prompts of {load.prompts.mean():,.0f} on average"
    ending = load.responses[load.responses < NEVER]
    if len(ending):
        means += f", responses of {ending.mean():,.0f}"
    if endless:
        means += f" ({endless:,} never {'stop by themselves' if endless > 1 else 'stops by itself'})"
    return f"{len(load):,} responses{f' ({named})' if named else ''} on {replicas}, {means}"


def _tell_load(options: Options, load: lengths.Lengths, comparison: Comparison) -> None:
    if options.taken is not None:
        click.echo(options.taken)
    click.echo(f"{options.about}\n{_about_load(options, load)}")
    if load.note:
        click.echo(load.note)
    click.echo()
    if not comparison.rows:
        click.echo("interrupted before the first row was done")
        return
    click.echo(report.comparison_table(comparison, options.price, options.spelled_token_time_s))
    if comparison.interrupted:
        click.echo("\n  interrupted: what follows is about the intervals that all policies have")
    # With several turns the prompts of the later ones are longer, and each has a cap of its own.
    prompts = [] if load.turns > 1 else load.prompts.tolist()
    groups = report.groups_of(comparison, options.spelled_token_time_s)
    _tell_rest(groups, options, prompts, report.wait_line(comparison))
    click.echo(f"({report.how_line(comparison)})")


@contextmanager
def _progress() -> Iterator[what_if.Progress]:
    """A bar with the time that is left, on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    started = time.monotonic()

    def tick(done: int, of: int) -> None:
        left = ""
        if done:
            left = f", {report.duration((time.monotonic() - started) * (of - done) / done)} left"
        filled = 24 * done // of
        click.echo(f"\r\x1b[K{'█' * filled}{'░' * (24 - filled)} {done} of {of}{left}", err=True, nl=False)

    try:
        yield tick
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)
