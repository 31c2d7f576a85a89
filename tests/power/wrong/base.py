"""What all of them are made of: a right client that keeps a call's state in a record of its own, and is easily bent."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sim.sut.reference.routing import LeastLoadedBalancer

__all__ = [
    "ABORTED",
    "LIMITS",
    "Call",
    "Client",
    "LeastLoadedBalancer",
    "Output",
    "Wrong",
    "balancer",
    "client",
    "step",
]

logger = logging.getLogger("wrong")

LIMITS = ("max_tokens", "max_new_tokens")
ABORTED = ("aborted", "abort")


@dataclass
class Output:
    """What a call returns."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str
    extra_fields: dict[str, Any]


@dataclass
class Call:
    """One call of generate: what it was given, what it has."""

    request_id: str
    prompt: list[int]
    given: dict[str, Any]
    budget: int | None
    context: int
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)
    """The tokens of each answer."""
    aborts: int = 0
    reason: str = "length"

    @property
    def left(self) -> int | None:
        return None if self.budget is None else self.budget - len(self.ids)


class Client:
    """Right as it is: resumes what was aborted, within the budget, and gives back its slots."""

    rest_s = 1.0

    def __init__(self, config: Any, balancer: Any) -> None:
        self.config = config
        self.rollout = config.actor_rollout_ref.rollout
        self.resumes = config.async_training.partial_rollout
        self.balancer = balancer
        self.serial = 0

    async def generate(self, request_id: str, *, prompt_ids: Any, sampling_params: dict[str, Any], **_: Any) -> Output:
        budget = self.budget(sampling_params)
        call = Call(request_id, list(prompt_ids), dict(sampling_params), budget, self.rollout.max_model_len)
        while self.has_room(call):
            output = await self.attempt(call)
            self.merge(call, output)
            if output.stop_reason not in ABORTED or not self.goes_on(call):
                return self.result(call)
            if self.has_room(call):
                await self.rest(call)
        call.reason = "length"
        return self.result(call)

    def budget(self, given: dict[str, Any]) -> int | None:
        for key in LIMITS:
            if given.get(key) is not None:
                return int(given[key])
        length = self.rollout.get("response_length")
        if type(length) is int and length > 0:
            return length
        logger.warning("response_length is %r: the limit is the server's", length)
        return None

    def has_room(self, call: Call) -> bool:
        return len(call.prompt) + len(call.ids) < call.context and (call.left is None or call.left > 0)

    def limit(self, call: Call) -> int | None:
        """What the next request asks for."""
        return call.left

    def params(self, call: Call) -> dict[str, Any]:
        params = {key: value for key, value in call.given.items() if key not in LIMITS}
        limit = self.limit(call)
        if limit is not None:
            params[next((key for key in LIMITS if key in call.given), LIMITS[0])] = limit
        return params

    def prompt(self, call: Call) -> list[int]:
        """What the next request sends."""
        return call.prompt + call.ids

    async def attempt(self, call: Call) -> Any:
        name, server = await self.acquire(call)
        try:
            return await self.ask(call, server)
        finally:
            self.release(name)

    def ask(self, call: Call, server: Any) -> Any:
        self.serial += 1
        return server.generate.remote(
            request_id=f"{call.request_id}/{self.serial}",
            prompt_ids=self.prompt(call),
            sampling_params=self.params(call),
        )

    async def acquire(self, call: Call) -> tuple[str, Any]:
        promise = asyncio.ensure_future(self.balancer.acquire_server.remote(request_id=call.request_id))
        try:
            return await asyncio.shield(promise)
        except asyncio.CancelledError:
            promise.add_done_callback(self.give_back)
            raise

    def give_back(self, promise: Any) -> None:
        if not promise.cancelled() and promise.exception() is None:
            self.release(promise.result()[0])

    def release(self, name: str) -> None:
        self.balancer.release_server.remote(server_id=name)

    def merge(self, call: Call, output: Any) -> None:
        call.ids = call.ids + list(output.token_ids)
        call.log_probs = call.log_probs + list(output.log_probs or [])
        call.pieces.append(len(output.token_ids))
        call.aborts += output.stop_reason in ABORTED
        call.reason = output.stop_reason
        if output.token_ids:
            call.versions.append(output.extra_fields.get("global_steps"))

    def goes_on(self, call: Call) -> bool:
        return bool(self.resumes)

    async def rest(self, call: Call) -> None:
        await asyncio.sleep(self.rest_s)

    def result(self, call: Call) -> Output:
        extra = {}
        if call.versions:
            extra = {"min_global_steps": min(call.versions), "max_global_steps": max(call.versions)}
        return Output(call.ids, call.log_probs, call.reason, extra)


class Wrong(NamedTuple):
    """A wrong subject, and the invariants that would be right to tell; a measured search looks for the first."""

    build: Callable[[Any], Any]
    told_by: tuple[str, ...]


def client(cls: type[Client], *told_by: str) -> Wrong:
    return Wrong(_declared(lambda context: cls(context.config, context.balancer)), told_by)


def balancer(cls: type[Any], *told_by: str, of: type[Client] = Client) -> Wrong:
    return Wrong(_declared(lambda context: of(context.config, context.make_balancer(cls))), told_by)


def _declared(build: Callable[[Any], Any]) -> Callable[[Any], Any]:
    build.rollcage_policies = {"budget": "turn"}  # type: ignore[attr-defined]
    return build


async def step() -> None:
    """Lets the others go first, as any await does that has to wait."""
    await asyncio.sleep(0)
