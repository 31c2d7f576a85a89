"""What is timed: timers and SimPy events in one heap, and the ties between them."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest
import simpy

from sim.clock import NS_PER_S, VirtualLoop
from tests.clock.runs import Log, outcomes, run


def test_timers_run_in_order_of_time_and_the_past_is_now() -> None:
    log: Log = []
    with closing(VirtualLoop()) as loop:
        loop.call_later(2, log.append, "later")
        loop.call_at(1, log.append, "sooner")
        loop.call_later(-5, log.append, "past")
        loop.call_later(3, log.append, "cancelled").cancel()
        loop.call_later(float("inf"), log.append, "never")
        loop.run_until_idle()
        assert log == ["past", "sooner", "later"]
        assert loop.now_ns == 2 * NS_PER_S  # a cancelled timer does not move the clock


def test_a_heap_of_cancelled_timers_is_swept() -> None:
    async def main() -> int:
        for _ in range(10_000):
            async with asyncio.timeout(3600):
                await asyncio.sleep(0)
        return len(asyncio.get_running_loop().env._queue)  # type: ignore[attr-defined]

    assert run(main()) < 300


def test_a_fractional_nanosecond_in_simpy_is_refused() -> None:
    with closing(VirtualLoop()) as loop:
        loop.env.timeout(0.5)
        with pytest.raises(TypeError, match=r"whole nanoseconds, but a SimPy event is due at 0\.5"):
            loop.run_until_idle()
        loop.env._queue.clear()
    with pytest.raises(TypeError, match=r"the environment starts at 0\.0"):
        VirtualLoop(simpy.Environment(0.0)).close()


def test_simpys_insertion_order_decides_no_tie() -> None:
    def start(loop: VirtualLoop, log: Log) -> None:
        def process(name: str) -> Iterator[simpy.Event]:
            yield loop.env.timeout(10)
            log.append(name)

        loop.env.process(process("server"))
        loop.call_later(10e-9, log.append, "timer")
        loop.env.timeout(10).callbacks.append(lambda _event: log.append("event"))

    assert len(outcomes(start)) == 6  # all orders of the three


def test_an_event_that_succeeds_now_ties_with_callbacks_that_are_ready_already() -> None:
    def start(loop: VirtualLoop, log: Log) -> None:
        event = loop.env.event()
        event.callbacks.append(lambda _event: log.append("event"))
        loop.call_soon(event.succeed)
        loop.call_soon(log.append, "callback")
        loop.call_soon(loop.call_later, 0, log.append, "timer")

    assert {order.index("event") for order in outcomes(start)} == {0, 1, 2}


def test_an_event_of_low_priority_comes_after_all_others_at_its_instant() -> None:
    def start(loop: VirtualLoop, log: Log) -> None:
        for name, priority in (("last", 2), ("first", 1), ("first", 1)):
            event = loop.env.event()
            event._ok, event._value = True, None
            event.callbacks.append(lambda _event, name=name: log.append(name))
            loop.env.schedule(event, priority, 10)

    assert outcomes(start) == {("first", "first", "last")}


def test_a_process_starts_and_is_interrupted_first_as_simpy_promises() -> None:
    def start(loop: VirtualLoop, log: Log) -> None:
        def process() -> Iterator[simpy.Event]:
            log.append("started")
            try:
                yield loop.env.timeout(5)
            except simpy.Interrupt as interrupt:
                log.append(interrupt.cause)

        loop.env.process(process()).interrupt("interrupted")
        loop.call_soon(log.append, "callback")

    assert outcomes(start) == {("started", "interrupted", "callback")}
