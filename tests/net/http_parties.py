"""Unmodified HTTP servers and clients for the tests of the network. Import it where the extra http is installed."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import uvicorn
from aiohttp import web
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

COMPLETION = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
}


async def answer(request: Any) -> Any:
    """After a second."""
    await request.read()
    await asyncio.sleep(1)
    return web.json_response(COMPLETION)


async def serve_aiohttp(host: str = "replica-0", handle: Callable[[Any], Any] = answer) -> Any:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, host, 8000).start()
    return runner


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers as `answer` does."""
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(1)
    content = web.json_response(COMPLETION).body
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": content})


async def serve_uvicorn(host: str = "replica-0") -> Any:
    config = uvicorn.Config(asgi, log_config=None, lifespan="off")
    config.load()
    state = ServerState()
    return await asyncio.get_running_loop().create_server(lambda: H11Protocol(config, state, {}), host, 8000)


async def ask_aiohttp(host: str, session: Any = None) -> Any:
    if session is None:
        async with aiohttp.ClientSession() as session:
            return await ask_aiohttp(host, session)
    async with session.post(f"http://{host}:8000/v1/chat/completions", json={}) as response:
        return (await response.json())["choices"][0]["message"]["content"]


async def ask_httpx(host: str) -> Any:
    async with httpx.AsyncClient() as client:
        response = await client.post(f"http://{host}:8000/v1/chat/completions", json={})
        return response.json()["choices"][0]["message"]["content"]
