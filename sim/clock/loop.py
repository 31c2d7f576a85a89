"""An asyncio event loop on a SimPy clock.

Virtual time is an integer number of nanoseconds in `simpy.Environment.now`, so sums of delays are exact. It moves only
when nothing is ready, straight to the next timer or SimPy event.

Whatever becomes ready at one instant (callbacks, due timers, SimPy events) stands in one list, in order of arrival, and
an `Order` picks what runs next: ties between a client and a server are a choice of the schedule, never an accident of a
heap. The picks that were not first in line are recorded; `FifoExcept(loop.deviations)` runs the same schedule again.

Timeouts, TaskGroup, context variables and async generators come from CPython itself: `VirtualLoop` subclasses
`asyncio.BaseEventLoop` and replaces only what touches the clock, the selector or a thread. The C-accelerated Task and
Future call back into `call_soon`, so a loop written from scratch would be slower and less faithful. The price is that
this file overrides private methods of CPython's loop and uses its private fields, which a new version may change.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import itertools
import math
import sys
import threading
from array import array
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop
from typing import Any, TypeVar, TypeVarTuple

import simpy
from simpy.events import NORMAL

from sim.clock.agenda import LAST, Agenda, Timer
from sim.clock.endings import Deadlock, Horizon, StepCap, Waiting
from sim.clock.executors import InlineJobs
from sim.clock.names import callback_name, waits_on
from sim.clock.nanoseconds import NS_PER_S, to_ns
from sim.clock.orders import Deviation, Fifo, Order
from sim.clock.refusals import NothingOutside
from sim.clock.tasks import Future, OrderedWeakSet, Task

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Replacement = tuple[Any, str, Any]
"""(module or class, name in it, what stands there while a world runs)."""

_FIFO = Fifo()
_CENSUS_STEPS = 1000  # how many of the last steps before a StepCap are counted by name
_CENSUS_NAMES = 5  # how many of the names it tells
_CLOSE_STEPS = 10_000  # what closing a loop may spend on the tasks that are left
_CLOSE_ROUNDS = 3  # how often it cancels a task that carries on regardless


class VirtualLoop(NothingOutside):
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
        order: Order = _FIFO,
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
        self.numbers = itertools.count()  # what its tasks and futures hash by
        self._agenda = Agenda(self.env)
        self._choose = order.chooser()
        # Both keep the order of arrival; taking from the middle is faster in a list, from the left in a deque.
        self._ready: Any = deque() if self._choose is None else []
        self._keeps_deviations = keeps_deviations
        self._deviation_steps = array("q")
        self._deviation_picks = array("q")
        self._step_limit = max_steps_per_instant
        self._census: Counter[str] | None = None  # names of the steps since the cap came close
        self._idle_ends_run = False
        self._closing = False
        self._task_numbers = itertools.count(1)
        self._jobs = InlineJobs()
        self._asyncgens = OrderedWeakSet()

    # -- time and timers

    @property
    def now_ns(self) -> int:
        """Virtual time in nanoseconds."""
        return self.env._now  # type: ignore[return-value]  # is whole; `env.now` would take twice as long

    def time(self) -> float:
        """Virtual time in seconds."""
        return self.now_ns / NS_PER_S

    def replacements(self) -> tuple[Replacement, ...]:
        """What `tamed` is to replace for this loop beside what it does for any."""
        return ()

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As in asyncio; infinity is a timer that never fires, NaN a ValueError."""
        when_ns = None if delay == math.inf else self.now_ns + to_ns(delay)
        return self._timer(when_ns, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As in asyncio; `when` is in seconds, rounded to the nearest nanosecond."""
        return self._timer(None if when == math.inf else to_ns(when), callback, args, context)

    def call_at_ns(
        self,
        when_ns: int,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        last: bool = False,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """`call_at`, in nanoseconds. `last`: once all else at that instant has happened, what it led to included."""
        return self._timer(when_ns, callback, args, context, LAST if last else NORMAL)

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
            return Timer(math.inf, callback, args, self, context)
        timer = Timer(when_ns / NS_PER_S, callback, args, self, context)
        self._agenda.add(timer, when_ns, priority)
        return timer

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
        ready, entries, choose = self._ready, self._agenda.entries, self._choose
        now_ns = self.now_ns
        if entries and entries[0][0] <= now_ns and entries[0][1] <= NORMAL:
            self._take_due(now_ns, NORMAL)
        if not ready and not self._stopping:
            self._advance()
            now_ns = self.now_ns
        steps_left = self._step_limit - self.steps
        if ready and steps_left < _CENSUS_STEPS:
            self._count_names(steps_left)
        for _ in range(min(len(ready), steps_left)):
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
            if entries and entries[0][0] <= now_ns and entries[0][1] <= NORMAL:
                self._take_due(now_ns, NORMAL)

    def _take_due(self, now_ns: int, lowest_priority: int) -> None:
        """Move what the agenda has due by now into the ready list.

        Urgent events (a process's start, an interrupt) are no ties: SimPy promises that they come before all else at
        their instant, in order, and a process could not be understood without it. They run at once.
        """
        entries, ready = self._agenda.entries, self._ready
        while entries:
            when_ns, priority, _, event = entries[0]
            if when_ns > now_ns or (priority > lowest_priority and when_ns == now_ns):
                return
            if priority < NORMAL:
                if self.steps >= self._step_limit:
                    self._count_names(0)
                self.steps += 1
                self.env.step()
                continue
            heappop(entries)
            if type(event) is not Timer:
                ready.append(asyncio.Handle(self._run_event, (event,), self))
            elif not event._cancelled:
                ready.append(event)

    def _run_event(self, event: simpy.Event) -> None:
        """Let SimPy process an event that was taken off its heap, with SimPy's own treatment of failures."""
        self.env.schedule(event, priority=-1)  # type: ignore[arg-type]  # before anything else
        self.env.step()

    def _advance(self) -> None:
        """Move the clock to the next event that is not cancelled, and make what is due there ready."""
        first = self._agenda.first()
        if first is None:
            if not self._idle_ends_run:
                raise Deadlock(self.now_ns, tuple(Waiting(task.get_name(), waits_on(task)) for task in self._pending()))
            self._stopping = True
            return
        next_ns, priority = first[:2]
        if self.until_ns is not None and next_ns > self.until_ns:
            raise Horizon(next_ns, self.until_ns)
        if next_ns != self.now_ns:
            self._agenda.move_clock(next_ns)
            if not self._closing:
                self._step_limit = self.steps + self.max_steps_per_instant
                self._census = None
        self._take_due(next_ns, priority)

    def _count_names(self, steps_left: int) -> None:
        """Close to the step cap, note what is about to run; at the cap, raise."""
        if self._census is None:
            self._census = Counter()
        if steps_left <= 0:
            ran_most = sorted(self._census.items(), key=lambda item: (-item[1], item[0]))[:_CENSUS_NAMES]
            raise StepCap(self.now_ns, self.max_steps_per_instant, tuple(ran_most))
        self._census.update(callback_name(handle) for handle in itertools.islice(self._ready, steps_left))

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
        runs = not (self._closed or self._closing)
        if self._exception_handler is None and runs and "handle" in context and "exception" in context:
            raise context["exception"]
        super().call_exception_handler(context)

    # -- tasks, futures and executors

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None, **kwargs: Any) -> asyncio.Task[Any]:
        """As in asyncio; Task-3 is the third task of this loop, not of this process."""
        self._check_closed()
        number = next(self._task_numbers)
        if name is None:
            name = f"Task-{number}"
        if self._task_factory is not None:
            return super().create_task(coro, name=name, context=context, **kwargs)
        task = Task(coro, loop=self, name=name, context=context, **kwargs)
        hash(task)  # numbers it now; up to 3.13 CPython does so itself, as it keeps its tasks in a set
        return task

    def create_future(self) -> asyncio.Future[Any]:
        future = Future(loop=self)
        future.maker = sys._getframe(1).f_code
        return future

    def wrap_event(self, event: simpy.Event) -> asyncio.Future[Any]:
        """A future with the outcome of a SimPy event. A failure goes to the future and no longer crashes SimPy."""
        future = Future(loop=self)
        future.maker = f"SimPy {type(event).__name__}"

        def settle(event: simpy.Event) -> None:
            if not event.ok:
                event.defused = True
            if future.done():  # cancelled meanwhile
                return
            if event.ok:
                future.set_result(event.value)
            else:
                future.set_exception(event.value)  # type: ignore[arg-type]

        if event.callbacks is None:  # processed already
            settle(event)
        else:
            event.callbacks.append(settle)
        return future

    def _pending(self) -> list[asyncio.Task[Any]]:
        tasks = [task for task in asyncio.all_tasks(self) if not task.done()]
        return sorted(tasks, key=lambda task: (not isinstance(task, Task), hash(task)))

    def run_in_executor(  # type: ignore[override]
        self, executor: concurrent.futures.Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """As in asyncio, but inline at a later step: there is no thread. See `InlineJobs`."""
        self._check_closed()
        if self._debug:
            self._check_callback(func, "run_in_executor")
        if executor is None:
            self._check_default_executor()
            executor = self._default_executor
        return self._jobs.submit(self, executor, functools.partial(func, *args))

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
        self._agenda.drop_timers()

    def _finish(self, rest: asyncio.Future[Any]) -> None:
        """Run until `rest` is done or will not be."""
        try:
            self.run_until_complete(rest)
        except (Deadlock, StepCap):
            pass
        except Exception as error:
            self.call_exception_handler({"message": "while the loop closed", "exception": error})
