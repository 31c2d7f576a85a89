"""A world in real time: the same client, balancer, transport, sessions and faults, on servers with a real engine."""

import asyncio
import random
import selectors
import time
from collections.abc import Callable
from typing import Any

from gpu_checks.points import Answer, Points, Recorder, RequestKey
from gpu_checks.real_server import RealRolloutServer, Vocabulary
from sim.case import Case
from sim.clock import NS_PER_S
from sim.events import WorldEnded
from sim.faults import Stage, Triggers
from sim.servers.server import Model
from sim.sut.interface import Sut
from sim.transport.wire import Wire
from sim.world import World
from sim.world.world import _log_tap

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

    deviations: tuple[Any, ...] = ()

    def __init__(self, speed: float = DEFAULT_SPEED) -> None:
        super().__init__(_FasterSelector(speed))
        self._speed = speed
        self._start_s = time.monotonic()
        self._zero_ns = 0

    def time(self) -> float:
        return (time.monotonic() - self._start_s) * self._speed

    @property
    def now_ns(self) -> int:
        """Nanoseconds of this loop's time."""
        return int(self.time() * NS_PER_S)

    def call_at_ns(self, when_ns: int, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """`call_at`, in nanoseconds."""
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


class _RecordedWire(Wire):
    """Takes down the messages to the balancer."""

    recorder: Recorder
    choices: SeededChoices

    def _deliver_message(self, handle: Any, name: str, *rest: Any) -> None:
        self.recorder.note(*message_point(name, rest))
        self.choices.run(super()._deliver_message, handle, name, *rest)


def message_point(name: str, rest: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a message is called: its kind, and the turn on whose behalf it was sent."""
    turn = rest[-1]
    return ("message", name) if turn is None else ("message", name, turn.session, turn.turn)


class RealWorld(World):
    """One run of a Case with one system under test on real engines. `points`: what happened, in order."""

    def __init__(self, case: Case, sut: Sut, engines: list[Any], loop: RealLoop, vocabulary_size: int) -> None:
        self._real_loop = loop
        self._engines = engines
        self._vocabulary = Vocabulary(vocabulary_size)
        self._started_ns = 0
        self._wire: Wire | None = None
        self._recorder = Recorder(lambda: loop.now_ns - self._started_ns)
        self.answers: dict[RequestKey, Answer] = {}
        super().__init__(case, sut)

    @property
    def points(self) -> Points:
        return self._recorder.points

    def run(self) -> Any:
        """Runs to the end, or to the bound of time; which of them is the trace's last event."""
        loop, trace = self._real_loop, self.trace
        self._started_ns = loop.now_ns
        loop.set_exception_handler(self._unhandled)
        try:
            with _log_tap.tapped(self._heard):
                reason = loop.run_until_complete(self._bounded())
            self._show_rest()
            trace.seal(WorldEnded(loop.now_ns, reason))
        finally:
            loop.set_exception_handler(None)
        return trace

    async def _bounded(self) -> Any:
        for engine in self._engines:
            await engine.resume_generation()
        bound_s = self._bounds.virtual_s + ENGINE_TIME_S * self._real_loop._speed
        try:
            async with asyncio.timeout(bound_s):
                await self._main()
                await self._quiet()
        except TimeoutError:
            await self._clear_up()
            return "horizon"
        return "done"

    async def _quiet(self) -> None:
        """Until every call and message has come to its end."""
        assert self._balancer is not None
        assert self._wire is not None
        while self._wire.calls_under_way or self._balancer.messages_in_flight:
            await asyncio.sleep(_QUIET_POLL_S)

    async def _clear_up(self) -> None:
        """Leaves the engines idle for the next case."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if task.get_coro().__qualname__.startswith(("World.", "RealWorld.", "RealRolloutServer.", "Wire.", "act")):  # type: ignore[union-attr]
                task.cancel()
        for engine in self._engines:
            await engine.pause_generation(mode="abort")
            await engine.resume_generation()

    def _make_loop(self) -> Any:
        return self._real_loop

    def _make_wire(self, triggers: Triggers) -> Wire:
        wire = _RecordedWire(self.case.transport, self._loop, self.trace, triggers)
        wire.recorder = self._recorder
        wire.choices = SeededChoices(self.case.seed)
        self._wire = wire
        return wire

    def _make_server(self, replica: int, model: Model, triggers: Triggers) -> Any:
        return RealRolloutServer(
            replica,
            self.case.server,
            self.case.budget,
            self._engines[replica],
            self._loop,
            self.trace,
            model,
            triggers,
            self.case,
            self._recorder,
            self._vocabulary,
            self.answers,
        )

    async def _run_fault(self, stage: Stage, index: int, fault: Any, acting: "list[asyncio.Task[None]]") -> None:
        await stage.triggers.wait(fault.at)
        self._recorder.note("fired", index)
        await super()._run_fault(stage, index, fault, acting)
