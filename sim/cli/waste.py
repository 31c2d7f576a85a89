"""`rollcage waste`: compare, then tell, draw and write. Exit 0 compared, 2 unusable, 130 interrupted (with what there
is)."""

import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from sim.cli.exits import INTERRUPTED, unusable
from sim.cli.progress import progress_bar
from sim.cli.waste_options import Given, options
from sim.cli.waste_settings import Settings
from sim.files import FileError, check_writable, write_text
from sim.report import plots
from sim.report import waste as report
from sim.report.spans import spans_of
from sim.report.waste_files import as_data, comparison_csv, comparison_data
from sim.schema import CaseError
from sim.sut.interface import SutError
from sim.waste import what_if
from sim.waste.cost import LatencyError
from sim.waste.ledger import Waste, waste_of
from sim.waste.lengths import NEVER, Lengths, LengthsError
from sim.waste.variants import VariantError
from sim.waste.what_if import Comparison, WhatIfError

_ERRORS = (CaseError, FileError, SutError, WhatIfError, LengthsError, VariantError, LatencyError, plots.PlotError)
"""What a person can act on: the message says how."""


@click.command()
@options
def waste(**given: Any) -> None:
    """How many decoded tokens are thrown away with these settings, and what would a fix save?

    \b
    rollcage waste                                      a first answer, on a built-in load
    rollcage waste --from verl.yaml --lengths mine.csv --update-every 60s
    rollcage waste --prompt-tokens 136 --abort-every-tokens 2000     one response

    Losses are decoded tokens, each under one name: duplicate, zombie, dropped, overrun, sliced, discarded, in flight.
    """
    try:
        _compare(Given(**given))
    except _ERRORS as error:
        unusable(str(error))
    except BrokenPipeError:
        raise  # whoever read it has enough, which click knows of
    except OSError as error:
        unusable(f"{error.filename or 'what was to be written'}: {error.strerror}")


def _compare(given: Given) -> None:
    settings = Settings(given)
    if given.plot is not None:
        plots.check_plot(given.plot)
        _check_writable(given.plot, given, "--plot")
    if given.csv is not None:
        _check_writable(given.csv, given, "--csv")
    if given.prompt_tokens is None and given.abort_every_tokens is None:
        _compare_load(settings)
    elif given.prompt_tokens is None or given.abort_every_tokens is None:
        raise click.UsageError("--prompt-tokens and --abort-every-tokens go together")
    else:
        _compare_single(settings, given.prompt_tokens, given.abort_every_tokens)


def _check_writable(path: Path, given: Given, option: str) -> None:
    """Before the work, not after it: what it finds must have a place."""
    try:
        check_writable(path, _inputs(given))
    except FileError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


# One response


def _compare_single(settings: Settings, prompt_tokens: int, every_tokens: int) -> None:
    given = settings.given
    if any(each is not None for each in (given.load, given.count, given.spread_s)):
        raise click.UsageError("--prompt-tokens is about one response: it excludes the options of a load")
    if given.updates:
        raise click.UsageError("--abort-every-tokens and --update-every exclude each other")
    if given.csv is not None:
        raise click.UsageError("--csv is for a load")
    found: list[tuple[str, Waste]] = []
    stories = []
    for variant in settings.variants:
        case = what_if.single_case(settings.conditions, variant, prompt_tokens, every_tokens)
        trace = what_if.trace_of(case, variant)
        found.append((variant.name, waste_of(case, trace)))
        stories.append(plots.Story(variant.name, spans_of(case, trace)))
    if given.plot is not None:
        title = f"A prompt of {prompt_tokens} tokens, aborted every {every_tokens}"
        plots.draw(given.plot, _inputs(given), [], stories, settings.about, title)
    if given.as_json:
        data = {"prompt_tokens": prompt_tokens, "abort_every_tokens": every_tokens, **_settings_data(settings)}
        ledgers = {name: as_data(one, settings.price) for name, one in found}
        click.echo(json.dumps({"settings": data, "policies": ledgers}))
        return
    if settings.taken is not None:
        click.echo(settings.taken)
    click.echo(f"a prompt of {prompt_tokens} tokens, aborted every {every_tokens} · {settings.about}\n")
    click.echo(report.waste_table([((name,), one) for name, one in found], ("policy",), settings.price))
    _tell_meaning(settings, [report.Group("", found)], [prompt_tokens])


# A load


def _compare_load(settings: Settings) -> None:
    given, price = settings.given, settings.price
    load, intervals = settings.load(), settings.intervals()
    with progress_bar("rows", len(settings.variants) * len(intervals)) as tick:
        comparison = what_if.compare(settings.conditions, load, settings.variants, intervals, tick)
    if given.csv is not None and comparison.rows:
        write_text(given.csv, comparison_csv(comparison, price), _inputs(given))
    if given.plot is not None and comparison.rows:
        stories, of_story = _stories(settings, load, intervals)
        about = f"{_about_load(settings, load)}\n{settings.about}"
        plots.draw(given.plot, _inputs(given), comparison.rows, stories, about, of_story, settings.spelled_token_time_s)
    if given.as_json:
        data = {"settings": _settings_data(settings), "responses": len(load), "note": load.note}
        click.echo(json.dumps(data | comparison_data(comparison, price)))
    else:
        _tell_load(settings, load, comparison)
    if comparison.interrupted:
        sys.exit(INTERRUPTED)


