"""The virtual loop: asyncio's behaviour, on a clock that a test can trust."""

import asyncio
import concurrent.futures
import contextvars
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from typing import Any

import pytest
import simpy

from sim.clock import NS_PER_S, VirtualLoop
from tests.clock.runs import Log, run


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


Scenario = Callable[[Log], Coroutine[Any, Any, Any]]


def log_of(scenario: Scenario, loop: asyncio.AbstractEventLoop) -> Log:
    log: Log = []
    with closing(loop):
        try:
            log.append(("returned", loop.run_until_complete(scenario(log))))
        except Exception as error:
            log.append(("raised", repr(error)))
    return log


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
        loop.call_soon({}.popitem)
        loop.run_until_complete(asyncio.sleep(1))
    assert seen == ["KeyError('popitem(): dictionary is empty')"]


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
