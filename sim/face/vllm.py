"""vLLM's HTTP face (0.32), as far as token-in, token-out clients and trainers use it.

`/inference/v1/generate`, `/v1/completions` with a prompt of tokens, `/pause`, `/resume`, `/is_paused`,
`/abort_requests`, `/reset_prefix_cache`, `/health`, `/ping`, `/version` and `/v1/models`. Streams and text are refused.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from sim.dialects import MAX_TOKENS_KEY, Refused
from sim.face.http import HangUp, HttpAnswer, HttpRequest
from sim.face.replica import Generated, Replica
from sim.servers.failures import ActorError, CallFailed

_MODEL = "rollcage"
_COMPLETIONS_MAX_TOKENS = 16
"""What /v1/completions takes for a limit that is absent or null."""


class VllmFace:
    """Answers a replica's requests; `max_model_len` is what `/v1/models` tells. See `sim.face.http.Handle`."""

    def __init__(self, replica: Replica, max_model_len: int) -> None:
        self._replica = replica
        self._max_model_len = max_model_len
        self._routes: dict[tuple[str, str], Callable[[HttpRequest], Awaitable[HttpAnswer]]] = {
            ("POST", "/inference/v1/generate"): self._generate,
            ("POST", "/v1/completions"): self._complete,
            ("POST", "/pause"): self._pause,
            ("POST", "/resume"): self._resume,
            ("GET", "/is_paused"): self._is_paused,
            ("POST", "/abort_requests"): self._abort_requests,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/v1/models"): self._models,
        }

    async def __call__(self, request: HttpRequest) -> HttpAnswer:
        route = self._routes.get((request.method, request.path))
        if route is None:
            is_known = any(path == request.path for _, path in self._routes)
            return HttpAnswer(405, {"detail": "Method Not Allowed"}) if is_known else _not_found()
        try:
            return await route(request)
        except ActorError as error:  # the replica, or the way to it, is gone
            raise HangUp from error
        except CallFailed as error:
            return _error(500, "InternalServerError", str(error))
        except (Refused, TypeError, ValueError, LookupError) as error:
            return _error(400, "BadRequestError", str(error))

    # Generation

    async def _generate(self, request: HttpRequest) -> HttpAnswer:
        body = _object(request)
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
        body = _object(request)
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

    async def _run(self, body: dict[str, Any], token_ids: Any, params: dict[str, Any]) -> tuple[str, Generated]:
        """The id of the request, and what it brought."""
        if body.get("stream"):
            raise ValueError("stream: this face does not stream")
        if not (isinstance(token_ids, list) and token_ids and all(type(each) is int for each in token_ids)):
            raise ValueError("a list of at least one token id is needed; this face knows no text")
        replica = self._replica
        params = {**params, "logprobs": params.get("logprobs") is not None}  # 0 asks for those of the tokens alone
        request_id = body.get("request_id") or f"{replica.server.replica}-{replica.requests}"
        replica.requests += 1
        return request_id, await replica.generate(token_ids, params, request_id)

    # Control

    async def _pause(self, request: HttpRequest) -> HttpAnswer:
        """Settings are in the query; a body is ignored. `keep` keeps the cache whatever the query says."""
        mode = request.query.get("mode", "abort")
        clear_cache = request.query.get("clear_cache", "true").lower() in ("true", "1")
        handle = self._replica.handle
        if mode == "abort":
            await handle.abort_all.remote(reset_prefix_cache=clear_cache)
        elif mode in ("wait", "keep"):
            await handle.pause.remote(mode, clear_cache=clear_cache and mode == "wait")
        else:
            raise ValueError(f"mode is {mode!r}; abort, wait or keep is needed")
        return HttpAnswer(200, {"status": "paused"})

    async def _resume(self, request: HttpRequest) -> HttpAnswer:
        del request
        await self._replica.handle.resume.remote()
        return HttpAnswer(200, {"status": "resumed"})

    async def _is_paused(self, request: HttpRequest) -> HttpAnswer:
        del request
        return HttpAnswer(200, {"is_paused": self._replica.server.is_paused})

    async def _abort_requests(self, request: HttpRequest) -> HttpAnswer:
        """Without ids: all."""
        named = _object(request).get("request_ids") or list(self._replica.live)
        for request_id in named:
            await self._replica.handle.abort_request.remote(request_id, reset_prefix_cache=False)
        return HttpAnswer(200)

    async def _reset_prefix_cache(self, request: HttpRequest) -> HttpAnswer:
        runs = request.query.get("reset_running_requests", "false").lower() in ("true", "1")
        was_reset = await self._replica.handle.reset_prefix_cache.remote(reset_running_requests=runs)
        return HttpAnswer(200, {"success": was_reset})

    # What it says of itself

    async def _health(self, request: HttpRequest) -> HttpAnswer:
        del request
        return HttpAnswer(200)

    async def _version(self, request: HttpRequest) -> HttpAnswer:
        del request
        return HttpAnswer(200, {"version": "0.32.0"})

    async def _models(self, request: HttpRequest) -> HttpAnswer:
        del request
        model = {"id": _MODEL, "object": "model", "max_model_len": self._max_model_len}
        return HttpAnswer(200, {"object": "list", "data": [model]})


def _object(request: HttpRequest) -> dict[str, Any]:
    found = request.json()
    if not isinstance(found, dict):
        raise ValueError("the body must be a JSON object")
    return found


def _usage(prompt: Any, generated: Generated) -> dict[str, int]:
    counts = {"prompt_tokens": len(prompt), "completion_tokens": len(generated.token_ids)}
    return {**counts, "total_tokens": sum(counts.values())}


def _log_probs(generated: Generated) -> Any:
    if generated.log_probs is None:
        return None
    pairs = zip(generated.token_ids, generated.log_probs, strict=True)
    return {"content": [{"token_id": token_id, "logprob": log_prob, "rank": 1} for token_id, log_prob in pairs]}


def _error(status: int, kind: str, message: str) -> HttpAnswer:
    return HttpAnswer(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})


def _not_found() -> HttpAnswer:
    return HttpAnswer(404, {"detail": "Not Found"})
