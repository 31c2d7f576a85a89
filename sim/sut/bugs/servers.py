"""Servers that go wrong."""

import dataclasses
from typing import Any, NamedTuple

from sim.events import Ended, Event
from sim.servers.port import Events, Instead, RolloutServer, ServerParts
from sim.servers.server import SimulatedServer


def deaf_server(parts: ServerParts) -> RolloutServer:
    """Ignores the limit that the client sends (TensorRT-LLM's server in verl)."""
    deaf = dataclasses.replace(parts.dialect, limit_keys=(), unknown_keys=())
    return SimulatedServer(dataclasses.replace(parts, dialect=deaf))


class TwiceEnding(NamedTuple):
    """Says of an aborted request that it ended, and then once more."""

    events: Events

    def add(self, event: Event) -> None:
        self.events.add(event)
        if isinstance(event, Ended) and event.outcome == "abort":
            self.events.add(Ended(event.t_ns, event.request, "length", event.tokens))


def twice_ending_server(parts: ServerParts) -> RolloutServer:
    return SimulatedServer(dataclasses.replace(parts, events=TwiceEnding(parts.events)))


def cache_keeping_server(parts: ServerParts) -> RolloutServer:
    """Keeps its prefix cache over an abort, and so over new weights."""
    server = SimulatedServer(parts)

    async def abort_all(*, reset_prefix_cache: bool = True, reject: bool = False) -> list[str]:
        del reset_prefix_cache
        return await server.abort_all(reset_prefix_cache=False, reject=reject)

    kept: RolloutServer = Instead(server, abort_all=abort_all)
    return kept


def stuck_gate_server(parts: ServerParts) -> RolloutServer:
    """Resumes its engine and forgets to open the gate."""
    stuck: Any = Instead(parts.gate, open=lambda _: None)
    return SimulatedServer(dataclasses.replace(parts, gate=stuck))
