"""The command line. Heavy imports wait until a command needs them, so that `rollcage --help` answers at once."""

import importlib
import json
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from sim.cli.durations import Seconds
from sim.invariants.kinds import KINDS

if TYPE_CHECKING:
    from sim.corpus import Entry, Replay
    from sim.search.campaign import Campaign
    from sim.sut.interface import Sut

UNUSABLE = 2
"""Exit code for arguments or files that cannot be used."""
OUR_FAULT = 3
"""Exit code when rollcage itself fails."""
INTERRUPTED = 130

_DEMONSTRATION = ("reference:deferred", "reference:pinned")
_DEMONSTRATED = "B1"
_DEMONSTRATION_WORLDS = 1500
_DEFAULT_SECONDS = 10.0
_MOST_SECONDS = 1e6
_RESCUE_FOLDER = Path("found")


_ELSEWHERE = {"preflight": "sim.preflight.command", "waste": "sim.waste.command"}
"""Commands that live in rooms of their own: command → module with a click command of that name."""


class _Group(click.Group):
    """Imports a command from its own room when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _ELSEWHERE:
            command: click.Command = getattr(importlib.import_module(_ELSEWHERE[cmd_name]), cmd_name)
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rollcage")
def main() -> None:
    """Finds budget overruns, routing violations and lost tokens in the code between an RL trainer and its inference
    servers, in virtual time, on a laptop."""


@contextmanager
def _guarded() -> Iterator[None]:
    """For all that may run a SUT: what it prints goes to standard error, and what a person can act on is one line. What
    else is raised is a fault of ours."""
    from sim.schema import CaseError
    from sim.sut.interface import SutError

    try:
        with redirect_stdout(sys.stderr):
            yield
    except (CaseError, SutError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(UNUSABLE)
    except (click.ClickException, click.exceptions.Exit, click.Abort, OSError):
        raise
    except Exception as error:
        traceback.print_exception(error)
        click.echo("\nThis is a fault of rollcage, not of what is tested", err=True)
        sys.exit(OUR_FAULT)


class _Stopping:
    """Ctrl-C asks the search to stop after the world that is running; a second one stops it at once."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> "_Stopping":
        self._before = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, _number: int, _frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        click.echo("\nstopping; once more to stop at once", err=True)


def _load_suts(names: tuple[str, ...]) -> "list[Sut]":
    from sim.sut.registry import load_sut

    return [load_sut(name) for name in names]


# hunt


