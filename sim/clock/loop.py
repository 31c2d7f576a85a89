"""An asyncio event loop on a SimPy clock, and the taming of everything else that is not reproducible.

Virtual time is an integer number of nanoseconds in `simpy.Environment.now`, so sums of delays are exact. It moves only
when nothing is ready, straight to the next timer or SimPy event.

Whatever becomes ready at one instant (callbacks, due timers, SimPy events) stands in one list, in order of arrival, and
an `Order` picks what runs next: ties between a client and a server are a choice of the schedule, never an accident of a
heap. The picks that were not first in line are recorded; `Deviations(loop.deviations)` runs the same schedule again.

Timeouts, TaskGroup, context variables and async generators come from CPython itself: `VirtualLoop` subclasses
`asyncio.BaseEventLoop` and replaces only what touches the clock, the selector or a thread. The C-accelerated Task and
Future call back into `call_soon`, so a loop written from scratch would be slower and less faithful.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import gc
import itertools
import math
import os
import random
import sys
import threading
import time
import uuid
import weakref
from array import array
from asyncio import events
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar, TypeVarTuple

import simpy
from simpy.events import NORMAL

__all__ = [
    "NS_PER_S",
    "Deadlock",
    "Deviation",
    "Deviations",
    "Fifo",
    "Horizon",
    "Order",
    "RandomOrder",
    "StepCap",
    "VirtualLoop",
    "Waiting",
    "tamed",
    "to_ns",
]

NS_PER_S = 1_000_000_000

_LAST = NORMAL + 1
"""SimPy priority of what comes when all else at its instant has happened."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def to_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds, rounded to the nearest. NaN and infinity are a ValueError."""
    if not math.isfinite(seconds):
        raise ValueError(f"a virtual time must be a finite number of seconds, not {seconds!r}")
    return round(seconds * NS_PER_S)


# ---------------------------------------------------------------------------------------------------------------------
# Orders: which of the ready callbacks runs next


class Deviation(NamedTuple):
    """At loop step `step`, ready entry number `pick` ran (0 would be FIFO)."""

    step: int
    pick: int


Chooser = Callable[[int, Sequence[asyncio.Handle]], int]
"""(step, ready entries in order of arrival) → index of the one to run; asked only when there are at least two."""


class Order(Protocol):
    """A policy for the order of ready callbacks. Orders are plain values; what a run draws lives in its chooser."""

    def chooser(self) -> Chooser | None:
        """A fresh chooser for one run, or None: always the first in line."""


@dataclass(frozen=True)
class Fifo:
    """First come, first served, as in asyncio."""

    def chooser(self) -> Chooser | None:
        return None


@dataclass(frozen=True)
class RandomOrder:
    """Each ready callback is as likely as any other to run next; the seed decides."""

    seed: int

    def chooser(self) -> Chooser | None:
        draw = random.Random(self.seed).random
        return lambda _step, ready: int(draw() * len(ready))


@dataclass(frozen=True)
class Deviations:
    """FIFO, except at the listed steps. A pick beyond the end takes the last in line, so a shrunk list stays usable."""

    deviations: tuple[Deviation, ...] = ()

    def __post_init__(self) -> None:
        for deviation in self.deviations:
            step, pick = deviation
            if step < 0 or pick < 0:
                raise ValueError(f"a deviation's step and pick must not be negative, got {deviation!r}")

    def chooser(self) -> Chooser | None:
        if not self.deviations:
            return None
        picks = dict(self.deviations)
        return lambda step, ready: min(picks.get(step, 0), len(ready) - 1)


# ---------------------------------------------------------------------------------------------------------------------
# How a run can end badly


class Waiting(NamedTuple):
    """A task and, outermost first, the coroutines it stands in and what the innermost one awaits."""

    task: str
    waits_on: str


class Deadlock(Exception):
    """Nothing is ready, nothing is timed, and the run is not over."""

    def __init__(self, now_ns: int, waiting: tuple[Waiting, ...]) -> None:
        self.waiting = waiting
        lines = [f"deadlock at {now_ns} ns: nothing is ready and nothing is timed"]
        lines += [f"  {task} waits on {waits_on}" for task, waits_on in waiting] or ["  no task is left"]
        super().__init__("\n".join(lines))


