"""Tasks and futures are met in order of creation, not of address."""

import asyncio

from tests.clock.runs import Log, run


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
