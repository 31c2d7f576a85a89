"""vLLM's HTTP face (0.32), as far as token-in, token-out clients and trainers use it.

`/inference/v1/generate`, `/v1/completions` with a prompt of tokens, `/pause`, `/resume`, `/is_paused`,
`/abort_requests`, `/reset_prefix_cache`, `/health`, `/ping`, `/version` and `/v1/models`. Streams and text are refused.
"""

from typing import Any

from sim.dialects import MAX_TOKENS_KEY
from sim.face.http import HttpAnswer, HttpRequest
from sim.face.replica import Replica
from sim.face.routes import RoutedFace, is_yes, json_object, token_ids_of
from sim.sut.framework import Returned

_MODEL = "rollcage"
_COMPLETIONS_MAX_TOKENS = 16
"""What /v1/completions takes for a limit that is absent or null."""


class VllmFace(RoutedFace):
    """`max_model_len`: what `/v1/models` tells."""

    def __init__(self, replica: Replica, max_model_len: int) -> None:
        super().__init__(replica)
        self._max_model_len = max_model_len
        self.routes = {
            ("POST", "/inference/v1/generate"): self._generate,
            ("POST", "/v1/completions"): self._complete,
            ("POST", "/pause"): self._pause,
            ("POST", "/resume"): self._resume,
            ("GET", "/is_paused"): self._is_paused,
            ("POST", "/abort_requests"): self._abort_requests,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
            ("GET", "/health"): self.say_well,
            ("GET", "/ping"): self.say_well,
            ("GET", "/version"): self._version,
            ("GET", "/v1/models"): self._models,
        }

    def error(self, status: int, message: str) -> HttpAnswer:
        kind = "BadRequestError" if status == 400 else "InternalServerError"
        return HttpAnswer(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})

    # Generation

    async def _generate(self, request: HttpRequest) -> HttpAnswer:
        body = json_object(request)
        params = body.get("sampling_params")
        if not isinstance(params, dict):
            raise ValueError("sampling_params: an object is needed")
        request_id, generated = await self._run(body, body.get("token_ids"), params)
        choice = {
            "index": 0,
            "token_ids": list(generated.token_ids),
            "logprobs": _log_probs(generated),
            "finish_reason": generated.stop_reason,
            "stop_reason": None,
            "routed_experts": None,
        }
        usage = _usage(body["token_ids"], generated)
        return HttpAnswer(200, {"request_id": f"generate-tokens-{request_id}", "choices": [choice], "usage": usage})

    async def _complete(self, request: HttpRequest) -> HttpAnswer:
        body = json_object(request)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
            prompt = prompt[0]
        limit = body.get(MAX_TOKENS_KEY)
        params = {MAX_TOKENS_KEY: _COMPLETIONS_MAX_TOKENS if limit is None else limit, "logprobs": body.get("logprobs")}
        request_id, generated = await self._run(body, prompt, params)
        choice: dict[str, Any] = {
            "index": 0,
            "text": "",
            "logprobs": None,
            "finish_reason": generated.stop_reason,
            "stop_reason": None,
        }
        if generated.log_probs is not None:
            names = [f"token_id:{token_id}" for token_id in generated.token_ids]
            choice["logprobs"] = {"tokens": names, "token_logprobs": list(generated.log_probs)}
        if body.get("return_token_ids"):
            choice |= {"token_ids": list(generated.token_ids), "prompt_token_ids": prompt}
        answer = {"id": f"cmpl-{request_id}", "object": "text_completion", "model": body.get("model", _MODEL)}
        return HttpAnswer(200, {**answer, "choices": [choice], "usage": _usage(prompt, generated)})

    async def _run(self, body: dict[str, Any], token_ids: Any, params: dict[str, Any]) -> tuple[str, Returned]:
        """The id of the request, and what it brought."""
        prompt = token_ids_of(body, token_ids)
        params = {**params, "logprobs": params.get("logprobs") is not None}  # 0 asks for those of the tokens alone
        request_id = body.get("request_id") or self.replica.next_id()
        return request_id, await self.replica.generate(prompt, params, request_id)

    # Control

    async def _pause(self, request: HttpRequest) -> HttpAnswer:
        """Settings are in the query; a body is ignored. `keep` keeps the cache whatever the query says."""
        mode = request.query.get("mode", "abort")
        clear_cache = is_yes(request.query.get("clear_cache", "true"))
        handle = self.replica.handle
        if mode == "abort":
            await handle.abort_all.remote(reset_prefix_cache=clear_cache)
        elif mode in ("wait", "keep"):
            await handle.pause.remote(mode, clear_cache=clear_cache and mode == "wait")
        else:
            raise ValueError(f"mode is {mode!r}; abort, wait or keep is needed")
        return HttpAnswer(200, {"status": "paused"})

    async def _resume(self, request: HttpRequest) -> HttpAnswer:
        del request
        await self.replica.handle.resume.remote()
        return HttpAnswer(200, {"status": "resumed"})

    async def _is_paused(self, request: HttpRequest) -> HttpAnswer:
        del request
        return HttpAnswer(200, {"is_paused": self.replica.server.is_paused})

    async def _abort_requests(self, request: HttpRequest) -> HttpAnswer:
        """Without ids: all."""
        named = json_object(request).get("request_ids") or list(self.replica.live)
        for request_id in named:
            await self.replica.handle.abort_request.remote(request_id, reset_prefix_cache=False)
        return HttpAnswer(200)

    async def _reset_prefix_cache(self, request: HttpRequest) -> HttpAnswer:
        runs = is_yes(request.query.get("reset_running_requests", "false"))
        was_reset = await self.replica.handle.reset_prefix_cache.remote(reset_running_requests=runs)
        return HttpAnswer(200, {"success": was_reset})

    # What it says of itself

    async def _version(self, request: HttpRequest) -> HttpAnswer:
        del request
        return HttpAnswer(200, {"version": "0.32.0"})

    async def _models(self, request: HttpRequest) -> HttpAnswer:
        del request
        model = {"id": _MODEL, "object": "model", "max_model_len": self._max_model_len}
        return HttpAnswer(200, {"object": "list", "data": [model]})


def _usage(prompt: Any, generated: Returned) -> dict[str, int]:
    counts = {"prompt_tokens": len(prompt), "completion_tokens": len(generated.token_ids)}
    return {**counts, "total_tokens": sum(counts.values())}


def _log_probs(generated: Returned) -> Any:
    if generated.log_probs is None:
        return None
    pairs = zip(generated.token_ids, generated.log_probs, strict=True)
    return {"content": [{"token_id": token_id, "logprob": log_prob, "rank": 1} for token_id, log_prob in pairs]}