class StepCap(Exception):
    """Too many callbacks ran at one instant: something polls without letting time pass."""

    def __init__(self, now_ns: int, max_steps: int, ran_most: tuple[tuple[str, int], ...]) -> None:
        self.ran_most = ran_most
        lines = [f"more than {max_steps} callbacks at one instant ({now_ns} ns); of the last ones ran most:"]
        lines += [f"  {count} × {name}" for name, count in ran_most]
        super().__init__("\n".join(lines))


class Horizon(Exception):
    """Virtual time would pass `until_ns`. The clock has not moved; raise the horizon and the run can go on."""

    def __init__(self, next_ns: int, until_ns: int) -> None:
        super().__init__(f"the next event is at {next_ns} ns, past the horizon of {until_ns} ns")


# ---------------------------------------------------------------------------------------------------------------------
# What the loop makes


class _Numbered:
    """Hash by serial number, not by address, so that sets of tasks and futures iterate alike in every process.

    The number is given at the first hash. A task is hashed as it registers itself, hence in order of creation.
    A future that the loop did not make, `asyncio.Future()` or what `gather` returns, still hashes by address.
    """

    __slots__ = ()

    def __hash__(self: Any) -> int:
        try:
            return self._serial  # type: ignore[no-any-return]
        except AttributeError:
            self._serial = serial = next(self._loop._serials)
            return serial  # type: ignore[no-any-return]


class _Task(_Numbered, asyncio.Task[Any]):
    __slots__ = ("_serial",)


class _Future(_Numbered, asyncio.Future[Any]):
    __slots__ = ("_maker", "_serial")
    _maker: str | Any  # text, or the code object of the function that made it


class _TimerHandle(asyncio.TimerHandle):
    """A timer. It stands in SimPy's heap itself, and has what SimPy wants of an event there."""

    __slots__ = ()
    _loop: VirtualLoop
    _scheduled: bool  # it stands in SimPy's heap
    _ok = True
    _value = None
    callbacks = property(lambda self: [self._loop._timer_due], lambda _self, _none: None)
    """For whoever steps the environment by hand."""


