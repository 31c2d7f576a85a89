"""Closing a loop: tasks clean up, in bounded time and quietly."""

import asyncio
import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from sim.clock import Deadlock, RandomOrder, VirtualLoop
from tests.clock.runs import Log, run


@contextmanager
def silence(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing logged (asyncio's debug lines aside), warned or printed, not even by finalisers."""
    with warnings.catch_warnings(), caplog.at_level(logging.INFO):
        warnings.simplefilter("error")
        yield
        gc.collect()
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_closing_after_a_deadlock_is_quiet_and_lets_tasks_clean_up(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    log: Log = []

    async def careful() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)
            log.append("cleaned up")

    async def generator() -> Any:
        try:
            yield
        finally:
            await asyncio.sleep(0)
            log.append("generator closed")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        open_generators.append(generator())
        await anext(open_generators[0])
        tasks.append(loop.create_task(careful()))
        await asyncio.Event().wait()

    tasks: list[asyncio.Task[None]] = []
    open_generators: list[Any] = []
    with silence(caplog, capfd):
        loop = VirtualLoop(order=RandomOrder(1))
        with pytest.raises(Deadlock):
            loop.run_until_complete(main())
        unstarted = loop.create_task(careful())
        loop.close()
        assert log == ["cleaned up", "generator closed"]
        assert tasks[0].cancelled()
        assert unstarted.cancelled()
        assert loop.is_closed()
        loop.close()  # twice is fine
        tasks.clear()
        del unstarted, loop


@pytest.mark.parametrize("pause_s", [0, 1, float("inf")])
def test_closing_gives_up_on_a_task_that_will_not_end(
    pause_s: float, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    log: Log = []

    async def immortal() -> None:
        try:
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(pause_s)
        finally:
            log.append("closed")

    with silence(caplog, capfd):
        loop = VirtualLoop()
        task = loop.create_task(immortal())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        assert loop.is_closed()
        assert loop.steps < 20_000
        assert log == ["closed"]
        del loop, task


def test_closing_ends_async_generators_in_order_of_their_start() -> None:
    log: Log = []

    async def generator(n: int) -> Any:
        try:
            yield
        finally:
            log.append(n)

    async def main() -> None:
        generators.extend(generator(n) for n in range(20))
        for opened in generators:
            await anext(opened)

    generators: list[Any] = []
    run(main())
    assert log == list(range(20))


def test_closing_logs_what_fails_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    async def clumsy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("while cleaning up")

    loop = VirtualLoop()
    loop.create_task(clumsy())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert [record.getMessage().splitlines()[0] for record in caplog.records] == ["Task-1 failed while the loop closed"]


def test_a_loop_that_is_dropped_without_being_closed_warns_and_runs_nothing() -> None:
    log: Log = []

    async def careful() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cleaned up")

    loop = VirtualLoop()
    task = loop.create_task(careful())
    loop.run_until_idle()
    with pytest.warns(ResourceWarning, match="unclosed event loop"):
        loop.__del__()
    assert loop.is_closed()
    assert log == []
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_closed_loop_takes_no_more_work() -> None:
    loop = VirtualLoop()
    loop.close()
    for schedule in (loop.call_soon, lambda callback: loop.call_later(1, callback)):
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            schedule(print)
