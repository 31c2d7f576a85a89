"""Shrinking the schedule: which deviations from FIFO does a violation need?

Hypothesis shrinks the world; this takes the schedule of the world that is left. Delta debugging (ddmin,
IEEE Transactions on Software Engineering 28(2), 2002) on its deviations; none left means that it is no race.
"""

from collections.abc import Callable

import msgspec

from sim.case import Case, Schedule
from sim.clock import Deviation

Fails = Callable[[Case], bool]
Deviations = tuple[tuple[int, int], ...]

MOST_RUNS = 400
"""Worlds that shrinking one schedule may cost."""


def with_schedule(case: Case, schedule: Schedule) -> Case:
    """The same world under another schedule."""
    return msgspec.structs.replace(case, schedule=schedule)


def shrink_schedule(case: Case, recorded: tuple[Deviation, ...], fails: Fails) -> Case:
    """The case with FIFO if it fails so too, else with as few explicit deviations as ddmin leaves."""
    fifo = with_schedule(case, Schedule())
    if case.schedule == fifo.schedule or fails(fifo):
        return fifo

    def explicit(deviations: Deviations) -> Case:
        return with_schedule(case, Schedule("explicit", deviations=deviations))

    deviations: Deviations = tuple((deviation.step, deviation.pick) for deviation in recorded)
    if not fails(explicit(deviations)):
        return case
    return explicit(_ddmin(deviations, lambda some: fails(explicit(some))))


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
