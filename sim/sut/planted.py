"""The known-bad ones: each planted bug a few lines on a reference, named after what it does.

They prove that the harness finds what it should: each is caught by the invariant it is listed under.
"""

import dataclasses
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from sim.dialects import LIMIT_KEYS
from sim.events import Ended, Event
from sim.servers.port import Events, Instead, MakeServer, RolloutServer, ServerParts
from sim.servers.server import SimulatedServer
from sim.sut.interface import Context, Factory
from sim.sut.reference.client import DeferredClient, PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.verl.servers import TokenOutput
from sim.tokens import Tokens


class StingyClient(PinnedClient):
    """Counts the generated tokens twice (AReaL 858): what was generated is compared with what is left."""

    def nothing_left(self, budget: int | None, prompt_tokens: int, generated_tokens: int) -> bool:
        return super().nothing_left(budget, prompt_tokens, 2 * generated_tokens)


class LimitWritingClient(PinnedClient):
    """Writes what is left into the caller's own params (verl 0.8.0)."""

    async def generate(
        self, request_id: str, *, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        final = await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs)
        key = next((key for key in LIMIT_KEYS if key in sampling_params), None)
        if key is not None:
            sampling_params[key] -= len(final.token_ids)
        return final


class AskingForNothingClient(PinnedClient):
    """Sends its request although nothing is left."""

    def nothing_left(self, budget: int | None, prompt_tokens: int, generated_tokens: int) -> bool:
        del budget
        return super().nothing_left(None, prompt_tokens, generated_tokens)


class SilentFallbackClient(PinnedClient):
    """Leaves the limit to the server without a word when its config gives none."""

    def report_fallback(self, configured: Any) -> None:
        del configured


class TokenLosingClient(PinnedClient):
    """Drops the last token of an answer that it resumes."""

    def merge(self, final: TokenOutput, output: TokenOutput) -> None:
        if output.stop_reason in ("aborted", "abort"):
            output.token_ids = output.token_ids[:-1]
        super().merge(final, output)


class AveragingClient(PinnedClient):
    """Divides by the number of tokens of each answer."""

    def merge(self, final: TokenOutput, output: TokenOutput) -> None:
        super().merge(final, output)
        assert sum(output.log_probs or ()) / len(output.token_ids) <= 0


class GivingUpClient(PinnedClient):
    """Takes an answer that is cut for an error."""

    def merge(self, final: TokenOutput, output: TokenOutput) -> None:
        if output.stop_reason in ("aborted", "abort") and output.token_ids:
            raise RuntimeError("the server aborted the request")
        super().merge(final, output)


class SlotLeakingClient(PinnedClient):
    """Releases its server only when all went well."""

    async def attempt(
        self, request_id: str, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        server_id, server = await self.acquire(request_id)
        output: TokenOutput = await server.generate.remote(
            request_id=request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs
        )
        self.balancer.release_server.remote(server_id=server_id, request_id=request_id)
        return output


class UnevenBalancer(LeastLoadedBalancer):
    """Chooses any replica, however loaded."""

    def choose(self) -> str:
        return random.choice(list(self.servers))


class ForgetfulBalancer(LeastLoadedBalancer):
    """Forgets where a session was."""

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        self.session_server.pop(request_id, None)
        return super().acquire_server(request_id)


class ZeroingBalancer(LeastLoadedBalancer):
    """Counts from zero when a replica is added that is there already."""

    def add_servers(self, servers: dict[str, Any]) -> None:
        super().add_servers(servers)
        for name in servers:
            self.in_flight[name] = {}
            self.loads[name] = 0


class FavouriteBalancer(LeastLoadedBalancer):
    """Takes the first of equals, always."""

    def __init__(self, servers: dict[str, Any]) -> None:
        super().__init__(servers, tie_break="first")


class GhostBalancer(LeastLoadedBalancer):
    """Goes on sending a session to its replica after that was removed."""

    def __init__(self, servers: dict[str, Any]) -> None:
        super().__init__(servers)
        self._known = dict(servers)

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        name = self.session_server.get(request_id)
        if name is not None and name not in self.servers:
            return name, self._known[name]
        return super().acquire_server(request_id)


_worlds_before = iter(range(2**62))


class WorldCountingBalancer(LeastLoadedBalancer):
    """Routes by a counter of the process, which no world resets."""

    def choose(self) -> str:
        names = list(self.servers)
        return names[next(_worlds_before) % len(names)]


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


class Planted(NamedTuple):
    """A planted bug: the invariant that must catch it, and what it puts in the place of the known-good parts.

    `most_sessions`: of the case that it shrinks to, where two do not show it. `policies`: those that it declares.
    """

    invariant: str
    client: type[DeferredClient] = PinnedClient
    balancer: type[LeastLoadedBalancer] | None = None
    make_server: MakeServer = SimulatedServer
    most_sessions: int = 2
    policies: Mapping[str, str] = MappingProxyType({})


PLANTED: dict[str, Planted] = {
    "deferred": Planted("B1", DeferredClient),
    "stingy": Planted("B2", StingyClient),
    "writes-limit": Planted("B4", LimitWritingClient),
    "asks-for-nothing": Planted("B6", AskingForNothingClient),
    "budget-anew": Planted("B7", policies={"budget": "trajectory"}),
    "silent-fallback": Planted("B8", SilentFallbackClient),
    "deaf-server": Planted("B10", make_server=deaf_server),
    "ends-twice": Planted("A1", make_server=twice_ending_server),
    "loses-tokens": Planted("A2", TokenLosingClient),
    "divides-by-tokens": Planted("A5", AveragingClient),
    "gives-up": Planted("A9", GivingUpClient),
    "routes-anywhere": Planted("R1", balancer=UnevenBalancer),
    "forgets-session": Planted("R2", balancer=ForgetfulBalancer),
    "zeroes-count": Planted("R3", balancer=ZeroingBalancer),
    "favourite": Planted("R4", balancer=FavouriteBalancer, most_sessions=20),
    "routes-to-removed": Planted("R5", balancer=GhostBalancer),
    "leaks-slot": Planted("R7", SlotLeakingClient),
    "keeps-cache": Planted("S2", make_server=cache_keeping_server),
    "stuck-gate": Planted("V1", make_server=stuck_gate_server),
    "counts-worlds": Planted("D1", balancer=WorldCountingBalancer),
}


def factory(planted: Planted) -> Factory:
    """Builds the SUT of a planted bug."""

    def make(context: Context) -> DeferredClient:
        balancer = context.make_balancer(planted.balancer) if planted.balancer else context.balancer
        return planted.client(context.config, balancer)

    return make
