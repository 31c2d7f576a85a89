"""A world in real time: the same client, balancer, transport, sessions and faults, on servers with a real engine."""

import asyncio
import random
import selectors
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from gpu_checks.points import AnswerFigures, Points, Recorder, RequestKey
from gpu_checks.real_server import NO_ENGINE, RealRolloutServer, Vocabulary
from sim.case import Case
from sim.clock import NS_PER_S
from sim.events import WorldEnded
from sim.servers.port import MakeServer, RolloutServer, ServerParts
from sim.servers.server import SimulatedServer
from sim.sut.framework import Sut
from sim.trace import Trace
from sim.transport.wire import TurnInProgress, Wire
from sim.world import World
from sim.world.ports import Ports
from sim.world.warnings import warnings_heard

DEFAULT_SPEED = 10.0
"""Seconds of the world in a second: clients wait a whole second after each abort, and no outcome depends on it."""

ENGINE_TIME_S = 120.0
"""What a run may take in real seconds, on top of its waits, before it counts as stuck."""

_QUIET_POLL_S = 0.02


class _FasterSelector(selectors.DefaultSelector):
    """Waits shorter by a factor."""

    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def select(self, timeout: float | None = None) -> Any:
        return super().select(None if timeout is None else timeout / self._speed)


class RealLoop(asyncio.SelectorEventLoop):
    """An ordinary event loop with the clock that worlds expect; its time runs `speed` times as fast as ours."""

    def __init__(self, speed: float = DEFAULT_SPEED) -> None:
        super().__init__(_FasterSelector(speed))
        self.speed = speed
        self._start_s = time.monotonic()

    def time(self) -> float:
        return (time.monotonic() - self._start_s) * self.speed

    @property
    def now_ns(self) -> int:
        """Nanoseconds of this loop's time."""
        return int(self.time() * NS_PER_S)

    def call_at_ns(
        self, when_ns: int, callback: Callable[..., object], *args: Any, last: bool = False
    ) -> asyncio.TimerHandle:
        """`call_at`, in nanoseconds. What is `last` at an instant is nothing that real time could say."""
        del last
        return self.call_at(when_ns / NS_PER_S, callback, *args)


class SeededChoices:
    """The global `random` that a balancer draws from: a stream of its own, whatever else draws in this process."""

    def __init__(self, seed: int) -> None:
        self._state = random.Random(seed).getstate()

    def run(self, call: Callable[..., None], *args: Any) -> None:
        kept = random.getstate()
        random.setstate(self._state)
        try:
            call(*args)
        finally:
            self._state = random.getstate()
            random.setstate(kept)


def message_point(name: str, turn: TurnInProgress | None) -> tuple[Any, ...]:
    """What a message is called: its kind, and the turn on whose behalf it was sent."""
    return ("message", name) if turn is None else ("message", name, turn.session, turn.turn)


class RealWorld:
    """One run of a Case with one system under test on real engines. `points`: what happened, in order."""

    def __init__(self, case: Case, sut: Sut, engines: list[Any], loop: RealLoop, vocabulary_size: int) -> None:
        self.answers: dict[RequestKey, AnswerFigures] = {}
        self._loop = loop
        self._engines = engines
        self._vocabulary = Vocabulary(vocabulary_size)
        self._started_ns = 0
        self._recorder = Recorder(lambda: loop.now_ns - self._started_ns)
        self._choices = SeededChoices(case.seed)
        self._tasks_of_others: set[asyncio.Task[Any]] = set()
        ports = Ports(
            make_loop=lambda *_: loop,
            make_network=partial(Wire, deliver=self._deliver),
            make_server=self._make_server,
            make_engine=lambda _case: NO_ENGINE,
            fault_is_due=self._note_fault,
        )
        self._world = World(case, sut, ports=ports)

    @property
    def points(self) -> Points:
        return self._recorder.points

    def run(self) -> Trace:
        """Runs to the end, or to the bound of time; which of them is the trace's last event."""
        loop, world = self._loop, self._world
        self._started_ns = loop.now_ns
        loop.set_exception_handler(world.unhandled)
        try:
            with warnings_heard(world.heard):
                reason = loop.run_until_complete(self._bounded())
            world.show_rest()
            world.trace.seal(WorldEnded(loop.now_ns, reason))
        finally:
            loop.set_exception_handler(None)
        return world.trace

    async def _bounded(self) -> Literal["done", "horizon"]:
        self._tasks_of_others = asyncio.all_tasks()
        for engine in self._engines:
            await engine.resume_generation()
        bound_s = self._world.bounds.virtual_s + ENGINE_TIME_S * self._loop.speed
        try:
            async with asyncio.timeout(bound_s):
                await self._world.main()
                while not self._world.is_quiet:
                    await asyncio.sleep(_QUIET_POLL_S)
        except TimeoutError:
            await self._clear_up()
            return "horizon"
        return "done"

    async def _clear_up(self) -> None:
        """Leaves the engines idle for the next case."""
        for task in asyncio.all_tasks() - self._tasks_of_others:
            task.cancel()
        for engine in self._engines:
            await engine.pause_generation(mode="abort")
            await engine.resume_generation()

    def _deliver(self, name: str, turn: TurnInProgress | None, handle_it: Callable[[], None]) -> None:
        self._recorder.note(*message_point(name, turn))
        self._choices.run(handle_it)

    def _make_server(self, own: MakeServer, parts: ServerParts) -> RolloutServer:
        assert own is SimulatedServer, "a server that is wrong on purpose has no real engine"
        engine = self._engines[parts.replica]
        return RealRolloutServer(
            parts, engine, self._world.trace, self._world.case, self._recorder, self._vocabulary, self.answers
        )

    async def _note_fault(self, fault: int) -> None:
        self._recorder.note("fired", fault)
