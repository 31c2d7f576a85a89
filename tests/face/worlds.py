"""A world whose servers speak HTTP, and in which a test's own code is what the client does for each turn."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp

from sim.case import Budget, Case, Session
from sim.settings import ServerSettings
from sim.sut.registry import sut_of
from sim.trace import Trace
from sim.world import run_world

BUDGET = Budget(prompt_length=8, response_length=10, max_model_len=64)
SERVER = ServerSettings(dialect="plain-vllm", face="vllm", token_time_s=1.0)


class Http:
    """Calls of the replica that `path` begins with, or the first; each returns the status and the JSON, or None."""

    def __init__(self, session: aiohttp.ClientSession, urls: dict[str, str]) -> None:
        self.session = session
        self.urls = urls

    async def post(self, path: str, body: Any = None, replica: int = 0) -> tuple[int, Any]:
        return await self._call("POST", path, body, replica)

    async def get(self, path: str, replica: int = 0) -> tuple[int, Any]:
        return await self._call("GET", path, None, replica)

    async def _call(self, method: str, path: str, body: Any, replica: int) -> tuple[int, Any]:
        url = list(self.urls.values())[replica] + path
        async with self.session.request(method, url, json=body) as answer:
            return answer.status, await answer.json() if await answer.read() else None

    async def generate(self, token_ids: list[int], replica: int = 0, **params: Any) -> Any:
        """The choice, if all went well; else the error's message."""
        body = {"token_ids": token_ids, "sampling_params": params}
        status, answer = await self.post("/inference/v1/generate", body, replica)
        return answer["choices"][0] if status == 200 else answer["error"]["message"]


Turn = Callable[[Http, list[int]], Awaitable[Any]]


class Ran(NamedTuple):
    found: Any
    """What the last turn returned."""
    trace: Trace


def in_a_world(turn: Turn, **settings: Any) -> Ran:
    """Runs `turn(http, prompt_ids)` for each turn of each session; a prompt has 4 tokens. What it raises is raised."""
    found: list[Any] = []
    raised: list[Exception] = []

    class Client:
        def __init__(self, context: Any) -> None:
            self.http = Http(aiohttp.ClientSession(), context.urls)

        async def generate(self, request_id: str, *, prompt_ids: list[int], **_: Any) -> Any:
            try:
                found.append(await turn(self.http, prompt_ids))
            except Exception as error:
                raised.append(error)
                raise
            return SimpleNamespace(token_ids=[prompt_ids[-1] + 1], stop_reason="stop", extra_fields={})

    case = Case(**{"budget": BUDGET, "sessions": (Session(4),), "server": SERVER, **settings})
    trace = run_world(case, sut_of("a test's", Client))
    if raised:
        raise raised[0]
    return Ran(found[-1] if found else None, trace)
