"""Virtual time: an asyncio event loop on a SimPy clock, the orders it runs in, and the taming of all else."""

from sim.clock.loop import (
    NS_PER_S,
    Chooser,
    Deadlock,
    Deviation,
    Deviations,
    Fifo,
    Horizon,
    Order,
    RandomOrder,
    StepCap,
    VirtualLoop,
    Waiting,
    tamed,
    to_ns,
)

__all__ = [
    "NS_PER_S",
    "Chooser",
    "Deadlock",
    "Deviation",
    "Deviations",
    "Fifo",
    "Horizon",
    "Order",
    "RandomOrder",
    "StepCap",
    "VirtualLoop",
    "Waiting",
    "tamed",
    "to_ns",
]
