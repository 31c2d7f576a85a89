"""What a hunt found: kept in files, told, and as plain data."""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from sim import corpus
from sim.case import to_builtins
from sim.cli.exits import tell
from sim.expected import Shown
from sim.invariants.table import INVARIANTS
from sim.reach import Reached, has_stock_callers, reach_of
from sim.registry import PluginError
from sim.report.world import find_report
from sim.search.campaign import Campaign
from sim.search.find import Find, size_of
from sim.search.nearest_first import counts
from sim.sut.framework import Sut
from sim.sut.interface import SutError
from sim.verdicts import Judged, judged

RESCUE_FOLDER = Path("found")
"""Where finds go of a hunt that ended before its time."""


class Rescue:
    """Keeps what one SUT's search has confirmed while it goes on, as small as it is by then, for who ends it without
    asking. What is kept whole at the end takes their place."""

    def __init__(self, folder: Path | None, sut: Sut, seed: int) -> None:
        self._folder, self._sut, self._seed = folder, sut, seed
        self._kept: dict[str, Find] = {}

    def see(self, campaign: Campaign) -> None:
        """Writes what is new, or smaller, since it was called last."""
        if self._folder is None or not (campaign.noted or campaign.finds):
            return
        for find in [*campaign.finds, *(noted.find for noted in campaign.noted.values())]:
            before = self._kept.get(find.invariant)
            if before is None or (find.case != before.case and size_of(find.case) < size_of(before.case)):
                self._kept[find.invariant] = find
                origin = f"found by a search, seed {self._seed}; not shrunk to its end"
                expected = {self._sut.key: [Shown(find.invariant)]}
                invariant = find.invariant if find.invariant in INVARIANTS else None
                entry = corpus.Entry(origin=origin, invariant=invariant, expected=expected, case=find.case)
                corpus.write(self._path(self._folder, find.invariant), entry)

    def forget(self, campaign: Campaign) -> None:
        """Its finds are kept whole by now."""
        if self._folder is not None:
            for find in campaign.finds:
                self._path(self._folder, find.invariant).unlink(missing_ok=True)

    def _path(self, folder: Path, number: str) -> Path:
        return folder / corpus.file_name(number, self._sut.key, "unshrunk")


class Again(NamedTuple):
    """A find, run once more if that is needed, the file that keeps it, and who can meet it."""

    find: Find
    run: Judged | None
    path: Path | None
    reached: Reached
    met_by: str = ""
    """Which of the framework's own callers meet it, and how, where that is known."""


class Outcome(NamedTuple):
    """A campaign, and its finds once more. `is_all`: whether each of them counts, whoever can meet it."""

    campaign: Campaign
    finds: Sequence[Again]
    is_all: bool

    @property
    def near(self) -> list[Again]:
        """Those that count."""
        return [each for each in self.finds if counts(each.find, each.reached, is_all=self.is_all)]

    @property
    def far(self) -> list[Again]:
        """Those that the framework's own callers cannot meet, or that only warn."""
        return [each for each in self.finds if not counts(each.find, each.reached, is_all=self.is_all)]

    @staticmethod
    def of(campaign: Campaign, folder: Path | None, *, runs_again: bool, is_all: bool) -> "Outcome":
        """Keeps the finds in a folder, if there is one. `runs_again`: for a report, be they kept or not."""
        finds = []
        for find in campaign.finds:
            run = judged(find.case, campaign.sut) if runs_again or folder is not None else None
            kept = None if folder is None or run is None else _keep(campaign.seed, find, run, folder)
            reached = reach_of(find.case, campaign.sut.framework.callers)
            is_stock = reached.reach == "stock" and has_stock_callers(campaign.sut)
            met_by = campaign.sut.framework.met_by.get(find.invariant, "") if is_stock else ""
            finds.append(Again(find, run, kept, reached, met_by))
        return Outcome(campaign, finds, is_all)


def _keep(seed: int, find: Find, run: Judged, folder: Path) -> Path:
    entry = corpus.Entry(
        origin=f"found by a search, seed {seed}",
        invariant=find.invariant if find.invariant in INVARIANTS else None,
        expected={run.sut.key: corpus.observed_in(run)},
        case=find.case,
    )
    return corpus.keep(folder, find.invariant, run.sut.key, entry)


def told(outcomes: Sequence[Outcome], other: Sut | None, demonstration: bool) -> Iterator[str]:
    """For a person. `other`: the SUT that each was held against."""
    for outcome in outcomes:
        campaign, near, far = outcome.campaign, outcome.near, outcome.far
        places: set[str] = set()
        numbers = ", ".join(each.find.invariant for each in near) or ("clean" if campaign.worlds else "not tested")
        if other is not None:
            numbers = f"{'differs from' if near else 'does the same as'} {other.key}"
        worlds = f"{campaign.worlds} world{'s' * (campaign.worlds != 1)}"
        yield f"{campaign.sut.key}: {numbers}  ({worlds}, {campaign.worlds_per_s:.0f}/s, seed {campaign.seed})"
        if campaign.idle:
            yield f"warning: {campaign.idle}"
        for each in near:
            yield from _told(each, places)
        if far:
            yield f"  Beyond what {campaign.sut.framework.name}'s own callers do, or only warned of (no exit code):"
            for each in far:
                yield from _told(each, places)
        if campaign.warnings:
            yield "  Warnings, which change no exit code:"
            yield from (f"    {each.invariant}: {each.message}" for each in campaign.warnings.values())
    if demonstration:
        yield "The first client leaves the limit to the server; the second pins what is left of the budget."
        yield "Next: rollcage hunt --sut verl, or --sut MODULE:FACTORY for your own client."


def _told(each: Again, places: set[str]) -> Iterator[str]:
    assert each.run is not None
    yield "\n" + textwrap.indent(find_report(each.run, each.find, places), "  ")
    yield f"  reach: {each.reached.reach}" + (f" ({each.reached.feature})" if each.reached.feature else "")
    if each.met_by:
        yield f"  met by: {each.met_by}"
    yield "" if each.path is None else f"  kept as {each.path}\n"


def as_json(outcomes: Sequence[Outcome], seed: int) -> dict[str, Any]:
    campaigns = [outcome.campaign for outcome in outcomes]
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
                        "invariant": each.find.invariant,
                        "message": each.find.message,
                        "reach": each.reached.reach,
                        "feature": each.reached.feature,
                        "met_by": each.met_by,
                        "case": to_builtins(each.find.case) if each.path is None else str(each.path),
                    }
                    for each in outcome.finds
                ],
                "warnings": [
                    {"invariant": each.invariant, "message": each.message, "case": to_builtins(each.case)}
                    for each in campaign.warnings.values()
                ],
            }
            for campaign, outcome in [(each.campaign, each) for each in outcomes]
        },
    }


def tell_breakdown(campaign: Campaign, folder: Path | None) -> int:
    """What ended a campaign before its time, and the exit code for it. The case is kept, unless no case is at fault."""
    breakdown, sut = campaign.breakdown, campaign.sut
    assert breakdown is not None
    if isinstance(breakdown.error, SutError):
        return tell(breakdown.error)
    kind, who = ("plugin", "a plugin") if isinstance(breakdown.error, PluginError) else ("fault", "rollcage")
    entry = corpus.Entry(origin=f"{who} failed: {breakdown.error!r}", case=breakdown.case)
    path = corpus.keep(folder or RESCUE_FOLDER, kind, sut.key, entry)
    code = tell(breakdown.error, f"This is a fault of rollcage, not of {sut.key}")
    click.echo(f"its case is kept as {path}", err=True)
    return code
