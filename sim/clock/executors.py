"""Executors without threads: a job runs inline, as a step of the loop, and its result is delivered in a later one.

Reads private names of `concurrent.futures` executors, which do not say otherwise how many workers they have and whether
they are shut down.
"""

import asyncio
import concurrent.futures
import contextvars
import functools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class InlineJobs:
    """What a loop does in place of its executors' threads.

    An executor of one worker keeps its jobs in order; with more, the order of the loop decides.
    """

    def __init__(self) -> None:
        self._lanes: weakref.WeakKeyDictionary[concurrent.futures.Executor, deque[Callable[[], None]]] = (
            weakref.WeakKeyDictionary()
        )

    def submit(
        self, loop: asyncio.AbstractEventLoop, executor: concurrent.futures.Executor | None, func: Callable[[], T]
    ) -> asyncio.Future[T]:
        """Run `func` at a later step. It sees what it would see in a thread: a fresh context, no running loop."""
        if getattr(executor, "_shutdown", False):
            raise RuntimeError("cannot schedule new futures after shutdown")
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        job = functools.partial(_run, loop, outcome, func)
        if executor is not None and getattr(executor, "_max_workers", None) == 1:
            lane = self._lanes.setdefault(executor, deque())
            lane.append(job)
            loop.call_soon(lambda: lane.popleft()())
        else:
            loop.call_soon(job)
        return asyncio.wrap_future(outcome, loop=loop)


def _run(loop: asyncio.AbstractEventLoop, outcome: concurrent.futures.Future[Any], func: Callable[[], Any]) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
    asyncio._set_running_loop(None)
    try:
        result = contextvars.Context().run(func)
    except KeyboardInterrupt:  # meant for the run, not for the job
        raise
    except BaseException as error:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
    finally:
        asyncio._set_running_loop(loop)
