"""Which schedules a drawn world is run under.

A world is dear to draw and cheap to run, so each is run several times: first in FIFO order, then in random orders.
While a race is shrunk each is run more often, or most of the smaller worlds that have it would be passed over; what
breaks in FIFO order is shrunk in FIFO order.
"""

import msgspec

from sim.case import Case, Schedule

SCHEDULES_PER_WORLD = 4
MORE_FOR_A_RACE = 16


def under_schedules(case: Case, more: int = 0) -> list[Case]:
    """The case in FIFO order, and under random orders whose seeds follow from the case's own; then `more` of them."""
    seeds = [*range(case.seed * SCHEDULES_PER_WORLD + 1, (case.seed + 1) * SCHEDULES_PER_WORLD)]
    seeds += [2**32 + case.seed * MORE_FOR_A_RACE + index for index in range(more)]
    orders = [Schedule(), *(Schedule("random", seed) for seed in seeds)]
    return [msgspec.structs.replace(case, schedule=order) for order in orders]
