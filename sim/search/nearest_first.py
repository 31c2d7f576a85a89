"""A search that goes from near to far: first what the framework's own callers can bring about, then the rest."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

from hypothesis.strategies import SearchStrategy

from sim.case import Case
from sim.invariants.table import INVARIANTS
from sim.reach import Reached, as_stock, has_stock_callers
from sim.search.campaign import Bounds, Campaign, run_campaign
from sim.search.find import Find, Known
from sim.sut.framework import Sut

WhichReach = Literal["stock", "all"]
"""Which finds count: those that the framework's own callers can meet, or all."""

STOCK_SHARE = 0.75
"""Of the worlds, or of the time."""


def every_find_counts(sut: Sut, reach: WhichReach | None) -> bool:
    """Whoever can meet it. Where nobody says which, those of a package have to be stock."""
    return reach == "all" or (reach is None and not has_stock_callers(sut))


def counts(find: Find, reached: Reached, *, is_all: bool) -> bool:
    """Whether a find decides an exit code or fails a gate. What only warns never does, nor, unless `is_all`, what the
    framework's own callers cannot meet."""
    only_warns = find.invariant in INVARIANTS and INVARIANTS[find.invariant].severity == "warning"
    return not only_warns and (is_all or reached.reach == "stock")


def search_nearest_first(
    whole: Campaign,
    cases: SearchStrategy[Case],
    numbers: Sequence[str],
    bounds: Bounds,
    classics: Sequence[Case],
    *,
    is_all: bool,
    known: Collection[Known] = (),
    **how: Any,
) -> None:
    """Runs a campaign on each part of a search and adds it to `whole`, until one of them is ended. `how`: whatever else
    `run_campaign` takes."""
    for part_bounds, part_cases, first in nearest_first(whole.sut, bounds, cases, classics, is_all=is_all):
        found = {find.invariant for find in whole.finds}
        part = run_campaign(
            whole.sut, part_cases, numbers, whole.seed, part_bounds, known={*known, *found}, classics=first, **how
        )
        whole.add(part)
        if part.interrupted or part.breakdown is not None:
            return


def nearest_first(
    sut: Sut, bounds: Bounds, cases: SearchStrategy[Case], classics: Sequence[Case], *, is_all: bool
) -> Iterator[tuple[Bounds, SearchStrategy[Case], Sequence[Case]]]:
    """The parts of a search, each with its bounds, its cases and its classics. `is_all`: whether near and far are the
    same to whoever asks, so that there is one part."""
    if is_all:
        yield bounds, cases, classics
        return
    callers = sut.framework.callers
    stock = [as_stock(case, callers) for case in classics]
    of_stock, of_rest = _shared_out(bounds)
    yield of_stock, cases.map(lambda case: as_stock(case, callers)), list(dict.fromkeys(stock))
    yield of_rest, cases, [case for case in classics if case not in stock]


def _shared_out(bounds: Bounds) -> tuple[Bounds, Bounds]:
    if bounds.worlds is not None:
        most = max(1, round(STOCK_SHARE * bounds.worlds))
        return Bounds(worlds=most), Bounds(worlds=bounds.worlds - most)
    seconds = bounds.seconds or 0.0
    return Bounds(seconds=STOCK_SHARE * seconds), Bounds(seconds=(1 - STOCK_SHARE) * seconds)
