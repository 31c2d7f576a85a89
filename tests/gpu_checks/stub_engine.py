"""An engine on asyncio that keeps vLLM's promises, as far as gpu_checks relies on them: it runs without vLLM."""

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

from gpu_checks.engines import EngineSettings

TOKEN_S = 0.02
"""In seconds of the world's time, as all that sleeps here."""

ABORT_S = 0.5 * TOKEN_S
"""From the word to its effect."""


def params(**arguments: Any) -> SimpleNamespace:
    """Stands for vLLM's SamplingParams, and refuses what that does not know."""
    for name in arguments:
        if name == "max_new_tokens":
            raise TypeError(f"unexpected keyword argument {name!r}")
    return SimpleNamespace(**{"stop_token_ids": None, "min_tokens": 0, **arguments})


class Outputs:
    """The outputs of one request."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()
        self._there = asyncio.Event()

    def put(self, token_ids: list[int], finish_reason: str | None) -> None:
        log_probs = [{token: SimpleNamespace(logprob=-1.0)} for token in token_ids]
        completion = SimpleNamespace(token_ids=token_ids, logprobs=log_probs, finish_reason=finish_reason)
        self._waiting.append(SimpleNamespace(outputs=[completion], finished=finish_reason is not None))
        self._there.set()

    def get_nowait(self) -> Any:
        return self._waiting.popleft() if self._waiting else None

    async def get(self) -> Any:
        while not self._waiting:
            self._there.clear()
            await self._there.wait()
        return self._waiting.popleft()


class StubEngine:
    """Decodes a token each `TOKEN_S`."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Outputs, asyncio.Task[None]]] = {}
        self._open = asyncio.Event()
        self._open.set()

    async def add_request(self, request_id: str, prompt: Any, params: Any) -> Outputs:
        del prompt
        outputs = Outputs()
        self._running[request_id] = outputs, asyncio.create_task(self._decode(request_id, outputs, params))
        return outputs

    def length(self, params: Any) -> tuple[int, str]:
        """Tokens of an output, and what ends it."""
        if params.stop_token_ids and params.min_tokens < params.max_tokens:
            return params.min_tokens + 1, "stop"
        return params.max_tokens, "length"

    async def _decode(self, request_id: str, outputs: Outputs, params: Any) -> None:
        await self._open.wait()
        tokens, reason = self.length(params)
        for number in range(1, tokens + 1):
            await asyncio.sleep(TOKEN_S)
            outputs.put([number], reason if number == tokens else None)
        del self._running[request_id]

    async def abort(self, request_id: str) -> None:
        await asyncio.sleep(ABORT_S)
        running = self._running.pop(request_id, None)
        if running is not None:
            outputs, task = running
            task.cancel()
            outputs.put([], "abort")

    async def pause_generation(self, mode: str = "abort", clear_cache: bool = True) -> None:
        assert mode == "abort"
        del clear_cache
        await asyncio.sleep(ABORT_S)
        self._open.clear()
        for request_id, (outputs, task) in list(self._running.items()):
            del self._running[request_id]
            task.cancel()
            outputs.put([], "abort")
        await asyncio.sleep(TOKEN_S)

    async def resume_generation(self) -> None:
        self._open.set()

    async def reset_prefix_cache(self) -> bool:
        return True


class StubEngines:
    """As `gpu_checks.engines.RealEngines`."""

    max_model_len = 32_768
    vocabulary_size = 512

    def __init__(self, loop: asyncio.AbstractEventLoop, engine_class: type[StubEngine] = StubEngine) -> None:
        self.loop = loop
        self.settings = EngineSettings(replicas_max=3)
        self._engines = [engine_class() for _ in range(self.settings.replicas_max)]

    def take(self, count: int) -> list[Any]:
        return self._engines[:count]
