"""The simulation again, led through the points that were observed on a real engine.

Everything in it is the fake's own: grants, ends, aborts, gate, versions. Only when requests end and faults act is
taken from the observation, and how far an aborted request had come.
"""

import asyncio
from typing import Any

import msgspec

from gpu_checks.points import Answer, Leader, Points, RequestKey, answered, key_of
from gpu_checks.real_world import SeededChoices, message_point
from sim.case import Case, Schedule
from sim.decode import Burst, ConstantRate, DecodeEngine
from sim.faults import Stage, Triggers
from sim.server import FakeRolloutServer, Model
from sim.sut.interface import Sut
from sim.trace import Trace
from sim.transport import Wire
from sim.world import World

_FAR_NS = 2**60
_TOKEN_NS = 1


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
        self._decoded: dict[int, int] = {}
        self._shown: dict[int, int] = {}
        self._finish: dict[int, Any] = {}

    def add(self, now_ns: int, request: int, prompt_tokens: int, max_tokens: int, stop_after: int | None) -> None:
        self._engine.add(now_ns, request, prompt_tokens, max_tokens, stop_after)
        self._decoded[request] = self._shown[request] = 0

    def watch(self, request: int, tokens: int) -> None:
        """Nothing to do: all moments are at hand."""

    def abort(self, request: int) -> None:
        self._engine.abort(request)
        del self._shown[request]

    def pause(self, now_ns: int) -> None:
        self._engine.pause(now_ns)

    def resume(self, now_ns: int) -> None:
        self._engine.resume(now_ns)

    def next_ns(self) -> int | None:
        return None

    def advance(self, now_ns: int) -> list[Burst]:
        del now_ns
        for burst in self._engine.advance(_FAR_NS):
            self._decoded[burst.request] += burst.tokens
            self._finish[burst.request] = burst.finish
        bursts = []
        for request in list(self._shown):
            decoded, finish = self._decoded[request], self._finish.get(request)
            held = self.held_tokens.get(request)
            if held is not None and held <= decoded:
                decoded, finish = held, None
            elif request in self.awaiting_end:
                finish = None
            tokens = decoded - self._shown[request]
            if tokens or finish is not None:
                bursts.append(Burst(request, tokens, finish))
            self._shown[request] = decoded
            if finish is not None:
                del self._shown[request]
        return bursts

    def live(self) -> list[int]:
        return list(self._shown)


def led(server_class: type[FakeRolloutServer]) -> type[FakeRolloutServer]:
    """The class of a fake server whose doings wait for their points."""

    class LedServer(server_class):  # type: ignore[misc, valid-type]
        leader: Leader
        points: Points
        holding: HoldingEngine
        own_trace: Trace
        answers: dict[RequestKey, Answer]

        async def generate(self, request: int, *args: Any, **kwargs: Any) -> Any:
            key = key_of(self.own_trace, request)
            await self.leader.turn("arrived", *key)
            return await answered(self.answers, key, super().generate(request, *args, **kwargs))

        def _admit(self, request: int, *args: Any, **kwargs: Any) -> Any:
            key: RequestKey = key_of(self.own_trace, request)
            if key in self.points.held_tokens:
                self.holding.held_tokens[request] = self.points.held_tokens[key]
            elif self.leader.expects("ended", *key):
                self.holding.awaiting_end.add(request)
                self.leader.when(lambda: self._let_end(request), "ended", *key)
            return super()._admit(request, *args, **kwargs)

        def _let_end(self, request: int) -> None:
            self.holding.awaiting_end.discard(request)
            self._catch_up()

        async def abort_all_requests(self, *args: Any, **kwargs: Any) -> Any:
            if self.settings.submission_gate:
                await self.leader.turn("closed", self.replica)
            return await super().abort_all_requests(*args, **kwargs)

        async def _drain_admissions(self) -> None:
            await super()._drain_admissions()
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
        return ConstantRate(_TOKEN_NS, 0)

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
