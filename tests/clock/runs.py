"""How the tests of the clock run loops and worlds."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from typing import Any

import simpy

from sim.clock import NS_PER_S, Deviation, Fifo, Order, RandomOrder, VirtualLoop, tamed

Log = list[Any]
FIFO = Fifo()


def run(main: Coroutine[Any, Any, Any], order: Order = FIFO, **settings: Any) -> Any:
    with closing(VirtualLoop(order=order, **settings)) as loop:
        return loop.run_until_complete(main)


@contextmanager
def world(seed: int, order: Order = FIFO) -> Iterator[VirtualLoop]:
    """A loop in a tamed world, closed while it is still tamed."""
    loop = VirtualLoop(order=order)
    with tamed(loop, seed), closing(loop):
        yield loop


def outcomes(start: Callable[[VirtualLoop, Log], object]) -> set[tuple[Any, ...]]:
    """Every order of events that 50 random schedules show."""
    seen = set()
    for seed in range(50):
        log: Log = []
        with closing(VirtualLoop(order=RandomOrder(seed))) as loop:
            start(loop, log)
            loop.run_until_idle()
        seen.add(tuple(log))
    return seen


async def race(log: Log) -> None:
    """Ties of every kind: tasks, timers at one instant, SimPy events, an executor's job."""
    loop: Any = asyncio.get_running_loop()

    def process(name: str) -> Iterator[simpy.Event]:
        for _ in range(3):
            yield loop.env.timeout(NS_PER_S)
            log.append((name, loop.now_ns))

    async def client(name: str) -> None:
        for n in range(4):
            await asyncio.sleep(n % 2)
            log.append((name, loop.now_ns))
        await asyncio.to_thread(log.append, f"job of {name}")
        log.append(await loop.wrap_event(loop.env.timeout(NS_PER_S, f"event of {name}")))

    for name in ("p", "q"):
        loop.env.process(process(name))
    async with asyncio.TaskGroup() as group:
        for name in "abcde":
            group.create_task(client(name))
    done, _ = await asyncio.wait([asyncio.create_task(asyncio.sleep(1, n)) for n in range(8)])
    log.append([task.result() for task in done])


def race_under(order: Order) -> tuple[Log, tuple[Deviation, ...]]:
    log: Log = []
    with closing(VirtualLoop(order=order)) as loop:
        loop.run_until_complete(race(log))
        return log, loop.deviations
