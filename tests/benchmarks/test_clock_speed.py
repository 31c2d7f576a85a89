"""The loop's speed as a ratio to plain asyncio's, both measured in the same run; figures in design §10."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from sim.clock import Fifo, Order, RandomOrder, VirtualLoop, tamed

TASKS = 100
SLEEPS = 400
ROUNDS = 15


async def ring() -> None:
    async def member() -> None:
        for _ in range(SLEEPS):
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(member())


def seconds_for(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> float:
    with closing(make_loop()) as loop:
        start_s = time.perf_counter()
        loop.run_until_complete(ring())
        return time.perf_counter() - start_s


@pytest.mark.parametrize(("order", "goal"), [(Fifo(), 0.8), (RandomOrder(1), 0.6)], ids=["fifo", "random"])
def test_ring_of_sleeps(benchmark: Any, order: Order, goal: float) -> None:
    """The median over rounds of plain time / virtual time; the two alternate, so that a slow moment hits both."""
    rounds: list[tuple[float, float]] = []
    benchmark.pedantic(
        lambda: rounds.append((seconds_for(asyncio.new_event_loop), seconds_for(lambda: VirtualLoop(order=order)))),
        rounds=ROUNDS,
        warmup_rounds=1,
    )
    ratio = statistics.median(plain_s / virtual_s for plain_s, virtual_s in rounds)
    plain_per_s, virtual_per_s = (TASKS * SLEEPS / statistics.median(times_s) for times_s in zip(*rounds, strict=True))
    benchmark.extra_info |= {
        "ratio_to_plain": round(ratio, 3),
        "plain_steps_per_s": round(plain_per_s),
        "virtual_steps_per_s": round(virtual_per_s),
    }
    print(f"\n{order}: {ratio:.2f} × plain asyncio ({virtual_per_s:,.0f} of {plain_per_s:,.0f} steps/s)")
    assert ratio >= goal


def test_the_ring_records_its_deviations() -> None:
    """What is measured above includes the record: a ring in random order deviates at nearly every step."""
    with closing(VirtualLoop(order=RandomOrder(1))) as loop:
        loop.run_until_complete(ring())
        assert len(loop.deviations) > 0.95 * TASKS * SLEEPS


def test_an_empty_world(benchmark: Any) -> None:
    """What every world pays before it does anything: a loop made and closed, the globals tamed and restored."""

    def empty_world() -> None:
        loop = VirtualLoop(order=RandomOrder(1))
        with tamed(loop, 1), closing(loop):
            pass

    benchmark(empty_world)
