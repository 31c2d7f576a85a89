"""World: builds servers, network, balancer, client, sessions and faults from a Case, runs them, returns the Trace."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from sim.case import Case
from sim.clock import (
    Blocked,
    Deadlock,
    Deviation,
    Fifo,
    FifoExcept,
    Horizon,
    Order,
    RandomOrder,
    StepCap,
    tamed,
    watched,
)
from sim.events import FaultFired, Logged, Message, WorldEnded, spelled, without_addresses
from sim.face import REQUESTS, Replica, show
from sim.faults import Every, Fault
from sim.registry import PluginError, blame, blamed
from sim.servers.gate import SubmissionGate
from sim.servers.mortal import MortalServer
from sim.servers.port import RolloutServer, ServerParts
from sim.servers.server import SimulatedServer
from sim.sut.framework import Sut
from sim.sut.interface import SutError
from sim.tokens import LogProbs, Tokens
from sim.trace import Observer, Trace
from sim.transport.wire import OwnFault, TurnInProgress, was_brought
from sim.world.bounds import bounds_of
from sim.world.client import ObservedClient, Parties, takes_runs
from sim.world.model import FakeModel
from sim.world.ports import SIMULATED, Network, Ports, behind_face
from sim.world.sessions import Sessions
from sim.world.stage import WorldStage
from sim.world.triggers import Triggers
from sim.world.warnings import warnings_heard

_LARGE_SESSIONS = 1000
"""A world of so many may take as long as it likes, if it gets on."""

AT_REST = "rest"
"""Kind of the balancer's last entry in the trace: its counts when all is over."""


