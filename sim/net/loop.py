"""A virtual loop that has a network: asyncio's calls for streams and names, in memory and virtual time."""

import asyncio
import os
import socket
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from sim.clock import Replacement, VirtualLoop
from sim.net.host import Line
from sim.net.libraries import Opened, close_all, replacements
from sim.net.network import AddressInfo, StreamNetwork
from sim.net.sockets import Address
from sim.net.stream import End, TlsRefused

P = TypeVar("P", bound=asyncio.BaseProtocol)

_NO_LINE = Line()


def _text(host: str | bytes | None) -> str:
    return host.decode("ascii") if isinstance(host, bytes) else str(host)


class NetworkedLoop(VirtualLoop):
    """A `VirtualLoop` with a `network`, whose hosts have `line` unless they are given another.

    Unmodified asyncio streams, aiohttp, httpx and what is built on them run on it, and the protocol classes of servers.
    `create_connection`, `create_server`, `getaddrinfo`, `getnameinfo` and `sock_connect` are there; TLS, and a socket
    that comes from elsewhere, are refused at once, and all else stays refused by name.
    """

    def __init__(self, *args: Any, line: Line = _NO_LINE, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.network = StreamNetwork(self, line)
        self._opened: Opened = weakref.WeakKeyDictionary()
        self._connected: weakref.WeakKeyDictionary[socket.socket, End] = weakref.WeakKeyDictionary()
        """By the sockets that their callers hold, between `sock_connect` and `create_connection`."""

    def replacements(self) -> tuple[Replacement, ...]:
        return (*super().replacements(), *replacements(self, self._opened))

    def close(self) -> None:
        if not (self.is_closed() or self.is_running()):
            close_all(self._opened)
            self.network.close()
        super().close()

    # Names

    async def getaddrinfo(  # type: ignore[override]
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[AddressInfo]:
        del proto
        await asyncio.sleep(0)
        return self.network.resolve(host, port, family, type, flags)

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        await asyncio.sleep(0)
        address, port = sockaddr[:2]
        return address if flags & socket.NI_NUMERICHOST else self.network.name_of(address), str(port)

    # Clients

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Connects what the socket then stands for. It gives up its descriptor, which is of no use."""
        if (descriptor := sock.detach()) >= 0:
            os.close(descriptor)
        self._connected[sock] = await self.network.connect(address)

    async def create_connection(
        self,
        protocol_factory: Callable[[], P],
        host: str | bytes | None = None,
        port: str | bytes | int | None = None,
        *,
        ssl: Any = None,
        family: int = 0,
        flags: int = 0,
        sock: socket.socket | None = None,
        **_: Any,
    ) -> tuple[End, P]:
        """Other settings (`local_addr`, `happy_eyeballs_delay`, …) have no effect."""
        end = None if sock is None else self._connected.pop(sock, None)
        if ssl:
            if end is not None:
                end.abort()
            raise TlsRefused(f"a connection with TLS to {end.host.name if end else _text(host)}")
        if sock is not None and end is None:
            raise ValueError(f"create_connection(sock={sock!r}) in a world: it was not connected by sock_connect")
        if end is None:
            infos = await self.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=flags)
            end = await self.network.connect(infos[0][4])
        protocol = protocol_factory()
        begun = self.create_future()
        end.take(protocol, begun)
        try:
            await begun
        except BaseException:
            end.close()
            raise
        return end, protocol

    # Servers

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | bytes | Iterable[str] | None = None,
        port: int | None = None,
        *,
        family: int = 0,
        flags: int = socket.AI_PASSIVE,
        sock: Any = None,
        ssl: Any = None,
        start_serving: bool = True,
        **_: Any,
    ) -> asyncio.AbstractServer:
        """Other settings (`backlog`, `reuse_port`, …) have no effect."""
        if ssl:
            raise TlsRefused(f"a server with TLS on port {port}")
        if sock is not None:
            raise ValueError(f"create_server(sock={sock!r}) in a world: give it a host and a port")
        hosts: Sequence[Any] = [host or None] if host is None or isinstance(host, str | bytes) else list(host)
        places: list[Address] = []
        for each in hosts:
            places += [info[4] for info in await self.getaddrinfo(each, port, family=family, flags=flags)]
        listener = self.network.listen(protocol_factory, places)
        if start_serving:
            listener.serve()
        return listener

    async def start_tls(self, *_: Any, **__: Any) -> NoReturn:
        raise TlsRefused("start_tls")
