"""SGLang's HTTP face (0.5.23), as far as token-in, token-out clients and trainers use it.

`/generate`, `/abort_request`, `/pause_generation`, `/continue_generation`, `/update_weight_version`, `/flush_cache`,
`/health`, `/health_generate`, `/model_info` and `/server_info`. Streams, text and batches are refused.
"""

from typing import Any

from sim.face.http import HttpAnswer, HttpRequest
from sim.face.replica import Replica
from sim.face.routes import RoutedFace, json_object, token_ids_of
from sim.sut.framework import Returned


class SglangFace(RoutedFace):
    """`context_tokens`: what `/model_info` tells."""

    def __init__(self, replica: Replica, context_tokens: int) -> None:
        super().__init__(replica)
        self._context_tokens = context_tokens
        self._label: str | None = None
        """The weights' version as a trainer has named it."""
        self.routes = {
            ("POST", "/generate"): self._generate,
            ("POST", "/abort_request"): self._abort_request,
            ("POST", "/pause_generation"): self._pause,
            ("POST", "/continue_generation"): self._resume,
            ("POST", "/update_weight_version"): self._update_weight_version,
            ("GET", "/health"): self.say_well,
            ("GET", "/health_generate"): self.say_well,
            **{(method, "/flush_cache"): self._flush_cache for method in ("GET", "POST")},
            **{("GET", path): self._model_info for path in ("/model_info", "/get_model_info")},
            **{("GET", path): self._server_info for path in ("/server_info", "/get_server_info")},
        }

    def error(self, status: int, message: str) -> HttpAnswer:
        return HttpAnswer(status, {"error": {"message": message}})

    async def _generate(self, request: HttpRequest) -> HttpAnswer:
        body = json_object(request)
        prompt = token_ids_of(body, body.get("input_ids"))
        rid = body.get("rid") or self.replica.next_id()
        params = {**(body.get("sampling_params") or {}), "logprobs": bool(body.get("return_logprob"))}
        generated = await self.replica.generate(prompt, params, rid)
        ids = list(generated.token_ids)
        meta: dict[str, Any] = {
            "id": rid,
            "finish_reason": _finish_reason(generated),
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "weight_version": str(self.replica.server.version) if self._label is None else self._label,
        }
        if generated.log_probs is not None:
            pairs = zip(generated.log_probs, ids, strict=True)
            meta["output_token_logprobs"] = [[log_prob, token_id, None] for log_prob, token_id in pairs]
        return HttpAnswer(200, {"text": "", "output_ids": ids, "meta_info": meta})

    async def _abort_request(self, request: HttpRequest) -> HttpAnswer:
        """`rid` is the beginning of an id. It is answered at once."""
        body = json_object(request)
        await self._abort("" if body.get("abort_all") else body.get("rid") or "", is_all=bool(body.get("abort_all")))
        return HttpAnswer(200)

    async def _abort(self, prefix: str, *, is_all: bool) -> None:
        if not (prefix or is_all):
            return
        for rid in [each for each in self.replica.live if each.startswith(prefix)]:
            await self.replica.handle.abort_request.remote(rid, reset_prefix_cache=False)

    async def _pause(self, request: HttpRequest) -> HttpAnswer:
        """`abort` ends what runs; `retract` has it computed anew after the pause; `in_place` keeps its KV."""
        mode = json_object(request).get("mode", "abort")
        handle = self.replica.handle
        if mode == "abort":
            await handle.abort_all.remote(reset_prefix_cache=False)
        elif mode in ("retract", "in_place"):
            await handle.pause.remote("keep", clear_cache=mode == "retract")
        else:
            raise ValueError(f"mode is {mode!r}; abort, retract or in_place is needed")
        return HttpAnswer(200, {"message": "Generation paused successfully.", "status": "ok"})

    async def _resume(self, request: HttpRequest) -> HttpAnswer:
        del request
        await self.replica.handle.resume.remote()
        return HttpAnswer(200, {"message": "Generation continued successfully.", "status": "ok"})

    async def _update_weight_version(self, request: HttpRequest) -> HttpAnswer:
        """Names the version, and ends everything under way unless it is told not to."""
        body = json_object(request)
        if body.get("abort_all_requests", True):
            await self._abort("", is_all=True)
        self._label = str(body["new_version"])
        return HttpAnswer(200, {"success": True, "new_version": self._label})

    async def _flush_cache(self, request: HttpRequest) -> HttpAnswer:
        """400 while anything runs."""
        del request
        was_reset = await self.replica.handle.reset_prefix_cache.remote(reset_running_requests=False)
        return HttpAnswer(200 if was_reset else 400)

    async def _model_info(self, request: HttpRequest) -> HttpAnswer:
        del request
        told = {} if self._label is None else {"weight_version": self._label}
        return HttpAnswer(200, {"model_path": "rollcage", "is_generation": True, **told})

    async def _server_info(self, request: HttpRequest) -> HttpAnswer:
        del request
        return HttpAnswer(200, {"context_length": self._context_tokens, "version": "0.5.23"})


def _finish_reason(generated: Returned) -> dict[str, Any]:
    match generated.stop_reason:
        case "length":
            return {"type": "length", "length": len(generated.token_ids)}
        case "abort":
            # One that has no token yet had not begun to run, or all but.
            message = "Aborted" if generated.token_ids else "Abort in waiting queue"
            return {"type": "abort", "message": message, "status_code": None, "err_type": None}
        case reason:
            return {"type": reason}
