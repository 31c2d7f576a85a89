"""`rollcage show`: one case's world, explained."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from sim import corpus
from sim.case import Case
from sim.cli.exits import INTERRUPTED, guarded, unusable
from sim.cli.options import plugins
from sim.cli.suts import progress_bar, subject_of, suts_with_verdict
from sim.report import world
from sim.report.page import page
from sim.report.timeline import timeline as laid_out
from sim.rolling import RollingTrace
from sim.sut.interface import Sut
from sim.sut.registry import load_sut
from sim.world import World


@click.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="CASE")
@click.option("--sut", "name", metavar="NAME", help="On what (default: a built-in SUT).")
@click.option("--timeline", type=click.Path(path_type=Path), metavar="FILE", help="Write a trace for ui.perfetto.dev.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page that needs nothing else.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@plugins
def show(path: Path, name: str | None, timeline: Path | None, html: Path | None, as_json: bool) -> None:
    """Print a case's world: its attempts and grants with the arithmetic spelled out, and the verdicts.

    Exit code 0: shown, whatever is violated; 2: unusable.
    """
    told: str | dict[str, Any]
    interrupted = False
    with guarded():
        entry = corpus.read(path)
        case = entry.case
        sut = load_sut(name) if name is not None else suts_with_verdict(entry)[0]
        if case.repeat > 1:
            if timeline is not None or html is not None:
                raise click.UsageError(
                    f"--timeline and --html need a world that is kept whole; this case repeats its sessions "
                    f"{case.repeat} times"
                )
            trace, interrupted = _run_large(case, sut)
            told = world.large_as_json(sut.key, trace) if as_json else world.large_report(case, sut.key, trace)
        else:
            subject = subject_of(case, sut)
            if timeline is not None:
                _write(timeline, json.dumps(laid_out(case, subject.trace)))
            if html is not None:
                _write(html, page(subject, path.stem, entry.origin))
            told = world.as_json(subject) if as_json else world.world_report(subject)
    if isinstance(told, dict):
        click.echo(json.dumps(told))
    else:
        if entry.origin:
            click.echo(f"{path.name}: {entry.origin}\n")
        click.echo(told)
    sys.exit(INTERRUPTED if interrupted else 0)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        unusable(f"{path}: cannot be written: {error.strerror}")


def _run_large(case: Case, sut: Sut) -> tuple[RollingTrace, bool]:
    """Runs a world that is judged while it runs; also whether it was interrupted. Then the trace has what was judged
    by then."""
    trace = RollingTrace(case)
    with progress_bar(sut.key, case.num_sessions) as tick:
        trace.read = lambda _: tick(trace.findings.sessions)
        try:
            World(case, sut, trace=trace).run()
        except KeyboardInterrupt:
            return trace, True
    return trace, False