class _Kind(click.Choice[str]):
    """Says where the invariants are looked after that no world can break."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "config":
            where = "rollcage preflight and properties/test_config.py hold them"
            self.fail(f"'config': C1, C2 and C3 are about start-up, before there is a world to hunt in; {where}", param)
        return super().convert(value, param, ctx)


@main.command()
@click.option(
    "--sut", "names", multiple=True, metavar="NAME", help="What to test; repeatable. Without it: a demonstration."
)
@click.option(
    "--against", metavar="NAME", help="Run this SUT on the same worlds and report where the two first differ."
)
@click.option("--kind", "kinds", multiple=True, type=_Kind(KINDS), help="Which invariants; repeatable.")
@click.option(
    "--seconds",
    type=Seconds(0, _MOST_SECONDS, min_open=True),
    help="How long to search a SUT (default 10).",
)
@click.option("--worlds", type=click.IntRange(1), help="How many worlds instead: the same finds every time.")
@click.option("--seed", type=click.IntRange(0, 2**32), help="Seed of the search (default: a fresh one, printed).")
@click.option("--dialect", type=click.Choice(("vllm", "sglang", "trtllm")), default="vllm", help="Whose grants.")
@click.option(
    "--policy", type=click.Choice(("turn", "trajectory")), default="turn", help="What response_length limits."
)
@click.option("--turns", "most_turns", type=click.IntRange(1, 3), default=3, help="Most turns of a session.")
@click.option("--save", type=click.Path(file_okay=False, path_type=Path), help="Keep what is found in this folder.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def hunt(
    names: tuple[str, ...],
    against: str | None,
    kinds: tuple[str, ...],
    seconds: float | None,
    worlds: int | None,
    seed: int | None,
    dialect: str,
    policy: str,
    most_turns: int,
    save: Path | None,
    as_json: bool,
) -> None:
    """Search for worlds that break an invariant, and shrink them.

    Exit code 0: nothing found (in the demonstration: the bad client was caught, the good one is clean); 1: found, or
    with --against a difference (in the demonstration: not as it should be); 2: unusable arguments.
    SUT names: reference:pinned, reference:deferred and the other planted bugs, verl, verl:plain, MODULE:FACTORY.
    """
    if seconds is not None and worlds is not None:
        raise click.UsageError("--seconds and --worlds exclude each other")
    demonstration = not names
    if demonstration:
        if against is not None:
            raise click.UsageError("--against needs --sut")
        names, kinds, seed = _DEMONSTRATION, kinds or ("budget",), 0 if seed is None else seed
        most_turns = 1
        worlds = _DEMONSTRATION_WORLDS if worlds is None and seconds is None else worlds
    elif seconds is None and worlds is None:
        seconds = _DEFAULT_SECONDS
    if save is not None:
        _make_folder(save)
    if seed is None:
        import secrets

        seed = secrets.randbelow(2**32)
    options = {"dialect": dialect, "policy": policy, "most_turns": most_turns}
    campaigns: list[Campaign] = []
    with _guarded(), _Stopping() as stopping:
        suts = _load_suts(names)
        other = _load_suts((against,))[0] if against is not None else None
        for sut in suts:
            only = _DEMONSTRATED if demonstration and sut.name == _DEMONSTRATION[0] else None
            found = _hunt_one(sut, other, kinds or KINDS, only, seed, worlds, seconds, options, lambda: stopping.asked)
            campaigns.append(found)
            if found.interrupted or found.breakdown is not None:
                break
    interrupted = any(campaign.interrupted for campaign in campaigns)
    broken = next((campaign for campaign in campaigns if campaign.breakdown is not None), None)
    if (interrupted or broken) and save is None and any(campaign.finds for campaign in campaigns):
        save = _RESCUE_FOLDER
    with _guarded():
        paths = _save_finds(campaigns, save) if save is not None else {}
        text = (
            json.dumps(_hunt_json(campaigns, seed, paths))
            if as_json
            else "\n".join(_told_hunt(campaigns, other, seed, paths, demonstration))
        )
    if broken is None or any(campaign.finds for campaign in campaigns):
        click.echo(text)
    if broken is not None:
        sys.exit(_tell_breakdown(broken, save))
    if interrupted:
        sys.exit(INTERRUPTED)
    caught = {campaign.sut.name: bool(campaign.finds) for campaign in campaigns}
    if demonstration:
        sys.exit(0 if caught == {_DEMONSTRATION[0]: True, _DEMONSTRATION[1]: False} else 1)
    sys.exit(1 if any(caught.values()) else 0)


def _make_folder(folder: Path) -> None:
    """Before a search, not after it: what it finds must have a place."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise click.BadParameter(f"{folder}: cannot be written: {error.strerror}", param_hint="--save") from None


def _tell_breakdown(campaign: "Campaign", save: Path | None) -> int:
    """What ended a campaign before its time, and the exit code for it. A fault of ours keeps its case."""
    from sim import corpus
    from sim.sut.interface import SutError

    breakdown = campaign.breakdown
    assert breakdown is not None
    if isinstance(breakdown.error, SutError):
        click.echo(f"error: {breakdown.error}", err=True)
        return UNUSABLE
    traceback.print_exception(breakdown.error)
    path = (save or _RESCUE_FOLDER) / corpus.file_name("fault", campaign.sut.key, corpus.digest_of(breakdown.case))
    corpus.write(path, corpus.Entry(origin=f"rollcage failed: {breakdown.error!r}", case=breakdown.case))
    click.echo(f"\nThis is a fault of rollcage, not of {campaign.sut.key}; its case is kept as {path}", err=True)
    return OUR_FAULT


