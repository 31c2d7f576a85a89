"""Clients and trainers that go wrong where servers fail."""

import asyncio
import dataclasses
from typing import Any

from sim.servers.failures import ActorDiedError, ActorUnavailableError, ServerError
from sim.sut.reference.client import RESUME_WAIT_S, PinnedClient
from sim.sut.verl.config import Config
from sim.sut.verl.servers import TokenOutput, Trainer
from sim.tokens import Tokens
from sim.transport.handles import Handle


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


class TwiceAskingClient(PinnedClient):
    """Asks once more where an answer is late, and takes the first that comes."""

    async def attempt(
        self, request_id: str, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        asked = [asyncio.ensure_future(super().attempt(request_id, prompt_ids, dict(sampling_params), **kwargs))]
        done, _ = await asyncio.wait(asked, timeout=PATIENCE_S)
        if not done:
            asked.append(asyncio.ensure_future(super().attempt(request_id, prompt_ids, sampling_params, **kwargs)))
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        return next(call for call in asked if call.done()).result()


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
