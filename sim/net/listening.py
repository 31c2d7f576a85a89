"""A server that listens on the network, as `loop.create_server` returns it."""

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from typing import Any

from sim.net.sockets import Address, StreamSocket
from sim.net.stream import End


class Listener(asyncio.AbstractServer):
    """Takes connections at its addresses while it is serving."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        addresses: Sequence[Address],
        closed: Callable[["Listener"], None],
    ) -> None:
        self.addresses = tuple(addresses)
        self._loop = loop
        self._make_protocol = make_protocol
        self._closed = closed
        self._context = contextvars.copy_context()
        self._ends: dict[End, None] = {}
        self._serves = False
        self._is_closed = False
        self._forever: asyncio.Future[None] | None = None

    def new_context(self) -> contextvars.Context:
        """What the protocol of a new connection runs in: that of whoever made the server."""
        return self._context.copy()

    def accept(self, end: End, context: contextvars.Context) -> None:
        """Takes one more connection."""
        self._ends[end] = None
        end.take(context.run(self._make_protocol))

    def forget(self, end: End) -> None:
        self._ends.pop(end, None)

    @property
    def sockets(self) -> tuple[StreamSocket, ...]:
        if self._is_closed:
            return ()
        return tuple(StreamSocket(address, is_readable=lambda: False) for address in self.addresses)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._serves

    async def start_serving(self) -> None:
        self.serve()

    def serve(self) -> None:
        """`start_serving`, at once."""
        if not self._is_closed:
            self._serves = True

    async def serve_forever(self) -> None:
        if self._forever is not None:
            raise RuntimeError("serve_forever() is running already")
        self.serve()
        self._forever = self._loop.create_future()
        try:
            await self._forever
        finally:
            self._forever = None
            self.close()

    def close(self) -> None:
        """Takes nothing more; connections that it has taken stay."""
        if self._is_closed:
            return
        self._is_closed, self._serves = True, False
        if self._forever is not None and not self._forever.done():
            self._forever.cancel()
        self._closed(self)

    async def wait_closed(self) -> None:
        """Does not wait for connections, on any version of Python."""
        await asyncio.sleep(0)

    def close_clients(self) -> None:
        for end in list(self._ends):
            end.close()

    def abort_clients(self) -> None:
        for end in list(self._ends):
            end.abort()

    async def __aexit__(self, *_: Any) -> None:
        self.close()
        await self.wait_closed()
