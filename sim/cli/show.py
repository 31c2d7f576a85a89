"""`rollcage show`: one case's world, explained."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from sim import corpus
from sim.cli.exits import INTERRUPTED, guarded, unusable
from sim.cli.options import plugins, policy_option
from sim.cli.progress import progress_bar
from sim.cli.suts import foreign_names, sut_to_show
from sim.files import FileError, write_text
from sim.report.page import page
from sim.report.timeline import timeline as laid_out
from sim.report.world import as_json, world_report
from sim.sut.registry import CLEAN, load_sut
from sim.verdicts import judged


@click.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="CASE")
@click.option(
    "--sut",
    "name",
    metavar="NAME",
    help=f"On what (default: whom the case expects to violate something, else the known-good client, {CLEAN}).",
)
@click.option("--timeline", type=click.Path(path_type=Path), metavar="FILE", help="Write a trace for ui.perfetto.dev.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page that needs nothing else.")
@click.option("--json", "in_json", is_flag=True, help="One JSON object on standard output.")
@policy_option
@plugins
def show(
    path: Path, name: str | None, policies: Mapping[str, str], timeline: Path | None, html: Path | None, in_json: bool
) -> None:
    """Print a case's world: its attempts and grants with the arithmetic spelled out, and the verdicts.

    Exit code 0: shown, whatever is violated; 2: unusable.
    """
    with guarded():
        entry = corpus.read(path)
        case = entry.case
        sut = load_sut(name, policies) if name is not None else sut_to_show(entry, policies)
        for foreign in foreign_names(entry) if name is None else ():
            click.echo(
                f"{path.name} is about {foreign}, which is not imported unless you ask for it: "
                f"rollcage show {shlex.quote(str(path))} --sut {shlex.quote(foreign)}",
                err=True,
            )
        if case.repeat > 1:
            if timeline is not None or html is not None:
                raise click.UsageError(
                    f"--timeline and --html need a world that is kept whole; this case repeats its sessions "
                    f"{case.repeat} times"
                )
            with progress_bar(sut.key, case.num_sessions) as tick:
                run = judged(case, sut, twice=False, progress=lambda findings: tick(findings.sessions))
        else:
            run = judged(case, sut)
        if timeline is not None:
            _write(timeline, json.dumps(laid_out(case, run.trace)), path)
        if html is not None:
            _write(html, page(run, path.stem, entry.origin), path)
        told = json.dumps(as_json(run)) if in_json else world_report(run)
    if entry.origin and not in_json:
        click.echo(f"{path.name}: {entry.origin}\n")
    click.echo(told)
    sys.exit(INTERRUPTED if run.interrupted else 0)


def _write(path: Path, text: str, case: Path) -> None:
    try:
        write_text(path, text, inputs=[case])
    except FileError as error:
        unusable(str(error))
