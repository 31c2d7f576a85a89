"""Shrinking the schedule: which deviations from FIFO does a violation need?

Hypothesis shrinks the world; this takes the schedule of the world that is left. None needed means that it is no race.
First delta debugging (ddmin, IEEE Transactions on Software Engineering 28(2), 2002) on the deviations of the run that
failed. A deviation is a step's number, though, and leaving one out moves all later ones, so ddmin ends at lists that no
single removal improves. Most races need one or two deviations (the small depth that PCT counts on), so those are then
tried at every step of the FIFO run.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from sim.case import Case, Schedule
from sim.clock import Chooser, Fifo
from sim.sut.interface import Sut
from sim.world import World

Fails = Callable[[Case], bool]
Deviations = tuple[tuple[int, int], ...]

MOST_RUNS = 400
"""Worlds that each of the two ways may cost."""

_LOW = 4


def with_schedule(case: Case, schedule: Schedule) -> Case:
    """The same world under another schedule."""
    return msgspec.structs.replace(case, schedule=schedule)


def shrink_schedule(case: Case, sut: Sut, fails: Fails) -> Case:
    """The case with FIFO if it fails so too, else with as few explicit deviations as could be found."""
    fifo = with_schedule(case, Schedule())
    if case.schedule == fifo.schedule or fails(fifo):
        return fifo

    def explicit(deviations: Deviations) -> Case:
        return with_schedule(case, Schedule("explicit", deviations=deviations))

    def deviations_fail(deviations: Deviations) -> bool:
        return fails(explicit(deviations))

    failing = World(case, sut)
    failing.run()
    recorded: Deviations = tuple((deviation.step, deviation.pick) for deviation in failing.deviations)
    if not deviations_fail(recorded):
        return case
    fewest = _ddmin(recorded, deviations_fail)
    if len(fewest) > 1:
        tries = _few(_choices(fifo, sut), len(fewest), case.seed)
        fewest = next((few for few in itertools.islice(tries, MOST_RUNS) if deviations_fail(few)), fewest)
    # A pick past the end took the last in line, and one where nothing else was ready is none: what really happened.
    kept = World(explicit(_low_picks(fewest, deviations_fail)), sut)
    kept.run()
    really = explicit(tuple((deviation.step, deviation.pick) for deviation in kept.deviations))
    return really if fails(really) else kept.case


def _ddmin(items: Deviations, fails: Callable[[Deviations], bool]) -> Deviations:
    runs = 0
    parts = 2
    while len(items) >= 2 and runs < MOST_RUNS:
        size = max(1, len(items) // parts)
        for start in range(0, len(items), size):
            rest = items[:start] + items[start + size :]
            runs += 1
            if fails(rest):
                items, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(items), parts * 2)
    return items


class _Widths(Fifo):
    """FIFO that notes where there was a choice."""

    def __init__(self) -> None:
        self.choices: list[tuple[int, int]] = []

    def chooser(self) -> Chooser:
        def first(step: int, ready: Sequence[Any]) -> int:
            self.choices.extend((step, pick) for pick in range(1, len(ready)))
            return 0

        return first


def _choices(fifo: Case, sut: Sut) -> list[tuple[int, int]]:
    """Every deviation that the FIFO run could have taken."""
    widths = _Widths()
    World(fifo, sut, widths).run()
    return widths.choices


def _few(choices: list[tuple[int, int]], fewer_than: int, seed: int) -> Iterator[Deviations]:
    """Each choice alone, then two at random, as long as that is fewer than there are already."""
    yield from ((choice,) for choice in choices[: MOST_RUNS // 2])
    draw = random.Random(seed)
    while fewer_than > 2 and len(choices) > 1:
        first, second = sorted(draw.sample(choices, 2))
        if first[0] != second[0]:
            yield first, second


def _low_picks(items: Deviations, fails: Callable[[Deviations], bool]) -> Deviations:
    """Each pick as the next in line where that is enough."""
    for index, (step, pick) in enumerate(items):
        for lower in range(1, min(pick, _LOW)):
            tried = (*items[:index], (step, lower), *items[index + 1 :])
            if fails(tried):
                items = tried
                break
    return items
