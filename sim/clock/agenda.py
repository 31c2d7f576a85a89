"""What is timed: SimPy's heap of events, with asyncio's timers among them.

There is one heap for both, so that a timer and a SimPy event that are due at one instant are a tie, which the schedule
decides. SimPy has no public way to look at what is due, to take it, or to move the clock without running an event: its
private names stand in this file and in no other.
"""

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

import simpy
from simpy.events import NORMAL

LAST = NORMAL + 1
"""Priority of what comes when all else at its instant has happened. SimPy's own are URGENT = 0 and NORMAL = 1."""

_FEW = 200  # entries that are not worth a sweep


class Timer(asyncio.TimerHandle):
    """asyncio's timer, told apart from SimPy's events by its type."""

    __slots__ = ()
    _cancelled: bool  # CPython's


class Agenda:
    """The events and timers of an environment that are still to come."""

    def __init__(self, env: simpy.Environment) -> None:
        self.entries: list[Any] = env._queue
        """SimPy's own heap, of (time in ns, priority, serial number, event or timer)."""
        self._env = env
        self._sweep_beyond = _FEW

    def add(self, timer: Timer, when_ns: int, priority: int = NORMAL) -> None:
        """A time in the past is now.

        Cancelled timers stay until the heap has doubled: a `wait_for` leaves one behind for its whole timeout.
        """
        env, entries = self._env, self.entries
        now_ns = env._now
        heappush(entries, (when_ns if when_ns > now_ns else now_ns, priority, next(env._eid), timer))
        if len(entries) > self._sweep_beyond:
            self._keep(lambda event: type(event) is not Timer or not event._cancelled)
            self._sweep_beyond = max(_FEW, 2 * len(entries))

    def first(self) -> Any:
        """The first entry, or None: nothing is timed. Cancelled timers before it are dropped."""
        entries = self.entries
        while entries and type(entries[0][3]) is Timer and entries[0][3]._cancelled:
            heappop(entries)
        if not entries:
            return None
        if type(entries[0][0]) is not int:
            raise TypeError(f"virtual time is whole nanoseconds, but a SimPy event is due at {entries[0][0]!r}")
        return entries[0]

    def move_clock(self, when_ns: int) -> None:
        assert when_ns >= self._env._now, "virtual time never goes back"
        self._env._now = when_ns

    def drop_timers(self) -> None:
        """SimPy's events stay."""
        self._keep(lambda event: type(event) is not Timer)

    def _keep(self, wanted: Callable[[Any], bool]) -> None:
        self.entries[:] = [entry for entry in self.entries if wanted(entry[3])]  # in place: SimPy holds the list too
        heapify(self.entries)
