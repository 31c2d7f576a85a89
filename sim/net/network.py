"""The network of a world: hosts with names, who listens where, connections, and the faults that befall them.

Names are those of `add_host` and `localhost`; no other resolves. The code of a world runs on no host in particular: it
may listen on any, and a connection has the line and the troubles of the host that is called. Addresses are IPv4.
"""

import asyncio
import contextvars
import ipaddress
import os
import socket
from collections.abc import Callable, Iterable
from errno import EADDRINUSE, EADDRNOTAVAIL, ECONNREFUSED, EHOSTUNREACH
from typing import Any

from sim.clock import NS_PER_S, VirtualLoop
from sim.net.host import Host, Line
from sim.net.listening import Listener
from sim.net.sockets import Address
from sim.net.stream import End

ANYWHERE = "0.0.0.0"
_LOCAL = "127.0.0.1"
_FIRST_HOST = int(ipaddress.IPv4Address("127.1.0.1"))
_FIRST_PORT = 49152
_SERVICES = {"http": 80, "https": 443}

AddressInfo = tuple[Any, Any, int, str, Address]
"""As `socket.getaddrinfo` has it."""


class StreamNetwork:
    """`line`: that of hosts which are given none of their own. `localhost` has one without latency."""

    def __init__(self, loop: VirtualLoop, line: Line = Line()) -> None:  # noqa: B008  # is frozen
        self._loop = loop
        self._line = line
        self._hosts = {"localhost": Host("localhost", _LOCAL, Line())}
        self._listeners: dict[Address, Listener] = {}
        self._connections: dict[int, tuple[End, End]] = {}
        self._numbers = 0
        self._ports = _FIRST_PORT
        self._lit: list[asyncio.Future[None]] = []
        """Who waits for a host that is dark."""

    # Hosts and names

    def add_host(self, name: str, line: Line | None = None) -> Host:
        """A host of that name. Raises ValueError where there is one."""
        if name in self._hosts:
            raise ValueError(f"there is a host {name!r} already")
        address = str(ipaddress.IPv4Address(_FIRST_HOST + len(self._hosts) - 1))
        host = self._hosts[name] = Host(name, address, self._line if line is None else line)
        return host

    def resolve(
        self, host: str | bytes | None, port: str | bytes | int | None, family: int = 0, kind: int = 0, flags: int = 0
    ) -> list[AddressInfo]:
        """What `socket.getaddrinfo` would say. Raises `socket.gaierror`."""
        name = host.decode("ascii") if isinstance(host, bytes) else host
        if family not in (socket.AF_UNSPEC, socket.AF_INET):
            raise socket.gaierror(socket.EAI_FAMILY, f"{name}: a world has IPv4 alone")
        if kind not in (0, socket.SOCK_STREAM):
            raise socket.gaierror(socket.EAI_SOCKTYPE, f"{name}: a world has streams alone")
        nobodys = ANYWHERE if flags & socket.AI_PASSIVE else _LOCAL
        address = self._address_of(name) if name else nobodys
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, _port_number(port)))]

    def _address_of(self, name: str) -> str:
        if name in self._hosts:
            if self._hosts[name].has_no_name:
                raise socket.gaierror(socket.EAI_AGAIN, f"Temporary failure in name resolution: {name}")
            return self._hosts[name].address
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            known = ", ".join(self._hosts)
            raise socket.gaierror(
                socket.EAI_NONAME, f"Name or service not known: {name} (a world knows {known})"
            ) from None

    def name_of(self, address: str) -> str:
        """The host that has the address, else the address."""
        return next((host.name for host in self._hosts.values() if host.address == address), address)

    # Servers

    def listen(self, make_protocol: Callable[[], asyncio.BaseProtocol], addresses: Iterable[Address]) -> Listener:
        """A server that does not serve yet. Raises OSError for an address that is taken or nobody's."""
        own = {ANYWHERE, *(host.address for host in self._hosts.values())}
        taken: list[Address] = []
        for address, port in dict.fromkeys(addresses):
            if address not in own:
                raise OSError(EADDRNOTAVAIL, f"cannot listen on {address}: no host of this world has it")
            place = (address, port or self._next_port())
            if place in self._listeners or place in taken:
                raise OSError(EADDRINUSE, f"cannot listen on {place}: {os.strerror(EADDRINUSE)}")
            taken.append(place)
        listener = Listener(self._loop, make_protocol, taken, self._stop_listening)
        self._listeners.update(dict.fromkeys(taken, listener))
        return listener

    def _stop_listening(self, listener: Listener) -> None:
        for place in listener.addresses:
            self._listeners.pop(place, None)

    def _next_port(self) -> int:
        self._ports += 1
        return self._ports - 1

    # Connections

    async def connect(self, place: Address) -> End:
        """The client's end of a new connection, there and back later, for `End.take`. Raises OSError."""
        address, port = place[:2]
        host = next((host for host in self._hosts.values() if host.address == address), None)
        if host is None:
            raise OSError(EHOSTUNREACH, f"Connect call failed {place}: no host of this world has that address")
        await self._travel(host)
        listener = self._listeners.get((address, port)) or self._listeners.get((ANYWHERE, port))
        if host.refuses or listener is None or not listener.is_serving():
            await self._travel(host)
            raise ConnectionRefusedError(ECONNREFUSED, f"Connect call failed {place}")
        client = self._join(host, (address, port), listener)
        try:
            await self._travel(host)
        except BaseException:
            client.abort()
            raise
        return client

    def _join(self, host: Host, place: Address, listener: Listener) -> End:
        number = self._numbers
        self._numbers += 1
        own = (_LOCAL, self._next_port())
        server_context = listener.new_context()

        def forget_client() -> None:
            self._forget(number)

        def forget_server() -> None:
            listener.forget(server)
            self._forget(number)

        client = End(self._loop, host, (own, place), "client", contextvars.copy_context(), forget_client)
        server = End(self._loop, host, (place, own), "server", server_context, forget_server)
        client.join(server)
        self._connections[number] = (client, server)
        listener.accept(server, server_context)
        return client

    def _forget(self, number: int) -> None:
        ends = self._connections.get(number)
        if ends is not None and all(end.is_lost for end in ends):
            del self._connections[number]

    async def _travel(self, host: Host) -> None:
        """One way to the host or back."""
        await asyncio.sleep(host.line.latency_ns / NS_PER_S)
        while host.is_dark:
            light: asyncio.Future[None] = self._loop.create_future()
            self._lit.append(light)
            await light

    @property
    def open_connections(self) -> list[str]:
        """Those that an end still holds, oldest first: what a world has left open, say at its end."""
        return [
            f"{self._spelled(client.own_name)} to {self._spelled(client.peer_name)}"
            for client, _ in self._connections.values()
        ]

    @property
    def listening(self) -> list[str]:
        """Where servers listen, by name, oldest first."""
        return [self._spelled(place) for place in self._listeners]

    def _spelled(self, place: Address) -> str:
        return f"{self.name_of(place[0])}:{place[1]}"

    def close(self) -> None:
        """At the end of the world."""
        for ends in self._connections.values():
            for end in ends:
                end.end_with_its_world()

    # Faults

    def refuse(self, name: str, *, refuses: bool = True) -> None:
        """Whoever connects to the host is refused, until told otherwise."""
        self._host(name).refuses = refuses

    def go_dark(self, name: str) -> None:
        """Nothing comes through to the host or back, connections included: nobody hears of anything."""
        self._host(name).is_dark = True

    def light_up(self, name: str) -> None:
        """The end of `go_dark`: what was on its way comes through."""
        self._host(name).is_dark = False
        for client, server in self._of(name):
            client.expect()
            server.expect()
        waiting, self._lit = self._lit, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def set_line(self, name: str, line: Line) -> None:
        """What is sent from now on travels so, say slowly."""
        self._host(name).line = line

    def fail_look_up(self, name: str, *, fails: bool = True) -> None:
        """The host's name does not resolve, until told otherwise."""
        self._host(name).has_no_name = fails

    def reset(self, name: str) -> int:
        """Cuts the connections with the host: both ends hear of a reset. Returns how many there were."""
        cut = self._of(name)
        for _, server in cut:
            server.reset()
        return len(cut)

    def cut_answer(self, name: str, after_bytes: int) -> None:
        """The connection that the host answers on next is reset after so many bytes of it: 0 is before any."""
        self._host(name).cuts_after_bytes.append(after_bytes)

    def half_close(self, name: str) -> int:
        """Clients of the host hear that nothing more comes; it hears nothing of it, and what it sends them is lost.
        Returns how many connections there were."""
        closed = self._of(name)
        for _, server in closed:
            server.end_unasked()
        return len(closed)

    def _of(self, name: str) -> list[tuple[End, End]]:
        host = self._host(name)
        return [ends for ends in self._connections.values() if ends[0].host is host]

    def _host(self, name: str) -> Host:
        try:
            return self._hosts[name]
        except KeyError:
            raise ValueError(f"there is no host {name!r}; there are {', '.join(self._hosts)}") from None


def _port_number(port: str | bytes | int | None) -> int:
    text = port.decode("ascii") if isinstance(port, bytes) else port
    if text is None:
        return 0
    if isinstance(text, int) or text.isdigit():
        return int(text)
    if text not in _SERVICES:
        raise socket.gaierror(
            socket.EAI_SERVICE, f"Servname not supported: {text} (a world knows {', '.join(_SERVICES)})"
        )
    return _SERVICES[text]
