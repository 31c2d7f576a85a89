"""How the tests of the network run worlds, and a server and a client to run in them."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from sim.clock import Fifo, Order, tamed
from sim.net import Line, NetworkedLoop, StreamNetwork

NO_LINE = Line()
FIFO = Fifo()


def run(main: Callable[[StreamNetwork], Coroutine[Any, Any, Any]], line: Line = NO_LINE, order: Order = FIFO) -> Any:
    """What `main(network)` returns, in a world with the hosts `replica-0` and `replica-1`."""
    loop = NetworkedLoop(order=order, line=line)
    with tamed(loop, seed=1), contextlib.closing(loop):
        loop.network.add_host("replica-0")
        loop.network.add_host("replica-1")
        return loop.run_until_complete(main(loop.network))


def now_s() -> float:
    return asyncio.get_running_loop().time()


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what comes, until nothing more comes."""
    try:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def serve(handle: Handle = echo, host: str = "replica-0") -> asyncio.AbstractServer:
    return await asyncio.start_server(handle, host, 8000)


async def connect(host: str = "replica-0") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(host, 8000)


async def asked(text: bytes, host: str = "replica-0") -> bytes:
    """The echo of the text, over a connection of its own."""
    reader, writer = await connect(host)
    writer.write(text)
    answer = await reader.readexactly(len(text))
    writer.close()
    return answer