def _hunt_one(
    sut: "Sut",
    other: "Sut | None",
    kinds: tuple[str, ...],
    only: str | None,
    seed: int,
    worlds: int | None,
    seconds: float | None,
    options: dict[str, Any],
    stop: Callable[[], bool],
) -> "Campaign":
    """Searches the worlds of each strategy that the kinds need, the bounds shared out among them."""
    from sim.invariants.table import numbers_of
    from sim.search.campaign import Bounds, Campaign, run_campaign
    from sim.search.classics import classic_cases
    from sim.search.compare import DIFFERS
    from sim.search.compare import against as compare_against
    from sim.search.strategies import STRATEGIES

    groups: dict[Any, list[str]] = {}
    for kind in kinds:
        groups.setdefault(STRATEGIES[kind], []).append(kind)
    whole = Campaign(sut, seed)
    compare = None if other is None else compare_against(other)
    with _progress(sut.key, worlds, seconds) as tick:
        for index, (strategy, group) in enumerate(groups.items()):
            if worlds is None:
                bounds = Bounds(seconds=(seconds or 0) / len(groups))
            else:
                bounds = Bounds(worlds=(worlds + len(groups) - 1 - index) // len(groups))
            before = whole.worlds, whole.seconds

            def progress(part: Campaign, before: tuple[int, float] = before) -> None:
                tick(before[0] + part.worlds, before[1] + part.seconds)

            numbers = numbers_of(group) if only is None else (only,)
            if compare is not None:
                numbers = (DIFFERS,)
            classics = classic_cases(group, **options)
            part = run_campaign(
                sut, strategy(**options), numbers, seed, bounds, progress, compare, stop=stop, classics=classics
            )
            whole.add(part)
            if part.interrupted or part.breakdown is not None or (compare is not None and part.finds):
                break
    return whole


@contextmanager
def _progress(label: str, worlds: int | None, seconds: float | None) -> Iterator[Any]:
    """A bar on a terminal, nothing in a pipe."""
    length = worlds if worlds is not None else int(1000 * (seconds or 0))
    hidden = not sys.stderr.isatty()
    with click.progressbar(length=length, label=f"{label:<24}", file=sys.stderr, hidden=hidden) as bar:

        def tick(done_worlds: int, done_seconds: float) -> None:
            done = min(length, done_worlds if worlds is not None else int(1000 * done_seconds))
            if done > bar.pos:
                bar.update(done - bar.pos)

        yield tick


def _save_finds(campaigns: "list[Campaign]", folder: Path) -> "dict[int, str]":
    from sim import corpus
    from sim.invariants.table import INVARIANTS
    from sim.verdicts import judged

    paths: dict[int, str] = {}
    for campaign in campaigns:
        for find in campaign.finds:
            path = folder / corpus.file_name(find.invariant, campaign.sut.key, corpus.digest_of(find.case))
            observed = sorted({v.invariant for v in judged(find.case, campaign.sut).violations})
            entry = corpus.Entry(
                origin=f"found by a search, seed {campaign.seed}",
                invariant=find.invariant if find.invariant in INVARIANTS else None,
                expected={campaign.sut.key: observed},
                case=find.case,
            )
            corpus.write(path, entry)
            paths[id(find)] = str(path)
    return paths


def _hunt_json(campaigns: "list[Campaign]", seed: int, paths: dict[int, str]) -> dict[str, Any]:
    from sim.case import to_builtins

    seconds = sum(campaign.seconds for campaign in campaigns)
    worlds = sum(campaign.worlds for campaign in campaigns)
    run = worlds + sum(campaign.shrink_worlds for campaign in campaigns)
    return {
        "worlds": worlds,
        "worlds_per_s": round(run / seconds, 1) if seconds else 0.0,
        "seed": seed,
        "suts": {
            campaign.sut.name: {
                "key": campaign.sut.key,
                "worlds": campaign.worlds,
                "warning": campaign.idle or None,
                "violations": [
                    {
                        "invariant": find.invariant,
                        "message": find.message,
                        "case": paths.get(id(find)) or to_builtins(find.case),
                    }
                    for find in campaign.finds
                ],
            }
            for campaign in campaigns
        },
    }


def _told_hunt(
    campaigns: "list[Campaign]", other: "Sut | None", seed: int, paths: dict[int, str], demonstration: bool
) -> Iterator[str]:
    from sim.report.explain import find_report

    for campaign in campaigns:
        told: set[str] = set()
        numbers = ", ".join(find.invariant for find in campaign.finds) or "clean"
        if other is not None:
            numbers = f"{'differs from' if campaign.finds else 'does the same as'} {other.key}"
        worlds = f"{campaign.worlds} world{'s' * (campaign.worlds != 1)}"
        yield f"{campaign.sut.key}: {numbers}  ({worlds}, {campaign.worlds_per_s:.0f}/s, seed {seed})"
        if campaign.idle:
            yield f"warning: {campaign.idle}"
        for find in campaign.finds:
            yield "\n" + _indented(find_report(campaign.sut, find, told))
            yield f"  kept as {paths[id(find)]}\n" if id(find) in paths else ""
    if demonstration:
        yield "The first client leaves the limit to the server; the second pins what is left of the budget."
        yield "Next: rollcage hunt --sut verl, or --sut MODULE:FACTORY for your own client."


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


# replay


@main.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="CASE...")
@click.option(
    "--sut", "names", multiple=True, metavar="NAME", help="On what; repeatable. Default: built-ins with a verdict."
)
@click.option("--corpus", type=click.Path(path_type=Path), metavar="DIR", help="Replay every case in this folder.")
@click.option(
    "--on", "engine", type=click.Choice(("vllm",)), help="On a real engine; the simulation must agree with it."
)
@click.option("--accept", is_flag=True, help="Write what is observed into the case files, as what they expect.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def replay(
    paths: tuple[Path, ...],
    names: tuple[str, ...],
    corpus: Path | None,
    engine: str | None,
    accept: bool,
    as_json: bool,
) -> None:
    """Replay kept cases and compare the verdicts with those that they expect.

    Exit code 0: each verdict is the one expected; 1: one is not (`fixed`: violations were expected and none is left),
    or a SUT without a verdict in a case violates more there than the known-good client is expected to; 2: unusable.
    With --accept 0 in place of 1. On a real engine: 1 when reality and simulation differ.
    """
    from sim import corpus as kept

    if not paths and corpus is None:
        raise click.UsageError("name case files or folders, or give --corpus DIR")
    if accept and engine is not None:
        raise click.UsageError("--accept and --on exclude each other: verdicts are those of the simulation")
    with _guarded():
        files = kept.files([*paths, *([corpus] if corpus is not None else [])])
        entries = [(path, kept.read(path)) for path in files]
        suts = _load_suts(names)
        jobs = [(path, entry, sut) for path, entry in entries for sut in suts or _builtins_with_verdict(entry)]
        if engine is not None:
            _replay_on_vllm(jobs, as_json)
        replays = [kept.replay(path, entry, sut) for path, entry, sut in jobs]
        changed = _accept(replays) if accept else []
    if as_json:
        rows = [
            {key: getattr(r, key) for key in ("path", "sut", "expected", "observed", "ok", "news")} for r in replays
        ]
        click.echo(json.dumps({"cases": rows} | ({"accepted": [str(path) for path in changed]} if accept else {})))
    else:
        _tell_replays(replays)
        if accept:
            click.echo(f"accepted: {', '.join(map(str, changed)) or 'nothing to change'}")
    sys.exit(0 if accept or all(each.passes for each in replays) else 1)