class World:
    """One run of a Case with one system under test. Make it, `run` it once, read `trace` and `deviations`.

    `order`: in the place of the Case's own schedule, for one who watches it. `observers`: they are handed the events of
    the trace, which then keeps none (see `Trace`). `ports`: what it runs on. A world in real time is not `run`: its
    `main` is awaited on the loop that it was given.
    """

    def __init__(
        self,
        case: Case,
        sut: Sut,
        order: Order | None = None,
        observers: Sequence[Observer] | None = None,
        ports: Ports = SIMULATED,
    ) -> None:
        self.case = case
        self.sut = sut
        self.trace = Trace(
            case.num_sessions,
            sut.framework.balancer.roles,
            observers,
            budget_setting=sut.framework.budget_setting,
        )
        self.ports = ports
        try:
            self.bounds = bounds_of(case)
        except Exception as error:
            blame(error, bounds_of, "a fault of the case")
        self.loop = ports.make_loop(case, _order(case) if order is None else order, self.bounds)
        self.deviations: tuple[Deviation, ...] = ()
        """Not of a case that repeats its sessions: they would be as many as its steps."""
        self.steps = 0
        """Callbacks that ran: what the run cost, the same on any machine."""
        self._network: Network | None = None
        self._parties: Parties | None = None
        self._servers: list[MortalServer] = []
        self._sessions: Sessions | None = None
        self._fault: Exception | None = None
        """What a server of ours or a plugin raised in its own time, or asserts when it is called: no client is to
        blame."""
        self._client_takes_runs = False

    def run(self) -> Trace:
        """Runs to the end: all done, deadlocked, out of time or livelocked; which of them is the trace's last event."""
        loop, trace = self.loop, self.trace
        loop.set_exception_handler(self.unhandled)
        try:
            gets_on = (lambda: loop.steps) if self.case.num_sessions >= _LARGE_SESSIONS else None
            with watched(gets_on), tamed(loop, self.case.seed), warnings_heard(self.heard):
                try:
                    loop.run_until_complete(self.main())
                    self._run_until_rest()
                    self.show_rest()
                    trace.seal(WorldEnded(loop.now_ns, "done"))
                except Deadlock as deadlock:
                    trace.seal(WorldEnded(loop.now_ns, "deadlock", (*self._stuck(), *deadlock.waiting)))
                except Horizon:
                    trace.seal(WorldEnded(loop.now_ns, "horizon", self._stuck()))
                except StepCap as cap:
                    trace.seal(WorldEnded(loop.now_ns, "livelock", (("", str(cap)),)))
                self.deviations, self.steps = loop.deviations, loop.steps
                self._close()
        except Blocked as blocked:
            raise SutError(f"SUT {self.sut.name!r} {blocked}") from None
        except SystemExit as left:
            raise SutError(f"SUT {self.sut.name!r} called sys.exit({left.code!r})") from left
        finally:
            self._close()
        if self._fault is not None:
            raise self._fault
        return trace

    def _run_until_rest(self) -> None:
        """Until nothing is to come any more. What a client's own task goes on doing, which asks for nothing, is no
        session that does not end."""
        try:
            self.loop.run_until_idle()
        except Horizon:
            if not self.is_quiet:
                raise

    def _close(self) -> None:
        """Ends what is left. None of it is part of the run."""
        self.trace.close()
        if self._sessions is not None:
            self._sessions.begin_no_more()
        self.loop.close()

    def _stuck(self) -> tuple[tuple[str, str], ...]:
        """The replicas whose engines will never do anything again, and why."""
        return tuple(("", f"replica {each.replica} is stuck: {each.stuck}") for each in self._servers if each.stuck)

    def heard(self, logger: str, text: str) -> None:
        """Puts a warning on the trace."""
        self.trace.add(Logged(self.loop.now_ns, logger, without_addresses(text)))

    def unhandled(self, loop: Any, context: dict[str, Any]) -> None:
        """An exception handler for the loop."""
        del loop
        callback, error = getattr(context.get("handle"), "_callback", None), context.get("exception")
        if isinstance(error, OwnFault):
            self._fault = self._fault or error.error
        elif isinstance(getattr(callback, "__self__", None), SimulatedServer) or isinstance(error, PluginError):
            self._fault = self._fault or error
        self.heard("asyncio", f"{context.get('message')}: {context.get('exception')!r}")

    async def main(self) -> None:
        """Everything, until all sessions have ended and no fault acts any more."""
        case, loop, trace, framework = self.case, self.loop, self.trace, self.sut.framework
        triggers, model = Triggers(case, loop), FakeModel(case)
        has_face = case.server.face is not None
        network = self._network = self.ports.make_network(
            behind_face(case.transport) if has_face else case.transport,
            REQUESTS if has_face else framework.requests,
            loop,
            trace,
            triggers,
        )
        self._servers = [self._make_server(replica, model, triggers) for replica in range(case.replicas)]
        handles = [network.server_handle(each.replica, framework.call("make_face", each)) for each in self._servers]
        names = [f"replica-{replica}" for replica in range(case.replicas)]
        places: dict[int, TurnInProgress] = {}
        urls = await self._show_faces(network, names, places)
        parties = self._parties = Parties(case, self.sut, dict(zip(names, handles, strict=True)), network, urls, loop)
        trace.factory_raised = parties.factory_raised
        trace.declared = parties.declared()
        trace.first_loads = parties.port.shown()[0]
        self._client_takes_runs = takes_runs(parties.client)
        client = ObservedClient(case, self.sut, parties.client, loop, trace, model, places if urls else None)
        sessions = self._sessions = Sessions(case, client, loop, trace, partial(framework.call, "make_params"))
        sessions.begin()
        stage = WorldStage(
            framework, loop, trace, network, names, self._servers, handles, parties.balancer, sessions.live
        )
        acting: list[asyncio.Task[None]] = []
        waiting = [
            loop.create_task(self._run_fault(stage, triggers, index, fault, acting), name=f"fault {index}")
            for index, fault in enumerate(case.faults)
        ]
        await sessions.all_ended
        for task in waiting:
            task.cancel()
        if acting:
            await asyncio.wait(acting)

    async def _show_faces(
        self, network: Network, names: Sequence[str], places: dict[int, TurnInProgress]
    ) -> dict[str, str]:
        """The base URLs of the replicas by name, where they have a face."""
        case = self.case
        if case.server.face is None:
            return {}
        framework = self.sut.framework
        if framework.requests.method != REQUESTS.method:
            raise SutError(
                f"server.face is {case.server.face!r}: it stands before servers that are asked by {REQUESTS.method!r}, "
                f"and those of framework {framework.name!r} are asked by {framework.requests.method!r}"
            )
        replicas = [
            Replica(each, network.server_handle(each.replica, each), places.get, framework.returned)
            for each in self._servers
        ]
        return {
            name: await show(self.loop, case.server.face, name, replica, case.budget.context_tokens)
            for name, replica in zip(names, replicas, strict=True)
        }

    def _make_server(self, replica: int, model: FakeModel, triggers: Triggers) -> MortalServer:
        case = self.case

        def make(version: int) -> RolloutServer:
            parts = ServerParts(
                replica,
                case.server,
                case.server.rules,
                case.budget,
                SubmissionGate(),
                self.ports.make_engine(case),
                self.loop,
                self.trace,
                model,
                triggers,
                self._make_output,
                version,
            )
            return self.ports.make_server(self.sut.make_server, parts)

        return MortalServer(replica, make, self.loop, self.trace)

    def _make_output(
        self, token_ids: Tokens, log_probs: list[float] | LogProbs | None, stop_reason: str | None, version: int
    ) -> Any:
        """What a server answers, its tokens as the client takes them."""
        if not self._client_takes_runs:
            token_ids, log_probs = list(token_ids), None if log_probs is None else list(log_probs)
        return self.sut.framework.call("make_output", token_ids, log_probs, stop_reason, version)

    async def _run_fault(
        self, stage: WorldStage, triggers: Triggers, index: int, fault: Fault, acting: "list[asyncio.Task[None]]"
    ) -> None:
        """Waits for its time in a task that the end of all sessions may cancel, and acts in one that ends by itself."""
        times = self.bounds.times[index]
        for _ in range(times):
            await triggers.wait(fault.at)
            await self.ports.fault_is_due(index)
            task = self.loop.create_task(self._act(stage, index, fault), name=f"fault {index} acting")
            acting.append(task)
            if not isinstance(fault.at, Every):
                return
            await asyncio.wait([task])
            acting.remove(task)
        note = f"comes no more: it did so {times:,} times, and sessions live"
        self.trace.add(FaultFired(self.loop.now_ns, index, _kind(fault), note))

    async def _act(self, stage: WorldStage, index: int, fault: Fault) -> None:
        """Does what the fault says. What its calls bring is on the trace: a trainer's failure is not the world's."""
        fired = FaultFired(self.loop.now_ns, index, _kind(fault))
        self.trace.add_open(fired)
        try:
            note = await fault.act(stage) or ""
            if not isinstance(note, str):
                raise PluginError(f"fault {fired.kind!r}: its act returned {note!r}; a string is needed")
        except Exception as error:
            note = spelled(error)
            if not was_brought(error):
                self._fault = self._fault or blamed(error, fault, f"fault {fired.kind!r}")
        self.trace.amend(fired, FaultFired(fired.t_ns, index, fired.kind, note) if note else fired)

    @property
    def is_quiet(self) -> bool:
        """Whether every call and message has come to its end."""
        assert self._network is not None
        assert self._parties is not None
        return not (self._network.calls_under_way or self._parties.port.messages_in_flight)

    def show_rest(self) -> None:
        """Puts on the trace what the balancer counts when all is over."""
        assert self._parties is not None
        port = self._parties.port
        loads, total = port.shown()
        self.trace.add(Message(self.loop.now_ns, AT_REST, None, None, (), loads, total, port.messages_in_flight))


def _kind(fault: Fault) -> str:
    return str(fault.__struct_config__.tag)


def _order(case: Case) -> Order:
    schedule = case.schedule
    if schedule.policy == "random":
        return RandomOrder(schedule.seed)
    if schedule.policy == "explicit":
        return FifoExcept(tuple(Deviation(step, pick) for step, pick in schedule.deviations))
    return Fifo()


def run_world(case: Case, sut: Sut) -> Trace:
    """The trace of one run."""
    return World(case, sut).run()
