"""Virtual time: an asyncio event loop on a SimPy clock, the orders it runs in, and the taming of all else.

Private names of others stand in few files: SimPy's in `agenda` (and its `_now` in `loop`); CPython's in `loop` and
`agenda`, which override and use them, `names` and `executors`, which read them, and `taming`, which replaces them.
"""

from sim.clock.endings import Deadlock, Horizon, StepCap, Waiting
from sim.clock.loop import Replacement, VirtualLoop
from sim.clock.nanoseconds import NS_PER_S, to_ns
from sim.clock.orders import Chooser, Deviation, Fifo, FifoExcept, Order, RandomOrder
from sim.clock.taming import clocks_of, tamed
from sim.clock.watchdog import Blocked, watched

__all__ = [
    "NS_PER_S",
    "Blocked",
    "Chooser",
    "Deadlock",
    "Deviation",
    "Fifo",
    "FifoExcept",
    "Horizon",
    "Order",
    "RandomOrder",
    "Replacement",
    "StepCap",
    "VirtualLoop",
    "Waiting",
    "clocks_of",
    "tamed",
    "to_ns",
    "watched",
]
