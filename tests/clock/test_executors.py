"""The jobs of executors: steps like any other, in the loop's own thread."""

import asyncio
import concurrent.futures
import threading

from sim.clock import RandomOrder, VirtualLoop
from tests.clock.runs import Log, outcomes, run


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
