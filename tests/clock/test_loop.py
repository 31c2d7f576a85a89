"""The virtual loop: asyncio's behaviour, on a clock that a test can trust."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import hashlib
import logging
import os
import random
import secrets
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import simpy

from sim.clock import (
    NS_PER_S,
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

Log = list[Any]
Scenario = Callable[[Log], Coroutine[Any, Any, Any]]
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


def log_of(scenario: Scenario, loop: asyncio.AbstractEventLoop) -> Log:
    log: Log = []
    with closing(loop):
        try:
            log.append(("returned", loop.run_until_complete(scenario(log))))
        except Exception as error:
            log.append(("raised", repr(error)))
    return log


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


# -- time


def test_time_is_whole_nanoseconds_and_sums_are_exact() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        for _ in range(1000):
            await asyncio.sleep(0.1)  # as a float, a thousand of these are 99.9999999999986
        return loop.now_ns  # type: ignore[attr-defined]

    assert run(main()) == 100 * NS_PER_S


def test_a_nanosecond_counts_even_after_three_years() -> None:
    async def main() -> None:
        for _ in range(3):
            await asyncio.sleep(1e-9)  # lost if the time were kept as a float

    three_years_ns = 10**17
    with closing(VirtualLoop(simpy.Environment(three_years_ns))) as loop:
        loop.run_until_complete(main())
        assert loop.now_ns == three_years_ns + 3


def test_loop_time_is_in_seconds() -> None:
    async def main() -> float:
        await asyncio.sleep(1.5)
        return asyncio.get_running_loop().time()

    assert run(main()) == 1.5


@pytest.mark.parametrize(("seconds", "ns"), [(0, 0), (1, NS_PER_S), (1e-9, 1), (0.4e-9, 0), (0.1 + 0.2, 300_000_000)])
def test_to_ns_rounds_to_the_nearest(seconds: float, ns: int) -> None:
    assert to_ns(seconds) == ns


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), float("-inf")])
def test_to_ns_refuses_what_is_no_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="finite number of seconds"):
        to_ns(seconds)


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


# -- as in CPython: the same log on asyncio's own loop


async def task_group(log: Log) -> None:
    async def worker(name: str, rounds: int) -> None:
        try:
            for n in range(rounds):
                log.append((name, n))
                await asyncio.sleep(0)
            if rounds == 2:
                raise ValueError(name)
        finally:
            log.append((name, "ends"))

    try:
        async with asyncio.TaskGroup() as group:
            for rounds in (5, 2, 3):
                group.create_task(worker(f"w{rounds}", rounds))
    except* ValueError as caught:
        log.append([str(error) for error in caught.exceptions])


async def cancellation(log: Log) -> str:
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            log.append(("cancelled", error.args))
            await asyncio.sleep(0)
        return "survived"

    task = asyncio.create_task(stubborn())
    never_started = asyncio.create_task(stubborn())
    never_started.cancel()
    await asyncio.sleep(0)
    task.cancel("why")
    log.append(await asyncio.gather(task, never_started, return_exceptions=True) == ["survived", None])
    log.append((never_started.cancelled(), task.cancelling()))
    return await task


async def async_generators(log: Log) -> None:
    async def numbers(name: str) -> Any:
        try:
            for n in range(3):
                yield n
                await asyncio.sleep(0)
        finally:
            log.append((name, "closed"))

    async for n in numbers("whole"):
        log.append(n)
    async for _ in numbers("dropped"):
        break
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    log.append([n async for n in numbers("listed")])


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="default")


async def context_variables(log: Log) -> None:
    async def child() -> None:
        log.append(variable.get())
        variable.set("child")
        await asyncio.sleep(0)
        log.append(variable.get())

    loop = asyncio.get_running_loop()
    variable.set("parent")
    task = asyncio.create_task(child())
    loop.call_soon(lambda: log.append(("callback", variable.get())))
    given = contextvars.Context()
    loop.call_soon(lambda: log.append(("given", variable.get())), context=given)
    await task
    log.append(variable.get())
    log.append(("thread", await asyncio.to_thread(variable.get)))
    log.append(("executor", await loop.run_in_executor(None, variable.get)))


async def synchronisation(log: Log) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
    lock, condition = asyncio.Lock(), asyncio.Condition()

    async def produce() -> None:
        for n in range(5):
            await queue.put(n)
            log.append(("put", n))

    async def consume(name: str) -> None:
        while True:
            n = await queue.get()
            async with lock:
                log.append((name, n))
                await asyncio.sleep(0)
            queue.task_done()
            async with condition:
                condition.notify_all()

    consumers = [asyncio.create_task(consume(name), name=name) for name in "ab"]
    await produce()
    await queue.join()
    log.append(sorted(task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()))
    for consumer in consumers:
        consumer.cancel()
    log.append([type(end).__name__ for end in await asyncio.gather(*consumers, return_exceptions=True)])


async def executor_outcomes(log: Log) -> None:
    loop = asyncio.get_running_loop()

    def fail() -> None:
        raise KeyError("from the job")

    def running_loop() -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError as error:
            return str(error)
        return "there is one"

    log.append(await loop.run_in_executor(None, divmod, 7, 2))
    log.append(await asyncio.to_thread(dict, a=1))
    log.append(await asyncio.to_thread(running_loop))
    for job in (fail, lambda: sys.exit(3)):
        try:
            await asyncio.to_thread(job)
        except BaseException as error:
            log.append(repr(error))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        log.append(await asyncio.gather(*(loop.run_in_executor(pool, pow, n, 2) for n in range(4))))
    try:
        await loop.run_in_executor(pool, pow, 1, 1)
    except RuntimeError as error:
        log.append(str(error))


async def an_error(_log: Log) -> None:
    async def fails() -> None:
        raise LookupError("in a task")

    await asyncio.gather(fails(), asyncio.sleep(0))


@pytest.mark.parametrize(
    "scenario",
    [
        task_group,
        cancellation,
        async_generators,
        context_variables,
        synchronisation,
        executor_outcomes,
        an_error,
    ],
)
def test_logs_the_same_as_on_asyncios_own_loop(scenario: Scenario) -> None:
    expected = log_of(scenario, asyncio.new_event_loop())
    assert len(expected) > 1 or scenario is an_error
    assert log_of(scenario, VirtualLoop()) == expected


def test_asyncio_runner_works_with_it() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(asyncio.sleep(3600, "an hour later")) == "an hour later"


# -- timeouts


def test_timeouts_fire_at_their_time_and_not_a_nanosecond_later() -> None:
    log: Log = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3)
        log.append(loop.time())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.sleep(5)
        log.append(loop.time())
        async with asyncio.timeout(2) as timeout:
            await asyncio.sleep(1)
            timeout.reschedule(loop.time() + 10)
            await asyncio.sleep(9)
        log.append(loop.time())
        assert await asyncio.wait_for(asyncio.sleep(1, "in time"), 2) == "in time"
        log.append(loop.time())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(1), 0)
        for n, next_done in enumerate(asyncio.as_completed([asyncio.sleep(3, "c"), asyncio.sleep(1, "a")])):
            log.append((n, await next_done, loop.time()))

    run(main())
    assert log == [3, 5, 15, 16, (0, "a", 17), (1, "c", 19)]


# -- executors


def test_the_job_of_an_executor_is_a_step_like_any_other() -> None:
    def start(loop: VirtualLoop, log: Log) -> None:
        loop.run_in_executor(None, log.append, "job")
        loop.call_soon(log.append, "callback")

    assert outcomes(start) == {("job", "callback"), ("callback", "job")}


def test_an_executor_of_one_worker_keeps_its_jobs_in_order() -> None:
    async def main(pool: concurrent.futures.Executor) -> Log:
        log: Log = []
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(pool, log.append, n) for n in range(6)))
        return log

    one, many = concurrent.futures.ThreadPoolExecutor(1), concurrent.futures.ThreadPoolExecutor(4)
    assert all(run(main(one), RandomOrder(seed)) == [0, 1, 2, 3, 4, 5] for seed in range(10))
    assert any(run(main(many), RandomOrder(seed)) != [0, 1, 2, 3, 4, 5] for seed in range(10))


def test_a_cancelled_job_runs_if_its_turn_comes_before_the_word_of_it() -> None:
    def start(loop: VirtualLoop, log: Log) -> None:
        loop.run_in_executor(None, log.append, "job").cancel()

    assert outcomes(start) == {("job",), ()}


def test_a_job_runs_in_this_thread() -> None:
    assert run(asyncio.to_thread(threading.get_ident)) == threading.get_ident()


def test_call_soon_threadsafe_is_for_this_thread_only() -> None:
    async def main() -> Log:
        log: Log = []
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(loop.call_soon_threadsafe, log.append, "from a job")

        def elsewhere() -> None:
            try:
                loop.call_soon_threadsafe(log.append, "from a thread")
            except RuntimeError as error:
                log.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        await asyncio.sleep(0)
        return log

    refusal = "a virtual loop runs in one thread; call_soon_threadsafe was called from another"
    assert sorted(run(main())) == [refusal, "from a job"]


def test_debug_mode_works_as_in_asyncio() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TypeError, match=r"coroutines cannot be used with call_soon\(\)"):
            loop.call_soon(main)
        assert await asyncio.wait_for(asyncio.to_thread(pow, 2, 3), 1) == 8

    with closing(VirtualLoop()) as loop:
        loop.set_debug(True)
        loop.run_until_complete(main())


@pytest.mark.parametrize("name", ["add_reader", "create_connection", "subprocess_exec", "getaddrinfo"])
def test_what_needs_the_outside_world_is_refused_by_name(name: str) -> None:
    with closing(VirtualLoop()) as loop, pytest.raises(NotImplementedError, match=f"^{name}: a virtual loop has no"):
        getattr(loop, name)("anything")


# -- runs that end badly


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


def test_what_a_callback_raises_ends_the_run() -> None:
    def bad() -> None:
        raise ZeroDivisionError("in a callback")

    for schedule in (VirtualLoop.call_soon, lambda loop, callback: loop.call_later(1, callback)):
        with closing(VirtualLoop()) as loop:
            schedule(loop, bad)
            with pytest.raises(ZeroDivisionError, match="in a callback"):
                loop.run_until_complete(asyncio.sleep(10))


def test_an_exception_handler_takes_over_as_in_asyncio() -> None:
    seen: Log = []
    with closing(VirtualLoop()) as loop:
        loop.set_exception_handler(lambda _loop, context: seen.append(repr(context["exception"])))
        loop.call_soon(lambda: 1 // 0)
        loop.run_until_complete(asyncio.sleep(1))
    assert seen == ["ZeroDivisionError('integer division or modulo by zero')"]


# -- closing


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


# -- orders and replay


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


def test_the_recorded_deviations_replay_the_schedule_exactly() -> None:
    schedules = set()
    for seed in range(20):
        log, deviations = race_under(RandomOrder(seed))
        assert deviations
        assert race_under(Deviations(deviations)) == (log, deviations)
        schedules.add(repr(log))
    assert len(schedules) == 20


def test_no_deviations_is_fifo() -> None:
    log, deviations = race_under(Fifo())
    assert deviations == ()
    assert race_under(Deviations(())) == (log, ())
    assert race_under(Deviations((Deviation(10**9, 1),))) == (log, ())  # the chooser's path, never deviating


def test_the_same_seed_gives_the_same_schedule() -> None:
    order = RandomOrder(7)  # the order holds no state of a run, so it can be used again
    assert race_under(order) == race_under(order)


def test_a_deviation_says_which_ready_entry_runs() -> None:
    def first_three(*deviations: Deviation) -> str:
        log: list[str] = []
        with closing(VirtualLoop(order=Deviations(deviations))) as loop:
            for name in "abc":
                loop.call_soon(log.append, name)
            loop.run_until_idle()
        return "".join(log)

    assert first_three() == "abc"
    assert first_three(Deviation(0, 2)) == "cab"  # the others keep their order
    assert first_three(Deviation(1, 1)) == "acb"
    assert first_three(Deviation(0, 1), Deviation(1, 1)) == "bca"
    assert first_three(Deviation(0, 99)) == "cab"  # beyond the end: the last in line


def test_deviations_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match=r"must not be negative, got Deviation\(step=3, pick=-1\)"):
        Deviations((Deviation(3, -1),))


def test_an_order_of_ones_own_needs_one_method() -> None:
    class Lifo:
        def chooser(self) -> Any:
            return lambda _step, ready: len(ready) - 1

    log: Log = []
    with closing(VirtualLoop(order=Lifo())) as loop:
        for n in range(3):
            loop.call_soon(log.append, n)
        loop.run_until_idle()
    assert log == [2, 1, 0]


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


# -- SimPy events as futures


def test_a_failed_simpy_event_fails_its_future_and_nothing_else() -> None:
    async def main(loop: VirtualLoop) -> str:
        event = loop.env.event()
        loop.call_later(1, event.fail, OSError("engine died"))
        with pytest.raises(OSError, match="engine died"):
            await loop.wrap_event(event)
        with pytest.raises(OSError, match="engine died"):
            await loop.wrap_event(event)  # long processed
        return await loop.wrap_event(loop.env.timeout(5, "alive"))

    with closing(VirtualLoop()) as loop:
        assert loop.run_until_complete(main(loop)) == "alive"


def test_a_cancelled_future_still_defuses_its_event() -> None:
    with closing(VirtualLoop()) as loop:
        event = loop.env.event()
        loop.wrap_event(event).cancel()
        event.fail(OSError("nobody waits"))
        loop.run_until_idle()


def test_a_failure_in_simpy_that_nobody_waits_for_ends_the_run() -> None:
    with closing(VirtualLoop()) as loop:

        def process() -> Iterator[simpy.Event]:
            yield loop.env.timeout(1)
            raise OSError("unseen")

        loop.env.process(process())
        with pytest.raises(OSError, match="unseen"):
            loop.run_until_complete(asyncio.sleep(1))


def test_a_deadlock_on_simpy_says_so() -> None:
    async def main(loop: VirtualLoop) -> None:
        await loop.wrap_event(loop.env.event())

    with closing(VirtualLoop()) as loop, pytest.raises(Deadlock, match=r"main > Future made by SimPy Event$"):
        loop.run_until_complete(main(loop))


# -- sets of tasks and futures


def test_sets_of_tasks_and_futures_iterate_in_order_of_creation() -> None:
    async def main() -> Log:
        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(asyncio.sleep(1, n)) for n in range(20)]
        done, pending = await asyncio.wait([*tasks[10:], *tasks[:10]])
        assert not pending
        futures = [loop.create_future() for _ in range(20)]
        numbers = {future: n for n, future in enumerate(futures)}
        return [[task.result() for task in done], [numbers[future] for future in set(futures)]]

    assert run(main()) == [list(range(20)), list(range(20))]


def test_tasks_are_named_and_numbered_per_loop() -> None:
    async def main() -> str:
        return (await asyncio.gather(asyncio.create_task(who()), asyncio.create_task(who())))[1]

    async def who() -> str:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name()

    assert run(main()) == run(main()) == "Task-3"


# -- the whole world is tamed


def draws() -> Log:
    """One of everything that a world must not leave to chance."""
    return [
        (time.time(), time.time_ns(), time.monotonic(), time.perf_counter_ns()),
        (uuid4().hex, uuid.uuid1().hex, os.urandom(4), secrets.token_hex(4), secrets.randbelow(1000)),
        (random.random(), random.choice(range(1000)), random.gauss(0, 1), random.Random().random()),
        (random.SystemRandom().random(), np.random.normal(), np.random.randint(1000), np.random.default_rng().random()),
    ]


def draws_in_a_world(seed: int, sleep_s: float = 1) -> Log:
    async def main() -> Log:
        await asyncio.sleep(sleep_s)
        return draws()

    with world(seed) as loop:
        return loop.run_until_complete(main())


def test_a_world_draws_everything_from_its_seed() -> None:
    first = draws_in_a_world(1)
    draws()  # what happens between worlds does not matter
    assert draws_in_a_world(1) == first
    for one, other in zip(first[1:], draws_in_a_world(2)[1:], strict=True):
        assert not set(one) & set(other)


def test_every_clock_shows_virtual_time() -> None:
    (wall, wall_ns, monotonic, perf_ns), *_ = draws_in_a_world(1, sleep_s=2.5)
    assert (monotonic, perf_ns) == (2.5, 2_500_000_000)
    assert wall == 1704067202.5
    assert wall_ns == 1704067202_500_000_000


def test_other_threads_sleep_as_they_like() -> None:
    inside, done = threading.Event(), []

    def progress_bar() -> None:
        inside.wait()
        time.sleep(0)
        done.append("slept")

    thread = threading.Thread(target=progress_bar)
    thread.start()
    with world(1):
        inside.set()
        thread.join()
    assert done == ["slept"]


def test_uuid1_does_not_know_this_machine() -> None:
    with world(1):
        assert uuid.uuid1().node == 0x02_00_00_00_00_01


def test_random_seed_and_numpy_seed_work_inside() -> None:
    expected = random.Random(5).random()
    with world(1):
        random.seed(5)
        assert random.random() == expected
        random.seed()
        unseeded = random.random()
        np.random.seed(5)
        assert np.random.randint(10**9) == np.random.RandomState(5).randint(10**9)
    with world(1):
        random.seed()
        assert random.random() == unseeded


def test_what_would_escape_virtual_time_is_refused() -> None:
    with world(1) as loop:
        with pytest.raises(RuntimeError, match=r"time\.sleep\(3\) in a world: .* use asyncio\.sleep"):
            time.sleep(3)
        with pytest.raises(RuntimeError, match="a thread was started in a world"):
            threading.Thread(target=print).start()
        main = asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="a second event loop in a world"):
            asyncio.run(main)
        main.close()
        with pytest.raises(RuntimeError, match="cannot be nested"), tamed(loop, 2):
            pass
        assert time.time() == 1704067200  # still tamed after the refused nesting


def test_numpys_second_normal_does_not_leak_out_of_a_world() -> None:
    np.random.seed(1)
    expected = np.random.normal(size=3).tolist()
    np.random.seed(1)
    with world(1):
        np.random.normal()  # numpy draws normals in pairs and keeps the second
    assert np.random.normal(size=3).tolist() == expected


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_all_is_restored_whatever_happens_inside(error: type[BaseException] | None) -> None:
    modules = (time, os, random, random.Random, uuid, threading, asyncio, asyncio.events, secrets)
    uuid.uuid1()  # so that its cached node is known
    before = [dict(vars(module)) for module in modules]
    states = random.getstate(), np.random.get_state()[1].tolist()
    try:
        with world(3):
            draws()
            assert not gc.isenabled()
            if error:
                raise error
    except (ValueError, KeyboardInterrupt):
        assert error
    assert [dict(vars(module)) for module in modules] == before
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    assert gc.isenabled()


# -- one digest, everywhere


async def everything(log: Log, changed: bool) -> None:
    """A little of everything whose order or value Python leaves open."""
    await race(log)
    names = {f"session-{n}" for n in range(50)}
    for name in sorted(names):
        await asyncio.sleep(random.choice((0, 0.25)))
        log.append((name, uuid4().hex, random.random(), np.random.randint(100), time.time()))
    crowd = {asyncio.create_task(asyncio.sleep(random.random(), name)) for name in sorted(names)}
    while crowd:
        done, crowd = await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
        log.append([(task.get_name(), task.result()) for task in done] + [task.get_name() for task in crowd])
    orphans = {asyncio.create_task(asyncio.Event().wait()) for _ in range(30)}
    log.append([task.get_name() for task in orphans] + [task.get_name() for task in asyncio.all_tasks()])
    if changed:
        log.append("one event more")


def digest(changed: bool = False) -> str:
    log: Log = []
    with world(12, RandomOrder(11)) as loop:
        loop.run_until_complete(everything(log, changed))
    log.append(loop.deviations)
    return hashlib.sha256(repr(log).encode()).hexdigest()


def test_one_digest_in_four_processes_with_four_hash_seeds_and_after_other_worlds() -> None:
    race_under(RandomOrder(1))  # other worlds ran before this one, and not in the other processes
    here = digest()
    root = Path(__file__).parents[2]
    program = f"import sys; sys.path[:0] = {[str(root), str(root / 'tests' / 'clock')]!r}; import test_loop as t; print(t.digest())"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in (0, 1, 2, 4242)
    ]
    assert {child.communicate()[0].strip() for child in children} == {here}


def test_a_changed_event_changes_the_digest() -> None:
    assert digest() == digest() != digest(changed=True)
