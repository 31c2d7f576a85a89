"""verl's servers, as its clients and trainers know them: method names, arguments, and what they return.

The same in 0.8.0, 0.9.0 and 0.9.1, but for `reject_request`, which came with 0.9.1.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

from sim.dialects import LIMIT_KEYS
from sim.engine.config import PauseMode
from sim.servers.port import Answer, RolloutServer
from sim.sut.framework import Returned
from sim.tokens import LogProbs, Tokens
from sim.transport.handles import Handle
from sim.transport.protocol import AskedFor, RequestProtocol


@dataclass(slots=True)
class TokenOutput:
    """What generate returns; the fields of verl's TokenOutput."""

    token_ids: Tokens
    log_probs: list[float] | LogProbs | None
    stop_reason: str | None
    routed_experts: Any = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


def make_output(
    token_ids: Tokens, log_probs: list[float] | LogProbs | None, stop_reason: str | None, version: int
) -> TokenOutput:
    """What a server answers; `version` is that of its weights at the end."""
    return TokenOutput(token_ids, log_probs, stop_reason, extra_fields={"global_steps": version})


def returned(output: Any) -> Returned:
    """What a client's call returned."""
    lacking = [name for name in ("token_ids", "stop_reason", "extra_fields") if not hasattr(output, name)]
    if lacking:
        needed = "something with token_ids, log_probs, stop_reason and extra_fields is needed"
        raise TypeError(f"it has no {', '.join(lacking)}; {needed}")
    extra = output.extra_fields or {}
    versions = extra.get("min_global_steps"), extra.get("max_global_steps")
    return Returned(output.token_ids, output.stop_reason, *versions, getattr(output, "log_probs", None))


def _asked_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AskedFor:
    params = kwargs.get("sampling_params", args[1] if len(args) > 1 else {})
    limits = {key: params[key] for key in LIMIT_KEYS if key in params}
    return AskedFor(kwargs.get("prompt_ids", args[0] if args else ()), limits)


REQUESTS = RequestProtocol("generate", _asked_for)


class ServerFace:
    """A server under the names of verl's methods."""

    def __init__(self, server: RolloutServer) -> None:
        self._server = server

    def generate(
        self, request: int, prompt_ids: Tokens, sampling_params: dict[str, Any], request_id: str, **_multimodal: Any
    ) -> "asyncio.Future[Answer]":
        return self._server.generate(request, prompt_ids, sampling_params, request_id)

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict[str, Any]:
        ended = await self._server.abort_all(reset_prefix_cache=reset_prefix_cache, reject=reject_request)
        return {"aborted_count": len(ended), "request_ids": ended}

    async def abort_request(self, request_id: str, reset_prefix_cache: bool = True) -> dict[str, Any]:
        if await self._server.abort_request(request_id, reset_prefix_cache=reset_prefix_cache):
            return {"aborted": True, "request_id": request_id}
        return {"aborted": False, "error": f"Request {request_id} not found"}

    async def pause_generation(self, mode: Literal["wait", "keep"], clear_cache: bool = True) -> None:
        """Not verl's but its engine's: vLLM's pause without an abort."""
        await self._server.pause(mode, clear_cache=clear_cache)

    async def resume_generation(self) -> None:
        await self._server.resume()

    async def set_global_steps(self, global_steps: int) -> None:
        await self._server.set_weight_version(global_steps)


class Trainer:
    """How verl's trainers call its servers."""

    def abort_all(self, server: Handle, *, reset_prefix_cache: bool, reject: bool) -> "asyncio.Future[Any]":
        keywords = {"reject_request": True} if reject else {}
        if not reset_prefix_cache:
            keywords["reset_prefix_cache"] = False
        return server.abort_all_requests.remote(**keywords)

    def pause(self, server: Handle, mode: PauseMode, *, clear_cache: bool) -> "asyncio.Future[Any]":
        return server.pause_generation.remote(mode=mode, clear_cache=clear_cache)

    def resume(self, server: Handle) -> "asyncio.Future[Any]":
        return server.resume_generation.remote()

    def set_weight_version(self, server: Handle, version: int) -> "asyncio.Future[Any]":
        return server.set_global_steps.remote(version)

    def abort_request(self, server: Handle, request_id: str) -> "asyncio.Future[Any]":
        return server.abort_request.remote(request_id)
