"""The known-bad ones: each planted bug a few lines on a reference, named after what it does.

They prove that the harness finds what it should: each is caught by the invariant it is listed under.
"""

import asyncio
import dataclasses
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from sim.dialects import LIMIT_KEYS
from sim.events import Ended, Event
from sim.servers.failures import ActorDiedError, ActorUnavailableError, ServerError
from sim.servers.port import Events, Instead, MakeServer, RolloutServer, ServerParts
from sim.servers.server import SimulatedServer
from sim.sut.interface import Context, Factory
from sim.sut.reference.client import RESUME_WAIT_S, DeferredClient, PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.verl.config import Config
from sim.sut.verl.servers import TokenOutput, Trainer
from sim.tokens import Tokens
from sim.transport.handles import Handle


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


class ForgettingClient(PinnedClient):
    """Resumes with the turn's prompt alone, and joins the parts."""

    def __init__(self, config: Any, balancer: Any) -> None:
        super().__init__(config, balancer)
        self._prompts: dict[str, Tokens] = {}

    async def generate(
        self, request_id: str, *, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        self._prompts[request_id] = prompt_ids
        return await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs)

    async def attempt(
        self, request_id: str, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        del prompt_ids
        return await super().attempt(request_id, self._prompts[request_id], sampling_params, **kwargs)


class RepeatingClient(PinnedClient):
    """Keeps the last token of an answer that it resumes twice."""

    def merge(self, final: TokenOutput, output: TokenOutput) -> None:
        super().merge(final, output)
        if output.stop_reason in ("aborted", "abort"):
            final.token_ids = final.token_ids + output.token_ids[-1:]


class PaddingClient(PinnedClient):
    """Asks for log probabilities in its first attempt alone, and pads with zeros."""

    takes_runs = False

    async def attempt(
        self, request_id: str, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        output = await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)
        sampling_params["logprobs"] = False
        return output

    def merge(self, final: TokenOutput, output: TokenOutput) -> None:
        if final.token_ids:
            output.log_probs = [0.0] * len(output.token_ids)
        super().merge(final, output)


class TurningClient(PinnedClient):
    """Puts the log probabilities of a later answer before those of the earlier."""

    def merge(self, final: TokenOutput, output: TokenOutput) -> None:
        before = final.log_probs
        super().merge(final, output)
        if before and output.log_probs:
            final.log_probs = output.log_probs + before


class NewestVersionClient(PinnedClient):
    """Names the version of its last answer as the oldest too."""

    def merge(self, final: TokenOutput, output: TokenOutput) -> None:
        super().merge(final, output)
        if "max_global_steps" in final.extra_fields:
            final.extra_fields["min_global_steps"] = final.extra_fields["max_global_steps"]


class LengthSayingClient(PinnedClient):
    """Takes whatever ended well for a response that was too long."""

    def merge(self, final: TokenOutput, output: TokenOutput) -> None:
        super().merge(final, output)
        if output.stop_reason not in ("aborted", "abort"):
            final.stop_reason = "length"


class AbortHidingClient(PinnedClient):
    """Says that a response that it drops had come to its end."""

    def merge(self, final: TokenOutput, output: TokenOutput) -> None:
        super().merge(final, output)
        if not self.config.async_training.partial_rollout:
            final.stop_reason = "completed"


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


class SiblingFailingClient(PinnedClient):
    """Fails every call once a server has failed one."""

    failure: ServerError | None = None

    async def attempt(
        self, request_id: str, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        if self.failure is not None:
            raise self.failure
        try:
            return await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)
        except ServerError as error:
            self.failure = error
            raise


class ImpatientClient(PinnedClient):
    """Takes a response for finished whose answer is late."""

    async def attempt(
        self, request_id: str, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        asked = super().attempt(request_id, prompt_ids, sampling_params, **kwargs)
        try:
            return await asyncio.wait_for(asked, PATIENCE_S)
        except TimeoutError:
            return TokenOutput([], [], "length")


PATIENCE_S = 45.0


class LossHidingClient(PinnedClient):
    """Takes a response for finished whose answer was lost."""

    async def attempt(
        self, request_id: str, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        try:
            return await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)
        except ActorUnavailableError:
            return TokenOutput([], [], "length")


class MourningClient(PinnedClient):
    """Waits for another replica than one that died, which does not count as back, ever."""

    def __init__(self, config: Config, balancer: Any) -> None:
        super().__init__(config, balancer)
        self.dead: set[str] = set()
        self.last = ""

    async def acquire(self, request_id: str) -> tuple[str, Any]:
        while True:
            self.last, server = await super().acquire(request_id)
            if self.last not in self.dead:
                return self.last, server
            self.balancer.release_server.remote(server_id=self.last, request_id=request_id)
            await asyncio.sleep(RESUME_WAIT_S)

    async def attempt(
        self, request_id: str, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        while True:
            try:
                return await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)
            except ActorDiedError:
                self.dead.add(self.last)


class NewestOnlyClient(PinnedClient):
    """Drops what was answered with older weights than any answer before, of whatever session."""

    newest = 0

    def merge(self, final: TokenOutput, output: TokenOutput) -> None:
        version = output.extra_fields["global_steps"]
        if version < self.newest:
            output = dataclasses.replace(output, token_ids=output.token_ids[:0], log_probs=None)
        self.newest = max(self.newest, version)
        super().merge(final, output)


class StubbornClient(PinnedClient):
    """Takes the limit as it stands in its config, and asks again whatever the server has against it."""

    def response_tokens(self, sampling_params: dict[str, Any]) -> int | None:
        configured = getattr(self.config.actor_rollout_ref.rollout, "response_length", None)
        if isinstance(configured, float):
            return configured  # type: ignore[return-value]
        return super().response_tokens(sampling_params)

    async def attempt(
        self, request_id: str, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        while True:
            try:
                return await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)
            except TypeError:
                await asyncio.sleep(RESUME_WAIT_S)


class CarelessTrainer(Trainer):
    """Goes on with the update where an abort failed."""

    def abort_all(self, server: Handle, *, reset_prefix_cache: bool, reject: bool) -> "asyncio.Future[Any]":
        return _whatever_comes(super().abort_all(server, reset_prefix_cache=reset_prefix_cache, reject=reject))


class ForgetfulTrainer(Trainer):
    """Takes a replica for resumed that was told to, whatever it said."""

    def resume(self, server: Handle) -> "asyncio.Future[Any]":
        return _whatever_comes(super().resume(server))


def _whatever_comes(call: "asyncio.Future[Any]") -> "asyncio.Future[Any]":
    return asyncio.gather(call, return_exceptions=True)


class Planted(NamedTuple):
    """A planted bug: the invariant that must catch it, and what it puts in the place of the known-good parts.

    `most_sessions`: of the case that it shrinks to, where two do not show it. `policies`: those that it declares.
    """

    invariant: str
    client: type[DeferredClient] = PinnedClient
    balancer: type[LeastLoadedBalancer] | None = None
    make_server: MakeServer = SimulatedServer
    most_sessions: int = 2
    trainer: Trainer = Trainer()
    policies: Mapping[str, str] = MappingProxyType({})


class SetPickingBalancer(LeastLoadedBalancer):
    """Takes whichever of the least loaded a set of their names has first, which is another in each process."""

    def choose(self) -> str:
        least = min(self.loads.values())
        return next(iter({name for name, load in self.loads.items() if load == least}))


PLANTED: dict[str, Planted] = {
    "deferred": Planted("B1", DeferredClient),
    "stingy": Planted("B2", StingyClient),
    "writes-limit": Planted("B4", LimitWritingClient),
    "asks-for-nothing": Planted("B6", AskingForNothingClient),
    "budget-anew": Planted("B7", policies={"budget": "trajectory"}),
    "silent-fallback": Planted("B8", SilentFallbackClient),
    "deaf-server": Planted("B10", make_server=deaf_server),
    "fails-siblings": Planted("B5", SiblingFailingClient),
    "impatient": Planted("B2", ImpatientClient),
    "hides-loss": Planted("B2", LossHidingClient),
    "ends-twice": Planted("A1", make_server=twice_ending_server),
    "loses-tokens": Planted("A2", TokenLosingClient),
    "newest-only": Planted("A2", NewestOnlyClient),
    "forgets-to-resume": Planted("A3", trainer=ForgetfulTrainer()),
    "ignores-failed-abort": Planted("A4", trainer=CarelessTrainer()),
    "forgets-what-it-has": Planted("L3", ForgettingClient),
    "repeats-token": Planted("L1", RepeatingClient),
    "pads-log-probs": Planted("L1", PaddingClient),
    "turns-log-probs-round": Planted("L1", TurningClient),
    "names-newest-version": Planted("S1", NewestVersionClient),
    "says-length": Planted("A10", LengthSayingClient),
    "hides-abort": Planted("A10", AbortHidingClient),
    "leaves-request": Planted("W1"),
    "divides-by-tokens": Planted("A5", AveragingClient),
    "stubborn": Planted("A8", StubbornClient),
    "gives-up": Planted("A9", GivingUpClient),
    "routes-anywhere": Planted("R1", balancer=UnevenBalancer),
    "forgets-session": Planted("R2", balancer=ForgetfulBalancer),
    "zeroes-count": Planted("R3", balancer=ZeroingBalancer),
    "favourite": Planted("R4", balancer=FavouriteBalancer, most_sessions=20),
    "routes-to-removed": Planted("R5", balancer=GhostBalancer),
    "leaks-slot": Planted("R7", SlotLeakingClient),
    "keeps-cache": Planted("S2", make_server=cache_keeping_server),
    "stuck-gate": Planted("V1", make_server=stuck_gate_server),
    "mourns-for-ever": Planted("V1", MourningClient),
    "counts-worlds": Planted("D1", balancer=WorldCountingBalancer),
    "picks-from-set": Planted("D1", balancer=SetPickingBalancer),
}


def factory(planted: Planted) -> Factory:
    """Builds the SUT of a planted bug."""

    def make(context: Context) -> DeferredClient:
        balancer = context.make_balancer(planted.balancer) if planted.balancer else context.balancer
        return planted.client(context.config, balancer)

    return make
