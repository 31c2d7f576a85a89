"""The simulation again, led through the points that were observed on a real engine.

Everything in it is the fake's own: grants, ends, aborts, gate, versions. Only when requests end and faults act is
taken from the observation, and how far an aborted request had come.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from gpu_checks.points import AnswerFigures, Leader, Points, RequestKey, key_of, note_answer
from gpu_checks.real_world import SeededChoices, message_point
from sim.case import Case, Schedule
from sim.clock import Order
from sim.engine import Engine, EngineConfig
from sim.engine.latency import Constant
from sim.engine.port import Burst, DecodeEngine, Left, Moment, Stale
from sim.engine.timed import TimedEngine
from sim.servers.port import Instead, MakeServer, RolloutServer, ServerParts
from sim.sut.framework import Sut
from sim.trace import Trace
from sim.transport.wire import TurnInProgress, Wire
from sim.world import World
from sim.world.bounds import WorldBounds
from sim.world.ports import Ports, virtual_loop

_FAR_NS = 2**40
"""Longer than any response takes at a nanosecond a token."""

_ROOM_TOKENS = 2**24
"""More than any response has, so that nothing but its limit ends it."""


class HoldingEngine:
    """A fake engine that is always done already, and shows of each request only what the observation allows.

    `admitted` is called with each request before it is added, and may say of it what is held back.
    Of a request that was aborted, the tokens that it had; of any other, all, and its end once that is due. Where the
    engine ends a request short of that, it ends at once: the difference is what the check is for.
    """

    def __init__(self, engine: DecodeEngine, admitted: Callable[[int], None] = lambda _: None) -> None:
        self.held_tokens: dict[int, int] = {}
        """Requests that are going to be aborted: the tokens they come to."""
        self.awaiting_end: set[int] = set()
        """Requests whose end is not due yet."""
        self._engine = engine
        self._admitted = admitted
        self._now_ns = 0
        """The engine's own time: it has always done all that it can."""
        self._decoded: dict[int, int] = {}
        self._shown: dict[int, int] = {}
        self._finish: dict[int, Any] = {}

    def add(
        self,
        now_ns: int,
        request: int,
        prompt_ids: Sequence[int],
        max_tokens: int,
        stop_after: int | None,
        output_base: int | None = None,
        priority: int = 0,
    ) -> None:
        del now_ns
        self._admitted(request)
        self._engine.add(self._now_ns, request, prompt_ids, max_tokens, stop_after, output_base, priority)
        self._decoded[request] = self._shown[request] = 0
        self._run_engine()

    def _run_engine(self) -> None:
        self._now_ns += _FAR_NS
        for burst in self._engine.flush(self._now_ns):
            self._decoded[burst.request] += burst.tokens
            self._finish[burst.request] = burst.finish

    def watch(self, request: int, tokens: int) -> None:
        """Nothing to do: all moments are at hand."""

    def abort(self, request: int) -> Left:
        self._engine.abort(request)
        del self._shown[request]
        return Left(0, None)

    def pause(self, now_ns: int, mode: Literal["wait", "keep"] = "wait") -> None:
        del now_ns, mode
        self._engine.pause(self._now_ns)

    def resume(self, now_ns: int) -> None:
        del now_ns
        self._engine.resume(self._now_ns)
        self._run_engine()

    def step_end_ns(self, now_ns: int) -> None:
        """It is between steps, always."""

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return self._engine.reset_prefix_cache(reset_running_requests)

    def set_weight_version(self, version: int) -> Stale:
        self._engine.set_weight_version(version)
        return Stale(0, 0)

    stuck: str | None = None

    def start(self, now_ns: int) -> None:
        """Nothing to do: it has started and ended."""

    def next_moment(self) -> Moment | None:
        return Moment(0, False) if self._to_show() else None

    def _to_show(self) -> list[Burst]:
        bursts = []
        for request, shown in self._shown.items():
            decoded, finish = self._decoded[request], self._finish.get(request)
            held = self.held_tokens.get(request)
            if held is not None and held <= decoded:
                decoded, finish = held, None
            elif request in self.awaiting_end:
                finish = None
            if decoded > shown or finish is not None:
                bursts.append(Burst(request, decoded - shown, finish))
        return bursts

    def flush(self, now_ns: int) -> list[Burst]:
        del now_ns
        bursts = self._to_show()
        for request, tokens, finish, _ in bursts:
            self._shown[request] += tokens
            if finish is not None:
                del self._shown[request]
        return bursts

    advance = flush