def _accept(replays: "list[Replay]") -> list[Path]:
    from sim import corpus

    try:
        return corpus.accept(replays)
    except OSError as error:
        click.echo(f"error: {error.filename}: cannot be written: {error.strerror}", err=True)
        sys.exit(UNUSABLE)


def _replay_on_vllm(jobs: "list[tuple[Path, Entry, Sut]]", as_json: bool) -> NoReturn:
    """Replays on real vLLM and ends the command."""
    try:
        session = importlib.import_module("gpu_checks.session")
        replays_module = importlib.import_module("gpu_checks.replay")
    except ImportError as error:
        click.echo(f"error: --on vllm needs the package gpu_checks of this project: {error}", err=True)
        sys.exit(UNUSABLE)

    done = 0

    def tell(each: Any) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            click.echo(f"{done} of {len(jobs)}  {each.case} on {each.sut}: {each.verdict}", err=True)

    try:
        with session.engine_session() as engines:
            replays = session.replay_all(
                [session.Job(path.stem, entry.case, sut, entry.expected.get(sut.key)) for path, entry, sut in jobs],
                engines,
                tell,
            )
    except session.VllmUnusable as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(UNUSABLE)
    click.echo(json.dumps(replays_module.summary(replays)) if as_json else replays_module.table(replays))
    sys.exit(1 if any(each.verdict == "missed" for each in replays) else 0)


