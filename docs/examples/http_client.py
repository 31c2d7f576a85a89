"""A rollout client over HTTP. Put your own against vLLM's face, unmodified:

rollcage hunt --sut docs.examples.http_client:build --face vllm
"""

import asyncio
import logging
import zlib
from types import SimpleNamespace
from typing import Any

import aiohttp

logger = logging.getLogger(__name__)

LIMITS = ("max_tokens", "max_new_tokens")  # as callers spell them


def build(context: Any) -> "Client":
    return Client(list(context.urls.values()), context.config.actor_rollout_ref.rollout)


build.rollcage_policies = {"budget": "turn"}  # type: ignore[attr-defined]  # response_length limits one call


class Client:
    def __init__(self, urls: list[str], rollout: Any) -> None:
        self.urls, self.max_model_len = urls, rollout.max_model_len
        self.response_length = getattr(rollout, "response_length", None)
        if type(self.response_length) is not int or self.response_length <= 0:
            logger.warning("response_length is %r: responses may fill the context", self.response_length)
            self.response_length = None
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))  # a long response takes its time

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """One response, resumed after every abort, that uses its budget and no more."""
        url = self.urls[zlib.crc32(request_id.encode()) % len(self.urls)]  # a session stays where its KV is
        limits = [sampling_params[key] for key in LIMITS if sampling_params.get(key) is not None]
        limit = limits[0] if limits else self.response_length
        room = self.max_model_len - len(prompt_ids)
        budget = room if limit is None else min(limit, room)
        response = SimpleNamespace(token_ids=[], log_probs=[], stop_reason="length", extra_fields={})
        while len(response.token_ids) < budget:
            params = {key: value for key, value in sampling_params.items() if key not in LIMITS} | {"logprobs": 0}
            if limit is not None:  # else the server's default holds, which is the room
                params["max_tokens"] = self.left(budget, response)
            body = {"token_ids": prompt_ids + response.token_ids, "sampling_params": params}
            async with self.http.post(f"{url}/inference/v1/generate", json=body) as answer:
                answer.raise_for_status()
                choice = (await answer.json())["choices"][0]
            response.token_ids += choice["token_ids"]
            response.log_probs += [each["logprob"] for each in choice["logprobs"]["content"]]
            response.stop_reason = choice["finish_reason"]
            if response.stop_reason != "abort":
                return response
            await asyncio.sleep(1)
        response.stop_reason = "length"
        return response

    def left(self, budget: int, response: Any) -> int:
        return budget - len(response.token_ids)


class Overrunning(Client):
    """A wrong one: each attempt is granted the whole budget."""

    def left(self, budget: int, response: Any) -> int:
        del response
        return budget


def build_overrunning(context: Any) -> Client:
    return Overrunning(list(context.urls.values()), context.config.actor_rollout_ref.rollout)


build_overrunning.rollcage_policies = {"budget": "turn"}  # type: ignore[attr-defined]
