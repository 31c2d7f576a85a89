"""Runs that end badly say why, in words that are the same in every run."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest
import simpy

from sim.clock import NS_PER_S, Deadlock, Horizon, StepCap, VirtualLoop, Waiting
from tests.clock.runs import Log, run


class Server:
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def generate(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def parked(self) -> None:
        await self.gate.wait()


async def stuck() -> None:
    server = Server()
    parked = asyncio.create_task(server.parked(), name="parked")
    await asyncio.sleep(1)
    await asyncio.gather(server.generate(), parked)


def test_a_deadlock_is_raised_at_once_and_names_who_waits_on_what() -> None:
    with closing(VirtualLoop()) as loop, pytest.raises(Deadlock) as caught:
        loop.run_until_complete(stuck())
    assert caught.value.waiting == (
        Waiting("Task-1", "stuck > gather of task Task-3, task parked"),
        Waiting("parked", "Server.parked > Event.wait > Future made by Event.wait"),
        Waiting("Task-3", "Server.generate > Future made by Server.generate"),
    )
    assert str(caught.value).splitlines() == [
        "deadlock at 1000000000 ns: nothing is ready and nothing is timed",
        "  Task-1 waits on stuck > gather of task Task-3, task parked",
        "  parked waits on Server.parked > Event.wait > Future made by Event.wait",
        "  Task-3 waits on Server.generate > Future made by Server.generate",
    ]


def test_a_deadlock_on_simpy_says_so() -> None:
    async def main(loop: VirtualLoop) -> None:
        await loop.wrap_event(loop.env.event())

    with closing(VirtualLoop()) as loop, pytest.raises(Deadlock, match=r"main > Future made by SimPy Event$"):
        loop.run_until_complete(main(loop))


def test_a_sleep_for_ever_and_a_cancelled_timer_do_not_hide_a_deadlock() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(100, print).cancel()
        await asyncio.sleep(float("inf"))

    with pytest.raises(Deadlock, match="deadlock at 0 ns"):
        run(main())


def test_run_until_idle_leaves_waiting_tasks_in_peace() -> None:
    with closing(VirtualLoop()) as loop:
        task = loop.create_task(Server().parked())
        loop.call_later(5, lambda: None)
        loop.run_until_idle()
        assert not task.done()
        assert loop.now_ns == 5 * NS_PER_S


def test_polling_without_letting_time_pass_meets_the_step_cap() -> None:
    async def poll() -> None:
        while True:
            await asyncio.sleep(0)

    async def main() -> None:
        asyncio.create_task(poll(), name="poller")  # noqa: RUF006
        await asyncio.sleep(3)
        await asyncio.Event().wait()

    with closing(VirtualLoop(max_steps_per_instant=5000)) as loop:
        with pytest.raises(StepCap) as caught:
            loop.run_until_complete(main())
        assert loop.steps == 5000
    name, count = caught.value.ran_most[0]
    assert "poller (" in name
    assert "poll)" in name
    assert count > 900
    assert "more than 5000 callbacks at one instant (0 ns)" in str(caught.value)


def test_the_step_cap_counts_from_each_instant_anew() -> None:
    async def main() -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        await asyncio.sleep(1)
        for _ in range(50):
            await asyncio.sleep(0)

    run(main(), max_steps_per_instant=60)
    with pytest.raises(StepCap):
        run(main(), max_steps_per_instant=40)


def test_the_step_cap_is_the_last_number_allowed() -> None:
    def run_callbacks(count: int) -> None:
        with closing(VirtualLoop(max_steps_per_instant=3)) as loop:
            for _ in range(count):
                loop.call_soon(int)
            loop.run_until_idle()

    run_callbacks(3)
    with pytest.raises(StepCap):
        run_callbacks(4)


def test_simpy_processes_that_breed_at_one_instant_meet_the_step_cap_too() -> None:
    with closing(VirtualLoop(max_steps_per_instant=500)) as loop:

        def breed() -> Iterator[simpy.Event]:
            loop.env.process(breed())
            yield loop.env.event()

        loop.env.process(breed())
        with pytest.raises(StepCap):
            loop.run_until_idle()
        loop.env._queue.clear()


def test_the_horizon_stops_the_clock_before_it_and_can_be_raised() -> None:
    log: Log = []

    async def main() -> None:
        for second in (1, 2, 3):
            await asyncio.sleep(1)
            log.append(second)

    with closing(VirtualLoop(until_ns=2 * NS_PER_S)) as loop:
        task = loop.create_task(main())
        with pytest.raises(Horizon, match="the next event is at 3000000000 ns, past the horizon of 2000000000 ns"):
            loop.run_until_complete(task)
        assert (log, loop.now_ns) == ([1, 2], 2 * NS_PER_S)
        loop.until_ns = None
        loop.run_until_complete(task)
        assert log == [1, 2, 3]