def _builtins_with_verdict(entry: "Entry") -> "list[Sut]":
    from sim.sut.registry import builtin_names

    known = [name for name in builtin_names() if name in entry.expected]
    if not known:
        # A find of one's own client names it; a package's key has a version and is left to --sut.
        known = [key for key in entry.expected if "==" not in key]
    # What is violated is what a reader wants to see first.
    known.sort(key=lambda name: not entry.expected[name])
    return _load_suts(tuple(known) or _DEMONSTRATION)


def _tell_replays(replays: "list[Replay]") -> None:
    from sim.report.explain import table

    rows = [("case", "sut", "expected", "observed", "")]
    for each in replays:
        expected = "no verdict" if each.expected is None else ", ".join(each.expected) or "clean"
        rows.append((Path(each.path).name, each.sut, expected, ", ".join(each.observed) or "clean", each.mark))
    click.echo(table(rows))
    for each in replays:
        if not each.passes:
            click.echo(f"\n{each.path} on {each.sut}:")
            click.echo(_indented("\n".join(each.messages) or "no invariant is violated"))
    good = sum(each.ok is True for each in replays)
    judged = sum(each.ok is not None for each in replays)
    told = [f"{good} of {judged} as expected", f"{len(replays) - judged} without a verdict"]
    fixed, new = (sum(each.mark == mark for each in replays) for mark in ("fixed", "NEW"))
    told += [f"{fixed} fixed"] * bool(fixed) + [
        f"{new} of them with violations that the known-good client lacks"
    ] * bool(new)
    click.echo("\n" + ", ".join(told))


# show


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        click.echo(f"error: {path}: cannot be written: {error.strerror}", err=True)
        sys.exit(UNUSABLE)


@main.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="CASE")
@click.option("--sut", "name", metavar="NAME", help="On what (default: a built-in SUT).")
@click.option("--timeline", type=click.Path(path_type=Path), metavar="FILE", help="Write a trace for ui.perfetto.dev.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page that needs nothing else.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def show(path: Path, name: str | None, timeline: Path | None, html: Path | None, as_json: bool) -> None:
    """Print a case's world: its attempts and grants with the arithmetic spelled out, and the verdicts.

    Exit code 0: shown, whatever is violated; 2: unusable.
    """
    from sim import corpus
    from sim.report import explain
    from sim.verdicts import judged

    told: str | dict[str, Any]
    with _guarded():
        entry = corpus.read(path)
        sut = _load_suts((name,))[0] if name is not None else _builtins_with_verdict(entry)[0]
        if entry.case.repeat > 1 and (timeline is not None or html is not None):
            raise click.UsageError(
                f"--timeline and --html need a world that is kept whole; this case repeats its sessions "
                f"{entry.case.repeat} times"
            )
        if entry.case.repeat > 1:
            with _progress(sut.key, entry.case.num_sessions, None) as tick:
                run = judged(entry.case, sut, twice=False, progress=lambda findings: tick(findings.sessions, 0.0))
            if as_json:
                told = explain.large_as_json(sut, run.trace, run.findings)
            else:
                told = explain.large_report(entry.case, sut, run.findings)
        else:
            run = judged(entry.case, sut)
            if timeline is not None:
                from sim.report.timeline import timeline as laid_out

                _write_text(timeline, json.dumps(laid_out(entry.case, run.trace)))
            if html is not None:
                from sim.report.page import Subject, page

                subject = Subject(path.stem, entry.origin, entry.case, sut, run.trace, run.violations, run.deviations)
                _write_text(html, page(subject))
            if as_json:
                told = explain.as_json(sut, run.trace, run.violations)
            else:
                told = explain.world_report(entry.case, sut, run.trace, run.violations)
    if isinstance(told, dict):
        click.echo(json.dumps(told))
    else:
        if entry.origin:
            click.echo(f"{path.name}: {entry.origin}\n")
        click.echo(told)
    sys.exit(INTERRUPTED if run.interrupted else 0)


if __name__ == "__main__":
    main()
