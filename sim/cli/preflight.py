"""`rollcage preflight`: exit 0 would start, 1 would be refused, 2 cannot be read."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click
import msgspec

from sim.cli.exits import FOUND, UNUSABLE
from sim.preflight import report, scan
from sim.preflight.check import Verdict, find_model, judge, read_model, read_targets
from sim.preflight.launch import Launch, PreflightError
from sim.preflight.launch import Reading as Tree
from sim.preflight.read_flags import read_words
from sim.preflight.spelling import CONFIG_ROOT
from sim.startup.batch import Device
from sim.startup.model_shape import ModelShape as Model


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--from", "source", metavar="FILE", type=click.Path(path_type=Path), help="Read settings from FILE.")
@click.option(
    "--target", "targets", multiple=True, metavar="NAME==VERSION", help="vllm==0.32, verl==0.9.1; repeatable."
)
@click.option("--model", metavar="PATH", help="A model's directory or config.json, in place of the one that is named.")
@click.option("--max-position-embeddings", "positions", type=click.IntRange(min=1), help="The model's context length.")
@click.option("--device", type=click.Choice(get_args(Device)), default="gpu", help="For vLLM's own batch defaults.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def preflight(
    source: Path | None,
    targets: tuple[str, ...],
    model: str | None,
    positions: int | None,
    device: Device,
    as_json: bool,
    words: tuple[str, ...],
) -> None:
    """Would this vLLM or verl configuration start, and what would the engine silently do with it?

    WORDS are vLLM flags (--max-num-batched-tokens 8192 --no-enable-chunked-prefill), verl settings
    (actor_rollout_ref.rollout.enable_chunked_prefill=False), or one file (a launch script, YAML, a CI workflow), or one
    directory to scan for such files.
    """
    try:
        target = read_targets(targets)
        tree = _read(source, words)
        facts = _model(model, positions)
        verdicts = [judge(launch, target, facts, device=device) for launch in tree.launches]
    except PreflightError as error:
        if as_json:
            click.echo(json.dumps({"verdict": "unreadable", "errors": [str(error)]}))
        else:
            click.echo(f"preflight: {error}", err=True)
        sys.exit(UNUSABLE)
    if as_json:
        click.echo(json.dumps(report.as_json(verdicts, unread=tree.unread, errors=tree.errors), indent=2))
    else:
        click.echo(report.as_text(verdicts, unread=tree.unread, errors=tree.errors))
    sys.exit(_exit_code(verdicts, tree))


def _exit_code(verdicts: Sequence[Verdict], tree: Tree) -> int:
    if any(verdict.refused for verdict in verdicts):
        return FOUND
    return UNUSABLE if tree.errors else 0


def _read(source: Path | None, words: tuple[str, ...]) -> Tree:
    if "" in words:
        raise PreflightError('a word is empty: give flags, verl settings, a file, or a directory ("." is this one)')
    if source is None and len(words) == 1 and Path(words[0]).is_dir():
        return scan.scan(Path(words[0]), os.environ)
    if source is None and len(words) == 1 and Path(words[0]).is_file():
        source, words = Path(words[0]), ()
    if source is None:
        if not words:
            raise PreflightError("nothing to judge: give flags, verl settings, --from FILE, or a directory")
        if len(words) == 1 and not words[0].startswith("-") and "=" not in words[0]:
            raise PreflightError(f"{words[0]}: no such file or directory")
        return Tree(launches=_in_this_environment(read_words(words)))
    if not source.is_file():
        raise PreflightError(f"--from {source}: no such file")
    tree = scan.read_file(source, os.environ)
    tree.launches = _in_this_environment(tree.launches)
    if words:
        tree.launches = [_overlaid(launch, read_words(words), source) for launch in tree.launches]
    return tree


def _in_this_environment(launches: Sequence[Launch]) -> list[Launch]:
    """vLLM reads one switch of the rules from the environment; what is judged for this shell has this shell's."""
    longer = os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").lower() in ("1", "true")
    return [msgspec.structs.replace(x, allow_longer_context=longer or x.allow_longer_context) for x in launches]


def _overlaid(launch: Launch, on_top: Sequence[Launch], source: Path) -> Launch:
    """A file's launch with the settings typed on the command line laid over it, as Hydra and vLLM do."""
    for other in on_top:
        if other.dialect != launch.dialect:
            raise PreflightError(f"{source} is in {launch.dialect}'s spelling, the command line in {other.dialect}'s")
        if other.engine in (launch.engine, f"{CONFIG_ROOT}.{launch.engine}"):
            unknown = {name: s for name, s in launch.unknown.items() if name not in other.settings}
            launch = msgspec.structs.replace(launch, settings=launch.settings | other.settings, unknown=unknown)
    return launch


def _model(path: str | None, positions: int | None) -> Model | None:
    facts = None
    if path is not None:
        file = Path(path)
        facts = find_model(path) if file.is_dir() else read_model(file)
    if positions is not None:
        lengths = {"max_position_embeddings": positions, "derived_max_model_len": positions}
        facts = msgspec.structs.replace(facts or Model(), **lengths)
    return facts
