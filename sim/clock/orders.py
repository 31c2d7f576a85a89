"""Orders: which of the callbacks that are ready runs next."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Deviation(NamedTuple):
    """A step of a schedule that FIFO would have taken otherwise."""

    step: int
    """The loop's count of steps before it."""
    pick: int
    """Which of the callbacks in line ran; the first is 0."""


Chooser = Callable[[int, Sequence[asyncio.Handle]], int]
"""(step, callbacks in line, in order of arrival) → index of the one to run. Asked only where there are at least two."""


class Order(Protocol):
    """A policy for the order of ready callbacks. Orders are plain values; what a run draws lives in its chooser."""

    def chooser(self) -> Chooser | None:
        """A fresh chooser for one run, or None: always the first in line."""


@dataclass(frozen=True)
class Fifo:
    """First come, first served, as in asyncio."""

    def chooser(self) -> Chooser | None:
        return None


@dataclass(frozen=True)
class RandomOrder:
    """Each callback in line is as likely as any other to run next; the seed decides."""

    seed: int

    def chooser(self) -> Chooser | None:
        draw = random.Random(self.seed).random
        return lambda _step, ready: int(draw() * len(ready))


@dataclass(frozen=True)
class FifoExcept:
    """FIFO, but for the deviations.

    A pick beyond the end of the line takes the last in it, so that a list that a shrinker has thinned out still runs.
    """

    deviations: tuple[Deviation, ...] = ()

    def __post_init__(self) -> None:
        for deviation in self.deviations:
            if min(deviation) < 0:
                raise ValueError(f"a deviation's step and pick must not be negative, got {deviation!r}")

    def chooser(self) -> Chooser | None:
        if not self.deviations:
            return None
        picks = dict(self.deviations)
        return lambda step, ready: min(picks.get(step, 0), len(ready) - 1)