def _inputs(given: Given) -> list[Path]:
    """The files that are read, which an output may not take the place of."""
    return [Path(each) for each in (given.source, given.load) if each is not None]


def _stories(settings: Settings, load: Lengths, intervals: list[int | None]) -> tuple[list[plots.Story], str]:
    """The longest response of the load in each variant's world, and what it is; of equals the shortest prompt.

    Shown at the longest interval that still aborts it a few times.
    """
    response_length = settings.conditions.budget.response_length
    usual = load.responses.clip(max=2 * response_length).sum(axis=1)
    longest = np.lexsort((load.prompts, -usual))[:1]
    given = sorted(interval for interval in intervals if interval is not None)
    fitting = [interval for interval in given if interval <= response_length // 3]
    interval = fitting[-1] if fitting else given[0] if given else None
    stories = [
        plots.Story(variant.name, spans_of(*what_if.simulated(settings.conditions, load, variant, interval, longest)))
        for variant in settings.variants
    ]
    if interval is None:
        return stories, "The longest response"
    token_time_s = settings.spelled_token_time_s
    every = f"{interval:,} tokens" if token_time_s is None else f"{interval * token_time_s:.6g} s"
    return stories, f"The longest response, with a weight update every {every}"


def _about_load(settings: Settings, load: Lengths) -> str:
    endless = int((load.responses >= NEVER).any(axis=1).sum())
    replicas = settings.conditions.replicas
    means = f"prompts of {load.prompts.mean():,.0f} on average"
    ending = load.responses[load.responses < NEVER]
    if len(ending):
        means += f", responses of {ending.mean():,.0f}"
    if endless:
        means += f" ({endless:,} never {'stop by themselves' if endless > 1 else 'stops by itself'})"
    named = f" ({settings.named.about})" if settings.named else ""
    return f"{len(load):,} responses{named} on {replicas} replica{'s' * (replicas > 1)}, {means}"


def _tell_load(settings: Settings, load: Lengths, comparison: Comparison) -> None:
    if settings.taken is not None:
        click.echo(settings.taken)
    click.echo(f"{settings.about}\n{_about_load(settings, load)}")
    if load.note:
        click.echo(load.note)
    click.echo()
    if not comparison.rows:
        click.echo("interrupted before the first row was done")
        return
    click.echo(report.comparison_table(comparison, settings.price, settings.spelled_token_time_s))
    if comparison.interrupted:
        click.echo("\n  interrupted: what follows is about the intervals that all policies have")
    # With several turns the prompts of the later ones are longer, and each has a cap of its own.
    prompts = [] if load.turns > 1 else load.prompts.tolist()
    groups = report.groups_of(comparison, settings.spelled_token_time_s)
    _tell_meaning(settings, groups, prompts, report.wait_line(comparison))
    click.echo(f"({report.how_line(comparison)})")


# Both


def _settings_data(settings: Settings) -> dict[str, Any]:
    conditions = settings.conditions
    data: dict[str, Any] = msgspec.to_builtins(conditions)
    data["budget"] = {
        "prompt_length": conditions.budget.prompt_length,
        "response_length": conditions.budget.response_length,
        "max_model_len": conditions.budget.context_tokens,
    }
    data["server"] = msgspec.to_builtins(msgspec.structs.asdict(conditions.of_servers))
    data["latency"] = settings.given.latency
    data["suts"] = settings.suts
    return data


def _tell_meaning(settings: Settings, groups: list[report.Group], prompts: list[int], late: str | None = None) -> None:
    """What the table means. `late`: what is to be said of updates that came late."""
    wastes = [waste for group in groups for _, waste in group.wastes]
    click.echo()
    meanings = report.meaning_lines(wastes)
    for line in meanings:
        click.echo(f"  {line}")
    if meanings:
        click.echo()
    worst = max(wastes, key=lambda one: one.fates["overrun"].tokens, default=Waste())
    prompt_length = settings.conditions.budget.prompt_length
    for sentence in (
        report.cap_line(groups, settings.capped, prompt_length, prompts) if prompts else None,
        report.depth_line(worst, settings.price),
        report.prefill_line(groups, settings.price),
        *report.saving_lines(groups, settings.price),
        late,
    ):
        if sentence is not None:
            click.echo(sentence)
    if settings.latency is not None and settings.price is not None:
        summed = ", summed over the replicas" if settings.conditions.replicas > 1 else ""
        click.echo(f"Engine time{summed}: {settings.latency.about}; {settings.price.batch} responses at once.")
