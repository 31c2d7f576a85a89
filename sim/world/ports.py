"""What a world runs on, each part of which can be another: simulated by default, real in gpu_checks."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from sim.case import Case, Transport
from sim.clock import Order, VirtualLoop, to_ns
from sim.engine import Engine
from sim.engine.port import DecodeEngine
from sim.engine.timed import TimedEngine
from sim.net import Line, NetworkedLoop
from sim.servers.constant_rate import ConstantRate
from sim.servers.port import Clock, MakeServer, RolloutServer, ServerParts
from sim.trace import Trace
from sim.transport.balancer_port import BalancerPort
from sim.transport.handles import Handle
from sim.transport.protocol import RequestProtocol
from sim.transport.wire import SentListener, Wire
from sim.world.bounds import WorldBounds

_FEWEST_STEPS_PER_INSTANT, _STEPS_PER_INSTANT = 100_000, 100
"""Callbacks at one instant that are not a livelock yet: in all, and for each session that lives."""


class Network(Protocol):
    """What carries calls between clients, servers and the balancer, and puts them on the trace."""

    @property
    def calls_under_way(self) -> int:
        """Calls to servers that have not come to their end."""

    def server_handle(self, replica: int, face: Any) -> Handle:
        """A handle of a server, `face` being its methods under the framework's names."""

    def balancer_handle(self, port: BalancerPort) -> Handle:
        """A handle of the balancer."""

    def delay_releases(self, until_ns: int, late_ns: int) -> None:
        """Until then, a message that releases a slot reaches the balancer so much later."""

    def disturb_answer(self, session: int, late_ns: int, *, is_lost: bool) -> None:
        """The next answer of a server to the session comes so much later; where it is lost, an error in its place."""


MakeNetwork = Callable[[Transport, RequestProtocol, Clock, Trace, SentListener], Network]
"""(the Case's transport, how the framework's clients ask, clock, trace, who listens to what is sent) → network."""


def behind_face(transport: Transport) -> Transport:
    """What the transport is between an HTTP face and its server: the network has its delays, and copies."""
    return msgspec.structs.replace(transport, server_delay_s=0.0, objects="shared")


def virtual_loop(case: Case, order: Order, bounds: WorldBounds) -> VirtualLoop:
    """A loop in virtual time that ends a world which does not end; with a network where the servers have a face."""
    make: Callable[..., VirtualLoop] = VirtualLoop
    if case.server.face is not None:
        make = partial(NetworkedLoop, line=Line(case.transport.server_delay_s))
    return make(
        order=order,
        until_ns=to_ns(bounds.virtual_s),
        max_steps_per_instant=max(_FEWEST_STEPS_PER_INSTANT, _STEPS_PER_INSTANT * case.most_live_sessions),
        keeps_deviations=case.repeat == 1,
    )


def simulated_engine(case: Case) -> DecodeEngine:
    """The engine of a replica, as the Case has it."""
    settings = case.server
    if settings.engine is None:
        return ConstantRate(to_ns(settings.token_time_s), to_ns(settings.prefill_s))
    config = settings.engine.config(case.budget.context_tokens)
    return TimedEngine(Engine(config, keep_finish_steps=False), settings.make_latency())


def as_the_sut_has_it(make_server: MakeServer, parts: ServerParts) -> RolloutServer:
    """The servers of the system under test, which are simulated ones unless it brings its own."""
    return make_server(parts)


async def at_once(fault: int) -> None:
    """A fault that is due acts."""
    del fault


@dataclass(frozen=True)
class Ports:
    """`make_loop(case, order, bounds)`: the event loop, a `Clock` and asyncio's. `make_network`: see `MakeNetwork`.
    `make_server(own, parts)`: a server, where the SUT's own would be `own(parts)`. `make_engine(case)`: its engine.
    `fault_is_due(index)`: is awaited between a fault's time and its action."""

    make_loop: Callable[[Case, Order, WorldBounds], Any] = virtual_loop
    make_network: MakeNetwork = Wire
    make_server: Callable[[MakeServer, ServerParts], RolloutServer] = as_the_sut_has_it
    make_engine: Callable[[Case], DecodeEngine] = simulated_engine
    fault_is_due: Callable[[int], Awaitable[None]] = at_once


SIMULATED = Ports()
