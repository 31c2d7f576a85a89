"""Which schedules a drawn world is run under.

A world is dear to draw and cheap to run, so each is run several times: first in FIFO order, then in random orders.
"""

import msgspec

from sim.case import Case, Schedule

SCHEDULES_PER_WORLD = 4


def under_schedules(case: Case) -> list[Case]:
    """The case in FIFO order, and under random orders whose seeds follow from the case's own."""
    seeds = range(case.seed * SCHEDULES_PER_WORLD + 1, (case.seed + 1) * SCHEDULES_PER_WORLD)
    orders = [Schedule(), *(Schedule("random", seed) for seed in seeds)]
    return [msgspec.structs.replace(case, schedule=order) for order in orders]