class _InOrder(weakref.WeakKeyDictionary[Any, None]):
    """A weak set that remembers insertion order; a WeakSet would close async generators in order of address."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


# ---------------------------------------------------------------------------------------------------------------------
# The loop

_CENSUS_STEPS = 1000  # how many of the last steps before a StepCap are counted by name
_CLOSE_STEPS = 10_000  # what closing a loop may spend on the tasks that are left
_CLOSE_ROUNDS = 3  # how often it cancels a task that carries on regardless


class VirtualLoop(asyncio.BaseEventLoop):
    """An asyncio event loop in virtual time.

    `env` is the SimPy environment to live in (a new one by default); its other events and processes run along. Times in
    it must be whole nanoseconds. `order` picks among ready callbacks. `until_ns` may be set at any time.

    Raises out of `run_until_complete`, `run_forever` and `run_until_idle`:
    `StepCap` after `max_steps_per_instant` callbacks without time passing, `Horizon` when time would pass `until_ns`,
    `Deadlock` when nothing can ever happen again (not in `run_until_idle`), and whatever a callback raises,
    unless an exception handler was set.
    """

    # CPython's own, which its type stubs leave out.
    _closed: bool = True  # as far as the finaliser of a refused loop is concerned; __init__ makes it False
    _debug: bool
    _stopping: bool
    _thread_id: int | None
    _timer_cancelled_count: int
    _exception_handler: Any
    _task_factory: Any
    _default_executor: concurrent.futures.Executor | None
    _executor_shutdown_called: bool
    _check_closed: Callable[[], None]
    _check_thread: Callable[[], None]
    _check_default_executor: Callable[[], None]
    _check_callback: Callable[[Any, str], None]

    def __init__(
        self,
        env: simpy.Environment | None = None,
        order: Order = Fifo(),
        *,
        max_steps_per_instant: int = 100_000,
        keeps_deviations: bool = True,
        until_ns: int | None = None,
    ) -> None:
        if env is not None and type(env.now) is not int:
            raise TypeError(f"virtual time is whole nanoseconds, but the environment starts at {env.now!r}")
        if max_steps_per_instant < 1:
            raise ValueError(f"max_steps_per_instant must be at least 1, got {max_steps_per_instant}")
        super().__init__()
        self.env = simpy.Environment() if env is None else env
        self.steps = 0  # ready entries taken so far, and SimPy's urgent events; cancelled entries count too
        self.until_ns = until_ns
        self.max_steps_per_instant = max_steps_per_instant
        # SimPy has no public way to see or take what is due, nor to move the clock without running an event.
        self._queue: list[Any] = self.env._queue
        self._choose = order.chooser()
        # Both keep the order of arrival; taking from the middle is faster in a list, from the left in a deque.
        self._ready: Any = deque() if self._choose is None else []
        self._keeps_deviations = keeps_deviations
        self._deviation_steps = array("q")
        self._deviation_picks = array("q")
        self._step_limit = max_steps_per_instant
        self._census: Counter[str] | None = None
        self._idle_ends_run = False
        self._closing = False
        self._serials = itertools.count()
        self._task_numbers = itertools.count(1)
        self._lanes: weakref.WeakKeyDictionary[concurrent.futures.Executor, deque[Callable[[], None]]] = (
            weakref.WeakKeyDictionary()
        )
        self._asyncgens = _InOrder()

    # -- time and timers

    @property
    def now_ns(self) -> int:
        """Virtual time in nanoseconds."""
        return self.env._now  # type: ignore[return-value]  # only whole numbers get in: _advance sees to it

    def time(self) -> float:
        """Virtual time in seconds."""
        return self.env._now / NS_PER_S

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As in asyncio; infinity is a timer that never fires, NaN a ValueError."""
        if delay is None:
            raise TypeError("delay must not be None")
        when_ns = None if delay == math.inf else self.now_ns + to_ns(delay)
        return self._timer(when_ns, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As in asyncio; `when` is in seconds, rounded to the nearest nanosecond."""
        if when is None:
            raise TypeError("when cannot be None")
        return self._timer(None if when == math.inf else to_ns(when), callback, args, context)

    def call_at_ns(
        self, when_ns: int, callback: Callable[[*Ts], object], *args: *Ts, last: bool = False
    ) -> asyncio.TimerHandle:
        """`call_at`, in nanoseconds. `last`: once all else at that instant has happened, what it led to included."""
        return self._timer(when_ns, callback, args, None, _LAST if last else NORMAL)

    def _timer(
        self,
        when_ns: int | None,
        callback: Callable[..., object],
        args: Any,
        context: contextvars.Context | None,
        priority: int = NORMAL,
    ) -> asyncio.TimerHandle:
        if self._closed:
            self._check_closed()
        if self._debug:
            self._check_thread()
            self._check_callback(callback, "call_at")
        if when_ns is None:
            return _TimerHandle(math.inf, callback, args, self, context)
        handle = _TimerHandle(when_ns / NS_PER_S, callback, args, self, context)
        env = self.env
        now = env._now
        heappush(self._queue, (when_ns if when_ns > now else now, priority, next(env._eid), handle))  # as env.schedule
        handle._scheduled = True
        return handle

    def _timer_due(self, handle: _TimerHandle) -> None:
        handle._scheduled = False
        if handle._cancelled:
            self._timer_cancelled_count -= 1
        else:
            self._ready.append(handle)

    def _timer_handle_cancelled(self, handle: _TimerHandle) -> None:
        """Sweep the heap once most of it is cancelled: a wait_for leaves a timer behind for its whole timeout."""
        if not handle._scheduled:
            return
        self._timer_cancelled_count += 1
        if self._timer_cancelled_count > 100 and 2 * self._timer_cancelled_count > len(self._queue):
            self._drop_timers(lambda handle: handle._cancelled)

    def _drop_timers(self, unwanted: Callable[[_TimerHandle], bool]) -> None:
        keep = []
        for entry in self._queue:
            event = entry[3]
            if type(event) is _TimerHandle and unwanted(event):
                event._scheduled = False
            else:
                keep.append(entry)
        self._queue[:] = keep  # in place: SimPy and _run_once hold the list
        heapify(self._queue)
        self._timer_cancelled_count = sum(type(entry[3]) is _TimerHandle and entry[3]._cancelled for entry in keep)

    # -- ready callbacks

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._debug:
            return super().call_soon(callback, *args, context=context)
        if self._closed:
            self._check_closed()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """`call_soon`; a RuntimeError from another thread, whose timing no seed could reproduce."""
        if self._thread_id not in (None, threading.get_ident()):
            raise RuntimeError("a virtual loop runs in one thread; call_soon_threadsafe was called from another")
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        """Run as many callbacks as are ready now, as asyncio does; which ones is up to the order."""
        ready, queue, choose = self._ready, self._queue, self._choose
        now = self.env._now
        if queue and queue[0][0] <= now and queue[0][1] <= NORMAL:
            self._take_due(NORMAL)
        if not ready and not self._stopping:
            self._advance()
            now = self.env._now
        room = self._step_limit - self.steps
        if ready and room < _CENSUS_STEPS:
            self._count_names(room)
        for _ in range(min(len(ready), room)):
            if choose is None:
                handle = ready.popleft()
            elif len(ready) == 1:
                handle = ready.pop()
            else:
                pick = choose(self.steps, ready)
                assert pick >= 0, f"the order picked entry {pick}"
                handle = ready.pop(pick)
                if pick and self._keeps_deviations:
                    self._deviation_steps.append(self.steps)
                    self._deviation_picks.append(pick)
            self.steps += 1
            if not handle._cancelled:
                handle._run()
            if queue and queue[0][0] <= now and queue[0][1] <= NORMAL:
                self._take_due(NORMAL)

    def _take_due(self, lowest_priority: int) -> None:
        """Move what SimPy has due at this instant into the ready list.

        Urgent events (a process's start, an interrupt) are no ties: SimPy promises that they come before all else at
        their instant, in order, and a process could not be understood without it. They run at once.
        """
        queue, now = self._queue, self.env._now
        while queue:
            when_ns, priority, _, event = queue[0]
            if when_ns > now or (priority > lowest_priority and when_ns == now):
                return
            if priority < NORMAL:
                if self.steps >= self._step_limit:
                    self._count_names(0)
                self.steps += 1
                self.env.step()
                continue
            heappop(queue)
            if type(event) is not _TimerHandle:
                self._ready.append(asyncio.Handle(self._run_event, (event,), self))
            elif event._cancelled:
                self._timer_due(event)
            else:
                event._scheduled = False
                self._ready.append(event)

    def _run_event(self, event: simpy.Event) -> None:
        """Let SimPy process an event that was taken off its heap, with SimPy's own treatment of failures."""
        self.env.schedule(event, priority=-1)  # type: ignore[arg-type]  # before anything else
        self.env.step()

    def _advance(self) -> None:
        """Move the clock to the next event that is not cancelled, and make what is due there ready."""
        queue = self._queue
        while queue and type(queue[0][3]) is _TimerHandle and queue[0][3]._cancelled:
            self._timer_due(heappop(queue)[3])
        if not queue:
            if not self._idle_ends_run:
                raise Deadlock(self.now_ns, self._waiting())
            self._stopping = True
            return
        next_ns, priority = queue[0][:2]
        if type(next_ns) is not int:
            raise TypeError(f"virtual time is whole nanoseconds, but a SimPy event is due at {next_ns!r}")
        if self.until_ns is not None and next_ns > self.until_ns:
            raise Horizon(next_ns, self.until_ns)
        assert next_ns >= self.env._now, "virtual time never goes back"
        if next_ns > self.env._now:
            self.env._now = next_ns
            if not self._closing:
                self._step_limit = self.steps + self.max_steps_per_instant
                self._census = None
        self._take_due(priority)

    def _count_names(self, room: int) -> None:
        """Close to the step cap, note what is about to run; at the cap, raise."""
        if self._census is None:
            self._census = Counter()
        if room <= 0:
            ran_most = sorted(self._census.items(), key=lambda item: (-item[1], item[0]))[:5]
            raise StepCap(self.now_ns, self.max_steps_per_instant, tuple(ran_most))
        self._census.update(_callback_name(handle) for handle in itertools.islice(self._ready, room))

    # -- running

    def run_until_idle(self) -> None:
        """Run until nothing is ready and nothing is timed. Tasks may be left waiting; that is no Deadlock here."""
        self._idle_ends_run = True
        try:
            self.run_forever()
        finally:
            self._idle_ends_run = False

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        """The picks so far that were not first in line."""
        return tuple(map(Deviation, self._deviation_steps, self._deviation_picks))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """As in asyncio, but with no handler set, what a callback raised ends the run instead of going to a log."""
        if self._exception_handler is None and not self._closing and "handle" in context and "exception" in context:
            raise context["exception"]
        super().call_exception_handler(context)

    # -- tasks and futures

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None, **kwargs: Any) -> asyncio.Task[Any]:
        """As in asyncio; Task-3 is the third task of this loop, not of this process."""
        self._check_closed()
        number = next(self._task_numbers)
        if name is None:
            name = f"Task-{number}"
        if self._task_factory is not None:
            return super().create_task(coro, name=name, context=context, **kwargs)
        return _Task(coro, loop=self, name=name, context=context, **kwargs)

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(loop=self)
        future._maker = sys._getframe(1).f_code
        return future

    def wrap_event(self, event: simpy.Event) -> asyncio.Future[Any]:
        """A future with the outcome of a SimPy event. A failure goes to the future and no longer crashes SimPy."""
        future = _Future(loop=self)
        future._maker = f"SimPy {type(event).__name__}"

        def settle(event: simpy.Event) -> None:
            failure = None if event.ok else event.value
            if failure is not None:
                event.defused = True
            if future.done():  # cancelled meanwhile
                return
            if failure is None:
                future.set_result(event.value)
            else:
                future.set_exception(failure)

        if event.callbacks is None:  # processed already
            settle(event)
        else:
            event.callbacks.append(settle)
        return future

    def _waiting(self) -> tuple[Waiting, ...]:
        return tuple(Waiting(task.get_name(), _waits_on(task)) for task in self._pending())

    def _pending(self) -> list[asyncio.Task[Any]]:
        tasks = [task for task in asyncio.all_tasks(self) if not task.done()]
        return sorted(tasks, key=lambda task: (not isinstance(task, _Task), hash(task)))

    # -- executors: no thread; the work is one ready entry, the delivery of its result another

    def run_in_executor(  # type: ignore[override]
        self, executor: concurrent.futures.Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run `func` inline at a later step. It sees what it would see in a thread: a fresh context, no running loop.

        An executor of one worker keeps its jobs in order; with more, the order of the loop decides.
        """
        self._check_closed()
        if self._debug:
            self._check_callback(func, "run_in_executor")
        if executor is None:
            self._check_default_executor()
            executor = self._default_executor
        if getattr(executor, "_shutdown", False):
            raise RuntimeError("cannot schedule new futures after shutdown")
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        job = functools.partial(self._work, outcome, functools.partial(func, *args))
        if executor is not None and getattr(executor, "_max_workers", None) == 1:
            lane = self._lanes.setdefault(executor, deque())
            lane.append(job)
            self.call_soon(lambda: lane.popleft()())
        else:
            self.call_soon(job)
        return asyncio.wrap_future(outcome, loop=self)

    def _work(self, outcome: concurrent.futures.Future[T], func: Callable[[], T]) -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        events._set_running_loop(None)
        try:
            result = contextvars.Context().run(func)
        except KeyboardInterrupt:  # meant for the run, not for the job
            raise
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)
        finally:
            events._set_running_loop(self)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002
        """As in asyncio; there are no threads to wait for."""
        self._executor_shutdown_called = True
        if self._default_executor is not None:
            self._default_executor.shutdown(wait=False)

    # -- closing

    def close(self) -> None:
        """Cancel and finish the tasks that are left, close async generators, then close as asyncio does.

        Bounded: a task that will not end is given up after a few cancellations, quietly. Closing is not part of the
        schedule, so it runs in FIFO order; time may pass. What goes wrong meanwhile is logged, as in `asyncio.run`.
        """
        try:
            if not self._closed and not self._closing and not self.is_running():
                self._wind_up()
        finally:
            super().close()

    def __del__(self) -> None:
        if not self._closed:
            self._closing = True  # a finaliser is no place to run tasks in
            super().__del__()  # warns that it was not closed

    def _wind_up(self) -> None:
        self._closing = True
        self._choose, self._ready, self.until_ns = None, deque(self._ready), None
        self._step_limit, self._census = self.steps + _CLOSE_STEPS, None
        for _ in range(_CLOSE_ROUNDS):  # a task may swallow its cancellation, or start another while it cleans up
            pending = self._pending()
            if not pending:
                break
            for task in pending:
                task.cancel()
            self._finish(asyncio.gather(*pending, return_exceptions=True))
            for task in pending:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    what = f"{task.get_name()} failed while the loop closed"
                    self.call_exception_handler({"message": what, "exception": task.exception(), "task": task})
        if self._asyncgens:
            self._finish(self.create_task(self.shutdown_asyncgens()))
        for task in self._pending():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(Exception):  # it had its chance to clean up
                task.get_coro().close()
        self._drop_timers(lambda _handle: True)

    def _finish(self, rest: asyncio.Future[Any]) -> None:
        """Run until `rest` is done or will not be."""
        try:
            self.run_until_complete(rest)
        except (Deadlock, StepCap):
            pass
        except Exception as error:
            self.call_exception_handler({"message": "while the loop closed", "exception": error})


def _refuse(name: str) -> Any:
    def refused(self: VirtualLoop, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"{name}: a virtual loop has no sockets, pipes, subprocesses, signals or name look-up"
        )

    refused.__name__ = name
    return refused


for _name in (
    *("add_reader", "remove_reader", "add_writer", "remove_writer", "add_signal_handler", "remove_signal_handler"),
    *("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto"),
    *("sock_connect", "sock_accept", "sock_sendfile", "sendfile", "start_tls", "getaddrinfo", "getnameinfo"),
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server"),
    *("create_datagram_endpoint", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe"),
    *("subprocess_exec", "subprocess_shell"),
):
    setattr(VirtualLoop, _name, _refuse(_name))


# ---------------------------------------------------------------------------------------------------------------------
# Text for reports: no addresses, the same in every run


def _waits_on(task: asyncio.Task[Any]) -> str:
    chain = []
    frame: Any = task.get_coro()
    for _ in range(1000):
        if not hasattr(frame, "__qualname__"):
            break
        chain.append(frame.__qualname__)
        frame = getattr(frame, "cr_await", None) or getattr(frame, "gi_yieldfrom", None)
    return " > ".join([*chain, _target(getattr(task, "_fut_waiter", None))])


def _target(future: Any) -> str:
    if future is None:
        return "its turn"
    if isinstance(future, asyncio.Task):
        return f"task {future.get_name()}"
    if isinstance(future, _Future):
        maker = future._maker
        return f"Future made by {maker if isinstance(maker, str) else maker.co_qualname}"
    children = getattr(future, "_children", None)
    if children:
        return f"gather of {', '.join(_target(child) for child in children if not child.done())}"
    return type(future).__name__


def _callback_name(handle: Any) -> str:
    callback = handle._callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"{owner.get_name()} ({getattr(owner.get_coro(), '__qualname__', 'task')})"
    if owner is not None and handle._args and isinstance(handle._args[0], simpy.Event):
        return f"SimPy {type(handle._args[0]).__name__}"
    while isinstance(callback, functools.partial):
        callback = callback.func
    return getattr(callback, "__qualname__", type(callback).__name__)


# ---------------------------------------------------------------------------------------------------------------------
# Taming what is global

_EPOCH_NS = 1_704_067_200 * NS_PER_S  # time.time() at virtual time 0: 2024-01-01, so that dates look like dates
_NODE = 0x02_00_00_00_00_01  # uuid1's "network address": locally administered, nobody's
_START_THREAD = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
_STREAM = 0x9E3779B97F4A7C15  # keeps the bytes of os.urandom apart from the global random's


@contextmanager
def tamed(loop: VirtualLoop, seed: int) -> Iterator[None]:
    """While a world runs: clocks show virtual time, and every global source of randomness is drawn from the seed.

    Tamed: `time.time`, `monotonic`, `perf_counter` and their `_ns` forms; `os.urandom` and with it `uuid4` and
    `secrets`; `uuid1`; the global `random` and unseeded `random.Random()`; numpy's global state.
    Garbage collection waits, since finalisers would run at moments that depend on earlier worlds.
    Refused with a RuntimeError: `time.sleep` (it would block virtual time), threads, a second event loop, nested use.
    Not tamed, being C code out of reach: `datetime.now()`, `time.localtime()` without an argument.
    All is restored afterwards; only numpy's cached second normal is dropped.

    uuid4 and secrets are tamed at their root, so a `from uuid import uuid4` made earlier is tamed too; a
    `from time import time` is not.
    """
    from numpy.random import mtrand  # here, not at the top: it takes 0.1 s, and the command line must answer at once

    if isinstance(getattr(os.urandom, "__self__", None), _Entropy):
        raise RuntimeError("a world is running already; tamed() cannot be nested")
    env = loop.env
    entropy = _Entropy(seed)
    draw_bytes = entropy.draw_bytes

    def seed_random(generator: random.Random, a: Any = None, version: int = 2) -> None:
        original_seed(generator, int.from_bytes(draw_bytes(32), "big") if a is None else a, version)

    def monotonic() -> float:
        return env._now / NS_PER_S

    def monotonic_ns() -> int:
        return loop.now_ns

    def wall() -> float:
        return (_EPOCH_NS + env._now) / NS_PER_S

    def wall_ns() -> int:
        return _EPOCH_NS + loop.now_ns

    def sleep(seconds: float, /) -> None:
        if threading.get_ident() == home:
            raise RuntimeError(f"time.sleep({seconds!r}) in a world: it would block virtual time; use asyncio.sleep")
        original_sleep(seconds)

    def start_thread(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == home:
            raise RuntimeError("a thread was started in a world, where no seed could reproduce it; use to_thread")
        return original_start(*args, **kwargs)

    home = threading.get_ident()  # other threads, say a progress bar's, may sleep and start threads as they like
    original_sleep = time.sleep
    original_start = getattr(threading, _START_THREAD)
    original_seed = random.Random.seed
    instance: random.Random = random._inst  # what random.choice and the rest are bound to
    replaced: tuple[tuple[Any, str, Any], ...] = (
        (time, "time", wall),
        (time, "time_ns", wall_ns),
        (time, "monotonic", monotonic),
        (time, "monotonic_ns", monotonic_ns),
        (time, "perf_counter", monotonic),
        (time, "perf_counter_ns", monotonic_ns),
        (time, "sleep", sleep),
        (threading, _START_THREAD, start_thread),
        (asyncio, "new_event_loop", _refuse_loop),
        (events, "new_event_loop", _refuse_loop),  # asyncio.run's
        (os, "urandom", draw_bytes),
        (random, "_urandom", draw_bytes),  # SystemRandom's, and so that of secrets
        (random, "seed", functools.partial(seed_random, instance)),
        (random.Random, "seed", seed_random),
        (uuid, "_generate_time_safe", None),  # uuid1 then takes the time from time.time_ns
        (uuid, "_last_timestamp", None),
        (uuid, "_node", _NODE),
    )
    saved = [getattr(owner, name) for owner, name, _ in replaced]
    saved_random = instance.getstate()
    saved_bits = mtrand.get_bit_generator()
    collecting = gc.isenabled()
    try:
        gc.disable()
        for owner, name, value in replaced:
            setattr(owner, name, value)
        original_seed(instance, seed)
        mtrand.set_bit_generator(_bit_generator())
        mtrand.seed(seed % 2**32)
        yield
    finally:
        for (owner, name, _), value in zip(replaced, saved, strict=True):
            setattr(owner, name, value)
        instance.setstate(saved_random)
        mtrand.set_bit_generator(saved_bits)
        if collecting:
            gc.enable()


class _Entropy:
    """The bytes of os.urandom. The generator is made at the first call: most worlds never ask."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generator: random.Random | None = None

    def draw_bytes(self, size: int, /) -> bytes:
        if self._generator is None:
            self._generator = random.Random(self._seed ^ _STREAM)
        return self._generator.randbytes(size)


@functools.cache
def _bit_generator() -> Any:
    """numpy's global generator while a world runs. Making one takes 80 µs, reseeding 1 µs: it is kept and reseeded."""
    from numpy.random import MT19937

    return MT19937(0)


def _refuse_loop() -> NoReturn:
    raise RuntimeError("a second event loop in a world: asyncio.run would wait in real time for virtual clocks")
