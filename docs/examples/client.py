"""A complete rollout client that breaks no invariant. Copy it, or put your own against it:

rollcage hunt --sut docs.examples.client:build
pytest properties/ --sut docs.examples.client:build
"""

import asyncio
import itertools
import logging
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

LIMITS = ("max_tokens", "max_new_tokens")  # SGLang spells it max_new_tokens
ABORTED = ("aborted", "abort")  # SGLang says abort
RESUME_AFTER_S = 1.0


def build(context: Any) -> "Client":
    return Client(context.config, context.balancer)


build.rollcage_policies = {"budget": "turn"}  # type: ignore[attr-defined]  # response_length limits one call


@dataclass
class Response:
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stop_reason: str = "length"
    extra_fields: dict[str, Any] = field(default_factory=dict)

    def add(self, output: Any) -> None:
        """An attempt's answer; one of no tokens is an answer too."""
        self.token_ids = self.token_ids + output.token_ids
        self.log_probs = self.log_probs + (output.log_probs or [])
        self.stop_reason = output.stop_reason
        version = output.extra_fields.get("global_steps")
        if output.token_ids and version is not None:  # not of the newest weights, always
            oldest, newest = (self.extra_fields.get(f"{end}_global_steps", version) for end in ("min", "max"))
            self.extra_fields |= {"min_global_steps": min(oldest, version), "max_global_steps": max(newest, version)}


class Client:
    def __init__(self, config: Any, balancer: Any) -> None:
        self.config = config
        self.balancer = balancer
        self.numbers = itertools.count()

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> Response:
        """One response, resumed after every abort, that uses its budget and no more."""
        budget = self.budget(sampling_params)
        response = Response()
        while self.is_room(prompt_ids, response, budget):  # a budget of 0, or a full context, is no request at all
            output = await self.attempt(
                request_id, prompt_ids + response.token_ids, self.params(sampling_params, budget, response), **kwargs
            )
            response.add(output)
            if output.stop_reason not in ABORTED or not self.config.async_training.partial_rollout:
                return response
            if self.is_room(prompt_ids, response, budget):
                await asyncio.sleep(RESUME_AFTER_S)
        response.stop_reason = "length"
        return response

    def budget(self, sampling_params: dict[str, Any]) -> int | None:
        """The caller's limit, be it lower or higher than response_length; else that. None: neither can be used."""
        for key in LIMITS:
            if sampling_params.get(key) is not None:
                limit: int = sampling_params[key]
                return limit
        configured = getattr(self.config.actor_rollout_ref.rollout, "response_length", None)
        if type(configured) is int and configured > 0:  # True is an int, and no length
            return configured
        logger.warning("response_length is %r, no positive integer: the server's default holds", configured)
        return None

    def params(self, sampling_params: dict[str, Any], budget: int | None, response: Response) -> dict[str, Any]:
        """A copy, with what is left of the budget in the spelling that the caller used: the server's default would
        grant a resume what was used already."""
        params = {key: value for key, value in sampling_params.items() if key not in LIMITS}
        if budget is not None:
            key = next((key for key in LIMITS if key in sampling_params), LIMITS[0])
            params[key] = budget - len(response.token_ids)
        return params

    def is_room(self, prompt_ids: list[int], response: Response, budget: int | None) -> bool:
        used = len(response.token_ids)
        context: int = self.config.actor_rollout_ref.rollout.max_model_len
        return len(prompt_ids) + used < context and (budget is None or used < budget)

    async def attempt(self, request_id: str, prompt_ids: list[int], params: dict[str, Any], **kwargs: Any) -> Any:
        """One request, under an id of its own; the slot is given back whatever happens."""
        server_id, server = await self.acquire(request_id)
        try:
            return await server.generate.remote(
                request_id=f"{request_id}-{next(self.numbers)}",
                prompt_ids=prompt_ids,
                sampling_params=params,
                **kwargs,
            )
        finally:
            self.release(server_id)

    async def acquire(self, request_id: str) -> Any:
        """A server. Who is cancelled while it waits for one is granted a slot all the same, and gives it back."""
        answer = asyncio.ensure_future(self.balancer.acquire_server.remote(request_id=request_id))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(self.give_back)
            raise

    def give_back(self, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.release(answer.result()[0])

    def release(self, server_id: str) -> None:
        self.balancer.release_server.remote(server_id=server_id)
