"""Clients that send or return something else than is right."""

from typing import Any

from sim.sut.reference.client import PinnedClient
from sim.sut.verl.servers import TokenOutput
from sim.tokens import Tokens


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
