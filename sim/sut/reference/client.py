"""Two rollout clients that resume aborted responses, and differ in who sets the limit."""

import asyncio
import itertools
import logging
from typing import Any

from sim.dialects import LIMIT_KEYS
from sim.sut.verl.config import Config
from sim.sut.verl.servers import TokenOutput
from sim.tokens import Tokens

logger = logging.getLogger(__name__)

RESUME_WAIT_S = 1.0
"""How long to wait after an abort before asking again, as verl's client does."""

ABORTED = ("aborted", "abort")


class DeferredClient:
    """Sets no limit of its own: each attempt gets the server's default.

    That is the bug of verl PR 7207: on a resume the prompt holds what was generated so far, and the default charges
    it to the unused prompt allowance instead of the response.
    """

    takes_runs = True

    def __init__(self, config: Config, balancer: Any) -> None:
        self.config = config
        self.balancer = balancer
        self._requests = itertools.count()

    def response_tokens(self, sampling_params: dict[str, Any]) -> int | None:
        """The budget of the whole response: the caller's explicit limit, or None to leave it to the server."""
        return next((sampling_params[key] for key in LIMIT_KEYS if sampling_params.get(key) is not None), None)

    async def generate(
        self, request_id: str, *, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        """One response, resumed after every abort while `partial_rollout` is on."""
        budget = self.response_tokens(sampling_params)
        limit_key = next((key for key in LIMIT_KEYS if key in sampling_params), "max_tokens")
        final = TokenOutput([], [], "length")
        while not self.nothing_left(budget, len(prompt_ids), len(final.token_ids)):
            params = dict(sampling_params)
            if budget is not None:
                for key in LIMIT_KEYS:
                    params.pop(key, None)
                params[limit_key] = budget - len(final.token_ids)
            output = await self.attempt(request_id, prompt_ids + final.token_ids, params, **kwargs)
            self.merge(final, output)
            if output.stop_reason not in ABORTED or not self.config.async_training.partial_rollout:
                break
            if self.nothing_left(budget, len(prompt_ids), len(final.token_ids)):
                final.stop_reason = "length"
                break
            await asyncio.sleep(RESUME_WAIT_S)
        return final

    def nothing_left(self, budget: int | None, prompt_tokens: int, generated_tokens: int) -> bool:
        """Whether the response is at its budget, or the context is full."""
        context_full = prompt_tokens + generated_tokens >= self.config.actor_rollout_ref.rollout.max_model_len
        return context_full or (budget is not None and generated_tokens >= budget)

    async def attempt(
        self, request_id: str, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        """One request: acquire a server, generate, release it whatever happens."""
        server_id, server = await self.acquire(request_id)
        try:
            output: TokenOutput = await server.generate.remote(
                request_id=f"request-{next(self._requests)}",
                prompt_ids=prompt_ids,
                sampling_params=sampling_params,
                **kwargs,
            )
            return output
        finally:
            self.balancer.release_server.remote(server_id=server_id, request_id=request_id)

    async def acquire(self, request_id: str) -> tuple[str, Any]:
        """A server; when the caller is cancelled before the answer comes, the slot is given back once it does."""
        answer = self.balancer.acquire_server.remote(request_id=request_id)
        try:
            server: tuple[str, Any] = await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(lambda late: self._give_back(late, request_id))
            raise
        return server

    def _give_back(self, late: "asyncio.Future[tuple[str, Any]]", request_id: str) -> None:
        if not late.cancelled() and late.exception() is None:
            self.balancer.release_server.remote(server_id=late.result()[0], request_id=request_id)

    def merge(self, final: TokenOutput, output: TokenOutput) -> None:
        """Appends an attempt's output to the response."""
        final.token_ids = final.token_ids + output.token_ids
        if output.log_probs is not None and final.log_probs is not None:
            final.log_probs = final.log_probs + output.log_probs
        final.stop_reason = output.stop_reason
        version: Any = output.extra_fields.get("global_steps")
        if output.token_ids and version is not None:
            # Replicas are updated one after the other: a later answer may be an older version's.
            fields = final.extra_fields
            fields["min_global_steps"] = min(version, fields.get("min_global_steps", version))
            fields["max_global_steps"] = max(version, fields.get("max_global_steps", version))
        final.extra_fields["global_steps"] = version


class PinnedClient(DeferredClient):
    """Pins the cumulative budget from its config: each attempt gets what is left of it. The fix."""

    def response_tokens(self, sampling_params: dict[str, Any]) -> int | None:
        explicit = super().response_tokens(sampling_params)
        if explicit is not None:
            return explicit
        configured = getattr(self.config.actor_rollout_ref.rollout, "response_length", None)
        if type(configured) is int and configured > 0:
            return configured
        self.report_fallback(configured)
        return None

    def report_fallback(self, configured: Any) -> None:
        """Says that the config gives no budget, so that the server's default holds for each attempt."""
        logger.warning("response_length is %r, not a positive integer: leaving the limit to the server", configured)
