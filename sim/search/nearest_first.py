"""A search that goes from near to far: first what the framework's own callers can bring about, then the rest."""

from collections.abc import Iterator, Sequence

from hypothesis.strategies import SearchStrategy

from sim.case import Case
from sim.reach import as_stock
from sim.search.campaign import Bounds
from sim.sut.framework import Sut

STOCK_SHARE = 0.75
"""Of the worlds, or of the time."""


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
