"""What tasks and callbacks are called in reports: no addresses, so the same in every run.

Reads private names of CPython's tasks, futures, handles and `gather`, which have no public way to look inside.
"""

import asyncio
import functools
from typing import Any

import simpy

from sim.clock.tasks import Future

_DEEPEST = 1000  # coroutines that await one another; a limit only for what might await itself


def waits_on(task: asyncio.Task[Any]) -> str:
    """The coroutines that a task stands in, outermost first, and what the innermost one awaits."""
    chain = []
    frame: Any = task.get_coro()
    for _ in range(_DEEPEST):
        if not hasattr(frame, "__qualname__"):
            break
        chain.append(frame.__qualname__)
        frame = getattr(frame, "cr_await", None) or getattr(frame, "gi_yieldfrom", None)
    return " > ".join([*chain, _awaited_name(getattr(task, "_fut_waiter", None))])


def _awaited_name(future: Any) -> str:
    if future is None:
        return "its turn"
    if isinstance(future, asyncio.Task):
        return f"task {future.get_name()}"
    if isinstance(future, Future):
        return f"Future made by {future.maker if isinstance(future.maker, str) else future.maker.co_qualname}"
    if children := getattr(future, "_children", None):
        return f"gather of {', '.join(_awaited_name(child) for child in children if not child.done())}"
    return type(future).__name__


def callback_name(handle: Any) -> str:
    """The task that a handle steps, the SimPy event that it processes, or the function that it calls."""
    callback, args = handle._callback, handle._args
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"{owner.get_name()} ({getattr(owner.get_coro(), '__qualname__', 'task')})"
    if owner is not None and args and isinstance(args[0], simpy.Event):
        return f"SimPy {type(args[0]).__name__}"
    while isinstance(callback, functools.partial):
        callback = callback.func
    return getattr(callback, "__qualname__", type(callback).__name__)
