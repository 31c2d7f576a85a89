"""`rollcage hunt`: search for worlds that break an invariant."""

import json
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click

from sim.cli import hunt_outcome
from sim.cli.exits import FOUND, INTERRUPTED, guarded, unusable
from sim.cli.options import DIALECT, Numbers, Registered, Seconds, plugins, policy_option
from sim.cli.progress import progress_bar
from sim.cli.suts import DEMONSTRATION, load_suts
from sim.dialects import DIALECTS
from sim.invariants.kinds import KINDS
from sim.invariants.table import INVARIANTS, chosen, in_every_world
from sim.search.campaign import Bounds, Campaign
from sim.search.classics import classic_cases
from sim.search.compare import DIFFERS, against
from sim.search.nearest_first import WhichReach, every_find_counts, search_nearest_first
from sim.search.strategies import STRATEGIES
from sim.settings import FACE_DIALECTS, Face
from sim.sut.framework import Sut
from sim.sut.registry import load_sut

DEMONSTRATION_WORLDS = 1500
_DEMONSTRATED = "B1"
_DEFAULT_SECONDS = 10.0
_MOST_SECONDS = 1e6


class _Kind(Registered):
    """Says where the invariants are looked after that no world can break."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "config":
            where = "rollcage preflight and properties/test_config.py hold them"
            self.fail(f"'config': C1, C2 and C3 are about start-up, before there is a world to hunt in; {where}", param)
        if value in INVARIANTS:
            self.fail(
                f"{value!r} is an invariant, of kind {INVARIANTS[value].kind}; --only {value} looks for it", param
            )
        return super().convert(value, param, ctx)


@click.command()
@click.option(
    "--sut",
    "names",
    multiple=True,
    metavar="NAME",
    help=f"What to test; repeatable. Default: a demonstration on {' and '.join(DEMONSTRATION)}.",
)
@click.option(
    "--against",
    "other_name",
    metavar="NAME",
    help="Run this SUT on the same worlds and report where the two first differ.",
)
@click.option(
    "--kind", "kinds", multiple=True, type=_Kind(lambda: KINDS, grows=False), help="Which invariants; repeatable."
)
@click.option(
    "--seconds",
    type=Seconds(0, _MOST_SECONDS, min_open=True),
    help="How long to search a SUT (default 10).",
)
@click.option("--worlds", type=click.IntRange(1), help="How many worlds instead: the same finds every time.")
@click.option("--seed", type=click.IntRange(0, 2**32), help="Seed of the search (default: a fresh one, printed).")
@click.option("--dialect", type=DIALECT, help="Whose grants (default vllm).")
@click.option("--face", type=click.Choice(tuple(FACE_DIALECTS)), help="Replicas speak HTTP as these servers do.")
@policy_option
@click.option("--only", type=Numbers(), multiple=True, metavar="B1,R7", help="Invariants to look for; repeatable.")
@click.option("--skip", type=Numbers(), multiple=True, metavar="R1", help="Invariants to leave out; repeatable.")
@click.option("--turns", "most_turns", type=click.IntRange(1, 3), default=3, help="Most turns of a session.")
@click.option(
    "--reach",
    type=click.Choice(get_args(WhichReach)),
    help="Which finds count: those that the framework's own callers can meet (default for a package), or all.",
)
@click.option("--save", type=click.Path(file_okay=False, path_type=Path), help="Keep what is found in this folder.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@plugins
def hunt(
    names: tuple[str, ...],
    other_name: str | None,
    kinds: tuple[str, ...],
    seconds: float | None,
    worlds: int | None,
    seed: int | None,
    dialect: str | None,
    face: Face | None,
    policies: Mapping[str, str],
    only: tuple[tuple[str, ...], ...],
    skip: tuple[tuple[str, ...], ...],
    most_turns: int,
    reach: WhichReach | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Search for worlds that break an invariant, and shrink them.

    Exit code 0: nothing found that counts (in the demonstration: the bad client was caught, the good one is clean);
    1: found, or with --against a difference (in the demonstration: not as it should be); 2: unusable arguments, or not
    one world was run.
    SUT names: reference:pinned, reference:deferred and the other planted bugs, verl, verl:plain, MODULE:FACTORY.
    """
    if face is not None and dialect not in (None, FACE_DIALECTS[face]):
        raise click.UsageError(f"--face {face} goes with --dialect {FACE_DIALECTS[face]}, not {dialect}")
    dialect = dialect or ("vllm" if face is None else FACE_DIALECTS[face])
    if seconds is not None and worlds is not None:
        raise click.UsageError("--seconds and --worlds exclude each other")
    demonstration = not names
    if demonstration:
        if other_name is not None:
            raise click.UsageError("--against needs --sut")
        if not DIALECTS[dialect].limit_keys:
            raise click.UsageError(
                f"the demonstration shows a client that limits its requests, and {dialect}'s server ignores limits: "
                f"name a client with --sut"
            )
        names, kinds, most_turns = DEMONSTRATION, kinds or ("budget",), 1
        seed = 0 if seed is None else seed
    if seconds is None and worlds is None:
        worlds, seconds = (DEMONSTRATION_WORLDS, None) if demonstration else (None, _DEFAULT_SECONDS)
    if save is not None:
        _make_folder(save)
    if seed is None:
        seed = secrets.randbelow(2**32)
    wanted, unwanted = sum(only, ()), sum(skip, ())
    numbers = chosen(kinds or KINDS, wanted, unwanted)
    if not numbers:
        raise click.UsageError("--kind, --only and --skip leave no invariant to look for")
    options = {"dialect": dialect, "policy": policies.get("budget", "turn"), "most_turns": most_turns, "face": face}
    campaigns: list[Campaign] = []
    with guarded(), _Stopping() as stopping:
        suts = load_suts(names, policies)
        other = None if other_name is None else load_sut(other_name)
        besides = in_every_world(wanted, unwanted)
        search = _Hunt(
            numbers, besides, seed, Bounds(worlds, seconds), options, other, lambda: stopping.asked, save, reach
        )
        for sut in suts:
            sought = demonstration and sut.name == DEMONSTRATION[0] and _DEMONSTRATED in numbers
            one = search._replace(numbers=(_DEMONSTRATED,), besides=()) if sought else search
            campaigns.append(one.of(sut))
            if campaigns[-1].interrupted or campaigns[-1].breakdown is not None:
                break
    interrupted = any(campaign.interrupted for campaign in campaigns)
    broken = next((campaign for campaign in campaigns if campaign.breakdown is not None), None)
    some_found = any(campaign.finds for campaign in campaigns)
    if (interrupted or broken) and save is None and some_found:
        save = hunt_outcome.RESCUE_FOLDER
    with guarded():
        outcomes = [
            hunt_outcome.Outcome.of(each, save, runs_again=not as_json, is_all=search.is_all(each.sut))
            for each in campaigns
        ]
        for campaign in campaigns:
            hunt_outcome.Rescue(save, campaign.sut, seed).forget(campaign)
        if as_json:
            text = json.dumps(hunt_outcome.as_json(outcomes, seed))
        else:
            text = "\n".join(hunt_outcome.told(outcomes, other, demonstration))
    if broken is None or some_found:
        click.echo(text)
    if broken is not None:
        sys.exit(hunt_outcome.tell_breakdown(broken, save))
    if interrupted:
        sys.exit(stopping.exit_code)
    for campaign in campaigns:
        if not campaign.worlds:
            unusable(f"not one world of {campaign.sut.key} was run: nothing is known of it; search for longer")
    caught = {each.campaign.sut.name: bool(each.near) for each in outcomes}
    as_it_should_be = {name: demonstration and name == DEMONSTRATION[0] for name in caught}
    sys.exit(0 if caught == as_it_should_be else FOUND)


