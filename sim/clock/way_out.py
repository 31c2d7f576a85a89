"""The ways out of a world over a real socket, which are closed while it runs.

An audit hook of CPython's: it hears of every connect, bind and look-up, whoever makes it and however the function was
imported, and what it raises comes out of the call. A hook cannot be taken back; this one lets all pass between worlds.
"""

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OF_A_SOCKET = frozenset(("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"))
_LOOK_UPS = frozenset(("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"))
"""Audit events. They bear the names of the calls that they tell of."""

_CALLS = _OF_A_SOCKET | _LOOK_UPS

_home: int | None = None
"""The thread of the world that runs."""


@contextmanager
def no_way_out() -> Iterator[None]:
    """In this thread, connecting, binding and looking up names raise a RuntimeError that names the call.

    Other threads, say a progress bar's, go where they like: a world starts none.
    """
    global _home
    _listen()
    _home = threading.get_ident()
    try:
        yield
    finally:
        _home = None


@functools.cache
def _listen() -> None:
    """Once a process."""
    sys.addaudithook(_heard)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if event in _CALLS and threading.get_ident() == _home:
        where = args[1:] if event in _OF_A_SOCKET else args[:2]  # else the socket comes first
        raise RuntimeError(
            f"{event}({', '.join(map(repr, where))}) in a world: it would leave virtual time for the real "
            f"network; use the running loop's streams, as asyncio, aiohttp and httpx's AsyncClient do"
        )
