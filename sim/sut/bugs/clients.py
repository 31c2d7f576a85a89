"""Clients that go wrong with budgets, empty answers and slots."""

from typing import Any

from sim.dialects import LIMIT_KEYS
from sim.sut.reference.client import PinnedClient
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


class AveragingClient(PinnedClient):
    """Divides by the number of tokens of each answer."""

    def merge(self, final: TokenOutput, output: TokenOutput) -> None:
        super().merge(final, output)
        if sum(output.log_probs or ()) / len(output.token_ids) > 0:
            raise ValueError("a probability above 1")


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