def _make_folder(folder: Path) -> None:
    """Before a search, not after it: what it finds must have a place."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise click.BadParameter(f"{folder}: cannot be written: {error.strerror}", param_hint="--save") from None


_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class _Stopping:
    """Ctrl-C, or another signal to end, asks the search to stop after the world that is running; a second one stops it
    at once."""

    def __init__(self) -> None:
        self.exit_code = INTERRUPTED
        self.asked = False

    def __enter__(self) -> "_Stopping":
        self._before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._ask) for each in _ENDING}
        return self

    def __exit__(self, *_: object) -> None:
        for each, before in self._before.items():
            signal.signal(each, before)

    def _ask(self, number: int, _frame: Any) -> None:
        self.exit_code = 128 + number
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        click.echo("\nstopping; once more to stop at once", err=True)


class _Hunt(NamedTuple):
    """How each SUT is searched. `numbers`: the invariants to look for; `besides`: those that are judged in every world;
    `options`: what the strategies vary; `other`: the SUT that it is held against; `reach`: which finds count, where it
    was asked for."""

    numbers: Sequence[str]
    besides: Sequence[str]
    seed: int
    bounds: Bounds
    options: dict[str, Any]
    other: Sut | None
    stop: Callable[[], bool]
    save: Path | None
    reach: WhichReach | None

    def of(self, sut: Sut) -> Campaign:
        """The worlds of each strategy that the numbers need, the bounds shared out among them."""
        groups: dict[Callable[..., Any], list[str]] = {}
        for number in self.numbers:
            groups.setdefault(STRATEGIES[INVARIANTS[number].kind], []).append(number)
        whole = Campaign(sut, self.seed)
        compare = None if self.other is None else against(self.other)
        worlds, seconds = self.bounds.worlds, self.bounds.seconds
        with progress_bar(sut.key, int(1000 * (seconds or 0)) if worlds is None else worlds) as tick:
            rescue = hunt_outcome.Rescue(self.save, sut, self.seed)

            def progress(part: Campaign) -> None:
                rescue.see(part)
                tick(1000 * (whole.seconds + part.seconds) if worlds is None else whole.worlds + part.worlds)

            for index, (strategy, numbers) in enumerate(groups.items()):
                if worlds is None:
                    share = Bounds(seconds=(seconds or 0) / len(groups))
                else:
                    share = Bounds(worlds=(worlds + len(groups) - 1 - index) // len(groups))
                options = self.options | {"max_parked_s": sut.framework.max_parked_s}
                drawn = strategy(**options)
                classics = classic_cases({INVARIANTS[number].kind for number in numbers}, **options)
                search_nearest_first(
                    whole,
                    drawn,
                    (DIFFERS,) if compare is not None else (*numbers, *self.besides),
                    share,
                    classics,
                    is_all=self.is_all(sut),
                    progress=progress,
                    compare=compare,
                    stop=self.stop,
                )
                if whole.interrupted or whole.breakdown is not None or (compare is not None and whole.finds):
                    break
        return whole

    def is_all(self, sut: Sut) -> bool:
        """Whether every find counts, whoever can meet it."""
        return self.other is not None or every_find_counts(sut, self.reach)