def _feed(late: "asyncio.Future[Any]", call: Callable[[], "asyncio.Future[Any]"]) -> None:
    """Makes a call, and has a future that was given out before come out as it does."""
    try:
        answer = call()
    except Exception as error:
        late.set_exception(error)
    else:
        answer.add_done_callback(lambda done: None if late.done() else _settle(late, done))


def _settle(late: "asyncio.Future[Any]", done: "asyncio.Future[Any]") -> None:
    error = None if done.cancelled() else done.exception()
    if done.cancelled():
        late.cancel()
    elif error is not None:
        late.set_exception(error)
    else:
        late.set_result(done.result())


ROOMY = EngineConfig(
    num_gpu_blocks=_ROOM_TOKENS,
    block_size=16,
    max_num_seqs=1024,
    max_num_batched_tokens=8192,
    max_model_len=_ROOM_TOKENS,
)


def roomy_engine() -> DecodeEngine:
    """The fake engine, in which nothing but its limit ends a request."""
    return TimedEngine(Engine(ROOMY), Constant(1))


class LedWorld:
    """One simulated run of a Case through observed points. `leader.missed`: where it left them.

    `make_engine`: the fake engine under the holds.
    """

    def __init__(
        self, case: Case, sut: Sut, points: Points, make_engine: Callable[[], DecodeEngine] = roomy_engine
    ) -> None:
        self.answers: dict[RequestKey, AnswerFigures] = {}
        self._points = points
        self._make_engine = make_engine
        self._choices = SeededChoices(case.seed)
        # Times are the observed ones, and nothing but the points decides what comes first.
        settings = msgspec.structs.replace(case.server, admission_s=0.0, prefill_s=0.0)
        case = msgspec.structs.replace(case, server=settings, schedule=Schedule())
        ports = Ports(
            make_loop=self._make_loop,
            make_network=partial(Wire, deliver=self._deliver),
            make_server=self._make_server,
            fault_is_due=partial(self._turn, "fired"),
        )
        self._world = World(case, sut, ports=ports)
        self.leader = Leader(points, self._world.loop)

    def run(self) -> Trace:
        return self._world.run()

    def _make_loop(self, case: Case, order: Order, bounds: WorldBounds) -> Any:
        loop = virtual_loop(case, order, bounds)
        if self._points.order:
            assert loop.until_ns is not None
            loop.until_ns += self._points.order[-1].t_ns
        return loop

    async def _turn(self, kind: str, which: int) -> None:
        await self.leader.turn(kind, which)

    def _deliver(self, name: str, turn: TurnInProgress | None, handle_it: Callable[[], None]) -> None:
        """Messages reach the balancer in the observed order."""
        self.leader.when(lambda: self._choices.run(handle_it), *message_point(name, turn))

    def _make_server(self, own: MakeServer, parts: ServerParts) -> RolloutServer:
        """A fake server whose doings wait for their points."""
        trace, leader, replica = self._world.trace, self.leader, parts.replica

        def admitted(number: int) -> None:
            key = key_of(trace, number)
            if key in self._points.held_tokens:
                holding.held_tokens[number] = self._points.held_tokens[key]
            elif leader.expects("ended", *key):
                holding.awaiting_end.add(number)
                leader.when(partial(let_end, number), "ended", *key)

        def let_end(number: int) -> None:
            holding.awaiting_end.discard(number)
            server.book()

        holding = HoldingEngine(self._make_engine(), admitted)
        gate: Any = Instead(parts.gate, settled=partial(self._turn, "cut", replica))
        server = own(dataclasses.replace(parts, engine=holding, gate=gate))

        def generate(request: int, *args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
            key = key_of(trace, request)
            late: asyncio.Future[Any] = parts.clock.create_future()
            late.add_done_callback(partial(note_answer, self.answers, key))
            call = partial(server.generate, request, *args, **kwargs)
            leader.when(partial(_feed, late, call), "arrived", *key)
            return late

        async def abort_all(**how: bool) -> list[str]:
            if parts.settings.has_gate:
                await leader.turn("closed", replica)
            return await server.abort_all(**how)

        async def resume() -> None:
            await leader.turn("resumed", replica)
            await server.resume()

        async def abort_request(request_id: str, **how: bool) -> bool:
            await leader.turn("named", replica)
            return await server.abort_request(request_id, **how)

        async def set_weight_version(version: int) -> None:
            await leader.turn("version", replica)
            await server.set_weight_version(version)

        led: Any = Instead(
            server,
            generate=generate,
            abort_all=abort_all,
            resume=resume,
            abort_request=abort_request,
            set_weight_version=set_weight_version,
        )
        return led  # type: ignore[no-any-return]
