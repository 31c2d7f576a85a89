"""Unmodified HTTP libraries in a world: clients, servers, and what they hold that a world must have otherwise."""

import asyncio
import gc
import ssl
import time
from collections.abc import Callable
from typing import Any

import pytest

from sim.net import Line, StreamNetwork, TlsRefused
from tests.net.runs import connect, now_s, run

aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed (extra http)")
httpx = pytest.importorskip("httpx", reason="httpx is not installed (extra http)")
openai = pytest.importorskip("openai", reason="openai is not installed (extra http)")
pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra http)")

from tests.net.http_parties import ask_aiohttp, ask_httpx, serve_aiohttp, serve_uvicorn  # noqa: E402


async def ask_openai(host: str) -> Any:
    async with openai.AsyncOpenAI(base_url=f"http://{host}:8000/v1", api_key="any") as client:
        return (await client.chat.completions.create(model="m", messages=[])).choices[0].message.content


@pytest.mark.parametrize("serve", [serve_aiohttp, serve_uvicorn])
@pytest.mark.parametrize("ask", [ask_aiohttp, ask_httpx, ask_openai])
def test_clients_reach_servers(ask: Callable[[str], Any], serve: Callable[[], Any]) -> None:
    async def main(_: StreamNetwork) -> tuple[str, float]:
        await serve()
        return await ask("replica-0"), now_s()

    assert run(main, Line(latency_s=0.5)) == ("hello", 3)  # to connect, to answer, there and back


@pytest.mark.parametrize("ask", [ask_aiohttp, ask_httpx, ask_openai])
def test_connections_are_used_again_and_closed_in_the_end(ask: Callable[[str], Any]) -> None:
    async def main(network: StreamNetwork) -> list[str]:
        runner = await serve_aiohttp()
        await asyncio.gather(*(ask("replica-0") for _ in range(5)))
        await asyncio.sleep(1)
        left = network.open_connections
        await runner.cleanup()
        return left + network.listening

    assert run(main) == []


def test_a_connection_is_used_again() -> None:
    async def main(_: StreamNetwork) -> float:
        await serve_aiohttp()
        async with aiohttp.ClientSession() as session:
            for _ in range(3):
                await ask_aiohttp("replica-0", session)
        return now_s()

    assert run(main, Line(latency_s=0.5)) == 1 + 3 * 2


def test_a_client_that_goes_is_heard_by_the_server() -> None:
    async def main(_: StreamNetwork) -> list[float]:
        gone = []

        async def wait(request: Any) -> Any:
            while request.transport is not None:
                await asyncio.sleep(0.25)
            gone.append(now_s())
            raise ConnectionError

        await serve_aiohttp(handle=wait)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await ask_aiohttp("replica-0")
        await asyncio.sleep(2)
        return gone

    assert run(main, Line(latency_s=0.1)) == [pytest.approx(10.2, abs=0.2)]


@pytest.mark.parametrize("ask", [ask_aiohttp, ask_httpx])
def test_a_reset_within_an_answer_is_the_librarys_own_error(ask: Callable[[str], Any]) -> None:
    async def main(network: StreamNetwork) -> None:
        await serve_aiohttp()
        for after_bytes in (0, 200):
            network.cut_answer("replica-0", after_bytes)
            with pytest.raises((aiohttp.ClientError, httpx.TransportError)):
                await ask("replica-0")

    run(main)


@pytest.mark.parametrize("client", [aiohttp.ClientSession, httpx.AsyncClient])
def test_https_is_refused_at_once(client: Callable[[], Any]) -> None:
    async def main(network: StreamNetwork) -> float:
        await serve_aiohttp()
        async with client() as session:
            with pytest.raises(TlsRefused, match=r"TLS.* replica-0 in a world: its network has no TLS; use http://"):
                await session.get("https://replica-0:8000")
        await asyncio.sleep(0)
        return now_s()

    assert run(main) == 0


def test_servers_with_tls_are_refused() -> None:
    async def main(_: StreamNetwork) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with pytest.raises(TlsRefused, match="a server with TLS on port 8000"):
            await asyncio.start_server(lambda *_: None, "replica-0", 8000, ssl=context)  # type: ignore[arg-type]
        with pytest.raises(TlsRefused, match="start_tls"):
            await asyncio.get_running_loop().start_tls(None, None, context)  # type: ignore[arg-type]

    run(main)


def test_clocks_that_a_library_holds_by_value_show_virtual_time() -> None:
    from aiohttp import connector

    async def main(_: StreamNetwork) -> float:
        await asyncio.sleep(5)
        return connector.monotonic()

    before = connector.monotonic
    assert run(main) == 5
    assert connector.monotonic is before is time.monotonic
    connector.monotonic = lambda: -1.0  # as if it had been imported within a world
    assert run(main) == 5
    assert connector.monotonic is time.monotonic


def test_a_tls_context_is_made_once() -> None:
    async def main(_: StreamNetwork) -> Any:
        return ssl.create_default_context(cadata=None)

    assert run(main) is run(main)
    assert ssl.create_default_context(cadata=None) is not run(main)


def test_aiohttp_looks_names_up_in_the_world() -> None:
    async def main(_: StreamNetwork) -> None:
        with pytest.raises(aiohttp.ClientConnectorDNSError, match=r"api\.example"):
            await ask_aiohttp("api.example")
        with pytest.raises(OSError, match=r"api\.example"):
            await connect("api.example")

    run(main)


@pytest.mark.filterwarnings("error")
def test_a_session_that_is_left_open_is_closed_with_its_world() -> None:
    async def main(_: StreamNetwork) -> list[Any]:
        await serve_aiohttp()
        used, unused, busy = (aiohttp.ClientSession() for _ in range(3))
        await ask_aiohttp("replica-0", used)
        asyncio.get_running_loop().create_task(ask_aiohttp("replica-0", busy))
        await asyncio.sleep(0.5)
        return [used, unused, busy]

    assert all(session.closed for session in run(main))
    gc.collect()  # would warn
