"""`rollcage replay`: kept cases once more, against the verdicts that they expect."""

import importlib
import json
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from sim import corpus
from sim.cli.exits import FOUND, guarded, unusable
from sim.cli.options import plugins, policy_option
from sim.cli.suts import DEMONSTRATION, foreign_names, load_suts, suts_with_verdict
from sim.expected import Shown, as_plain, numbers_in
from sim.files import FileError
from sim.report.table import table
from sim.sut.framework import Sut

_MOST_COMMANDS = 10
_Job = tuple[Path, corpus.Entry, Sut]


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="CASE...")
@click.option(
    "--sut",
    "names",
    multiple=True,
    metavar="NAME",
    help=f"On what; repeatable. Default: built-ins with a verdict there, else {' and '.join(DEMONSTRATION)}.",
)
@click.option(
    "--corpus", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Replay every case in this folder."
)
@click.option(
    "--on", "engine", type=click.Choice(("vllm",)), help="On a real engine; the simulation must agree with it."
)
@click.option("--accept", is_flag=True, help="Write what is observed into the case files, as what they expect.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@policy_option
@plugins
def replay(
    paths: tuple[Path, ...],
    names: tuple[str, ...],
    folder: Path | None,
    engine: str | None,
    accept: bool,
    as_json: bool,
    policies: Mapping[str, str],
) -> None:
    """Replay kept cases and compare the verdicts with those that they expect.

    Exit code 0: each verdict is the one expected; 1: one is not (`fixed`: violations were expected and none is left),
    or a SUT without a verdict in a case violates more there than the known-good client is expected to; 2: unusable.
    With --accept 0 in place of 1. On a real engine: 1 when reality and simulation differ.
    """
    if not paths and folder is None:
        raise click.UsageError("name case files or folders, or give --corpus DIR")
    if accept and engine is not None:
        raise click.UsageError("--accept and --on exclude each other: verdicts are those of the simulation")
    with guarded():
        files = corpus.files([*paths, *([folder] if folder is not None else [])])
        entries = [(path, corpus.read(path)) for path in files]
        suts = load_suts(names, policies)
        if not suts:
            _refuse_foreign(entries)
        jobs = [(path, entry, sut) for path, entry in entries for sut in suts or suts_with_verdict(entry, policies)]
        on_vllm = None if engine is None else _replay_on_vllm(jobs, as_json)
        replays = [] if on_vllm is not None else [corpus.replay(path, entry, sut) for path, entry, sut in jobs]
        changed = _accept(replays) if accept else []
    if on_vllm is not None:
        click.echo(on_vllm.text)
        sys.exit(FOUND if on_vllm.differs else 0)
    if as_json:
        rows = [
            {key: getattr(r, key) for key in ("path", "sut", "ok", "differences")}
            | {key: _plain(getattr(r, key)) for key in ("expected", "observed", "news")}
            for r in replays
        ]
        click.echo(json.dumps({"cases": rows} | ({"accepted": [str(path) for path in changed]} if accept else {})))
    else:
        _tell(replays)
        if accept:
            click.echo(f"accepted: {', '.join(map(str, changed)) or 'nothing to change'}")
    sys.exit(0 if accept or all(each.passes for each in replays) else FOUND)


def _refuse_foreign(entries: Sequence[tuple[Path, corpus.Entry]]) -> None:
    """A file may have a verdict of anything; it is imported where somebody asks for it."""
    commands = [
        f"rollcage replay {shlex.quote(str(path))} --sut {shlex.quote(name)}"
        for path, entry in entries
        for name in foreign_names(entry)
    ]
    if commands:
        listed = "\n  ".join(commands[:_MOST_COMMANDS] + ["…"] * (len(commands) > _MOST_COMMANDS))
        raise click.UsageError(f"what a file names is not imported unless you ask for it:\n  {listed}")


def _accept(replays: Sequence[corpus.Replay]) -> list[Path]:
    try:
        return corpus.accept(replays)
    except FileError as error:
        unusable(str(error))


class _OnVllm(NamedTuple):
    """What is to be said of replays on real vLLM, and whether reality and simulation differ in one of them."""

    text: str
    differs: bool


def _replay_on_vllm(jobs: Sequence[_Job], as_json: bool) -> _OnVllm:
    try:
        session = importlib.import_module("gpu_checks.session")
        replays_module = importlib.import_module("gpu_checks.replay")
    except ImportError as error:
        unusable(f"--on vllm needs the package gpu_checks of this project: {error}")

    done = 0

    def tell(each: Any) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            click.echo(f"{done} of {len(jobs)}  {each.case} on {each.sut}: {each.verdict}", err=True)

    try:
        with session.engine_session() as engines:
            replays = session.replay_all(
                [session.Job(path.stem, entry.case, sut, entry.numbers(sut.key)) for path, entry, sut in jobs],
                engines,
                tell,
            )
    except session.VllmUnusable as error:
        unusable(str(error))
    text = json.dumps(replays_module.summary(replays)) if as_json else replays_module.table(replays)
    return _OnVllm(text, any(each.verdict == "missed" for each in replays))


def _plain(verdicts: Sequence[Shown] | None) -> list[Any] | None:
    return None if verdicts is None else [as_plain(each) for each in verdicts]


def _numbers(verdicts: Sequence[Shown]) -> str:
    return ", ".join(numbers_in(verdicts)) or "clean"


def _tell(replays: Sequence[corpus.Replay]) -> None:
    rows = [("case", "sut", "expected", "observed", "")]
    for each in replays:
        expected = "no verdict" if each.expected is None else _numbers(each.expected)
        rows.append((Path(each.path).name, each.sut, expected, _numbers(each.observed), each.mark))
    click.echo(table(rows))
    for each in replays:
        if not each.passes:
            click.echo(f"\n{each.path} on {each.sut}:")
            lines = [*each.differences, *each.messages] if each.messages else ["no invariant is violated"]
            click.echo(textwrap.indent("\n".join(lines), "  "))
    good = sum(each.ok is True for each in replays)
    judged = sum(each.ok is not None for each in replays)
    fixed, new = (sum(each.mark == mark for each in replays) for mark in ("fixed", "NEW"))
    told = [f"{good} of {judged} as expected", f"{len(replays) - judged} without a verdict"]
    told += [f"{fixed} fixed"] * bool(fixed)
    told += [f"{new} of them with violations that the known-good client lacks"] * bool(new)
    click.echo("\n" + ", ".join(told))
