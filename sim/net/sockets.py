"""What stands for a socket in a connection of the network: as much as HTTP libraries ask of one."""

import functools
import os
import socket
from collections.abc import Callable
from typing import Any

Address = tuple[str, int]
"""IPv4 address and port."""


@functools.cache
def _quiet_fd() -> int:
    """A descriptor that is never readable: the end of a pipe that nobody writes to. One for the whole process."""
    reading, _writing = os.pipe()
    return reading


class StreamSocket:
    """`family`, names, options that are taken and forgotten, and a `fileno` to poll."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, own: Address, peer: Address | None = None, *, is_readable: Callable[[], bool]) -> None:
        self._own = own
        self._peer = peer
        self._is_readable = is_readable

    def fileno(self) -> int:
        """-1 where a read would not wait, which pollers take for a socket that is closed."""
        return -1 if self._is_readable() else _quiet_fd()

    def getsockname(self) -> Address:
        return self._own

    def getpeername(self) -> Address:
        if self._peer is None:
            raise OSError("a listening socket has no peer")
        return self._peer

    def setsockopt(self, *_: Any) -> None:
        """Has no effect: there is no kernel under it."""

    def getsockopt(self, *_: Any) -> int:
        return 0

    def setblocking(self, flag: bool) -> None:
        """Has no effect."""

    def close(self) -> None:
        """Has no effect: its transport or server is what can be closed."""
