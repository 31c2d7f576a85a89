"""The simulation again, led through the points that were observed on a real engine.

Everything in it is the fake's own: grants, ends, aborts, gate, versions. Only when requests end and faults act is
taken from the observation, and how far an aborted request had come.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from gpu_checks.points import Answer, Leader, Points, RequestKey, key_of, note_answer
from gpu_checks.real_world import SeededChoices, message_point
from sim.case import Case, Schedule
from sim.engine import Engine, EngineConfig
from sim.engine.latency import Constant
from sim.engine.timed import TimedEngine
from sim.faults import Stage, Triggers
from sim.servers.decode_engine import Burst, DecodeEngine, Left, Moment, Stale
from sim.servers.server import FakeRolloutServer
from sim.servers.port import Model
from sim.sut.interface import Sut
from sim.trace import Trace
from sim.transport.wire import Wire
from sim.world import World

_FAR_NS = 2**40
"""Longer than any response takes at a nanosecond a token."""

_ROOM_TOKENS = 2**24
"""More than any response has, so that nothing but its limit ends it."""


class HoldingEngine:
    """A fake engine that is always done already, and shows of each request only what the observation allows.

    Of a request that was aborted, the tokens that it had; of any other, all, and its end once that is due. Where the
    engine ends a request short of that, it ends at once: the difference is what the check is for.
    """

    def __init__(self, engine: DecodeEngine) -> None:
        self.held_tokens: dict[int, int] = {}
        """Requests that are going to be aborted: the tokens they come to."""
        self.awaiting_end: set[int] = set()
        """Requests whose end is not due yet."""
        self._engine = engine
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
    ) -> None:
        del now_ns
        self._engine.add(self._now_ns, request, prompt_ids, max_tokens, stop_after, output_base)
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


def led(server_class: type[FakeRolloutServer]) -> type[FakeRolloutServer]:
    """The class of a fake server whose doings wait for their points."""

    class LedServer(server_class):  # type: ignore[misc, valid-type]
        leader: Leader
        points: Points
        holding: HoldingEngine
        own_trace: Trace
        answers: dict[RequestKey, Answer]

        def generate(self, request: int, *args: Any, **kwargs: Any) -> Any:
            key = key_of(self.own_trace, request)
            late = self._loop.create_future()
            late.add_done_callback(partial(note_answer, self.answers, key))
            call = partial(super().generate, request, *args, **kwargs)
            self.leader.when(partial(_feed, late, call), "arrived", *key)
            return late

        def _admit(self, request: Any) -> None:
            number, key = request.number, key_of(self.own_trace, request.number)
            if key in self.points.held_tokens:
                self.holding.held_tokens[number] = self.points.held_tokens[key]
            elif self.leader.expects("ended", *key):
                self.holding.awaiting_end.add(number)
                self.leader.when(partial(self._let_end, number), "ended", *key)
            super()._admit(request)

        def _let_end(self, number: int) -> None:
            self.holding.awaiting_end.discard(number)
            self._take(self._engine.flush(self._loop.now_ns))
            self._set_timer()

        async def abort_all_requests(self, *args: Any, **kwargs: Any) -> Any:
            if self.settings.submission_gate:
                await self.leader.turn("closed", self.replica)
            return await super().abort_all_requests(*args, **kwargs)

        async def _wait_for_admissions(self) -> None:
            await super()._wait_for_admissions()
            await self.leader.turn("cut", self.replica)

        async def resume_generation(self) -> None:
            await self.leader.turn("resumed", self.replica)
            await super().resume_generation()

        async def abort_request(self, *args: Any, **kwargs: Any) -> Any:
            await self.leader.turn("named", self.replica)
            return await super().abort_request(*args, **kwargs)

        async def set_global_steps(self, global_steps: int) -> None:
            await self.leader.turn("version", self.replica)
            await super().set_global_steps(global_steps)

    return LedServer


class _LedWire(Wire):
    """Messages reach the balancer in the observed order."""

    leader: Leader
    choices: SeededChoices

    def _deliver_message(self, handle: Any, name: str, *rest: Any) -> None:
        deliver = super()._deliver_message
        self.leader.when(lambda: self.choices.run(deliver, handle, name, *rest), *message_point(name, rest))


class LedWorld(World):
    """One simulated run of a Case through observed points. `leader.missed`: where it left them."""

    engine_class = TimedEngine

    def __init__(self, case: Case, sut: Sut, points: Points) -> None:
        self._points = points
        self.answers: dict[RequestKey, Answer] = {}
        # Times are the observed ones, and nothing but the points decides what comes first.
        settings = msgspec.structs.replace(case.server, admission_s=0.0, prefill_s=0.0)
        super().__init__(msgspec.structs.replace(case, server=settings, schedule=Schedule()), sut)
        self.leader = Leader(points, self._loop)
        if points.order:
            assert self._loop.until_ns is not None
            self._loop.until_ns += points.order[-1].t_ns

    def make_engine(self) -> DecodeEngine:
        """The fake engine under the holds."""
        config = EngineConfig(
            num_gpu_blocks=_ROOM_TOKENS,
            block_size=16,
            max_num_seqs=1024,
            max_num_batched_tokens=8192,
            max_model_len=_ROOM_TOKENS,
        )
        return self.engine_class(Engine(config), Constant(1))

    def _make_wire(self, triggers: Triggers) -> Wire:
        wire = _LedWire(self.case.transport, self._loop, self.trace, triggers)
        wire.leader = self.leader
        wire.choices = SeededChoices(self.case.seed)
        return wire

    def _make_server(self, replica: int, model: Model, triggers: Triggers) -> FakeRolloutServer:
        holding = HoldingEngine(self.make_engine())
        server: Any = led(self.sut.server_class)(
            replica, self.case.server, self.case.budget, holding, self._loop, self.trace, model, triggers
        )
        server.leader, server.points, server.holding = self.leader, self._points, holding
        server.own_trace, server.answers = self.trace, self.answers
        return server  # type: ignore[no-any-return]

    async def _run_fault(self, stage: Stage, index: int, fault: Any, acting: "list[asyncio.Task[None]]") -> None:
        await stage.triggers.wait(fault.at)
        await self.leader.turn("fired", index)
        await super()._run_fault(stage, index, fault, acting)
