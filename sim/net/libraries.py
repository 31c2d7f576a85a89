"""What network libraries hold that a world must have otherwise, while it runs."""

import functools
import ssl
import sys
import time
import weakref
from contextlib import suppress
from typing import Any, TypeAlias

from sim.clock import Replacement, VirtualLoop, clocks_of

_LIBRARIES = frozenset(
    ("aiohttp", "anyio", "fastapi", "h11", "httpcore", "httpx", "litellm", "openai", "starlette", "tenacity", "uvicorn")
)
"""Packages whose modules may hold a clock by value."""

Opened: TypeAlias = "weakref.WeakKeyDictionary[Any, None]"
"""aiohttp's sessions, oldest first."""

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")


def replacements(loop: VirtualLoop, opened: Opened) -> tuple[Replacement, ...]:
    """Clocks that these packages hold by value show virtual time; look-ups go to the loop; a TLS context of given files
    is read once a process, for a client makes one (50 ms) though it never speaks TLS.

    Sessions of aiohttp's are noted as they are opened. Only packages that are imported by then: what a world imports
    first is made right for the next one.
    """
    clocks = clocks_of(loop)
    held = []
    for module, name in _held_clocks(len(sys.modules)):
        setattr(module, name, getattr(time, name))  # an import within a world has taken that world's
        held.append((module, name, clocks[name]))
    return (*held, *_resolvers(), *_sessions(opened), (ssl, "create_default_context", _context))


@functools.lru_cache(maxsize=1)
def _held_clocks(modules: int) -> tuple[tuple[Any, str], ...]:
    """(module, name in it). `modules`: how many are imported."""
    del modules
    return tuple(
        (module, name)
        for full_name, module in list(sys.modules.items())
        if full_name.partition(".")[0] in _LIBRARIES
        for name in _CLOCKS
        if callable(vars(module).get(name))
    )


def _resolvers() -> tuple[Replacement, ...]:
    """aiohttp prefers a resolver that asks the real network in C where it finds one."""
    connector, resolver = sys.modules.get("aiohttp.connector"), sys.modules.get("aiohttp.resolver")
    if connector is None or resolver is None:
        return ()
    return ((connector, "DefaultResolver", resolver.ThreadedResolver),)


def _sessions(opened: Opened) -> tuple[Replacement, ...]:
    client = sys.modules.get("aiohttp.client")
    if client is None:
        return ()
    original = client.ClientSession.__init__

    def init(session: Any, *args: Any, **settings: Any) -> None:
        original(session, *args, **settings)
        opened[session] = None

    return ((client.ClientSession, "__init__", init),)


def close_all(opened: Opened) -> None:
    """Closes the sessions that are left open, for a world ends without telling its clients: they would warn of it when
    they are collected, in the midst of something else."""
    for session in list(opened):
        closing = session.close()
        with suppress(Exception, StopIteration):
            closing.send(None)  # up to where it would wait for what is closed by then
        closing.close()


_context = functools.cache(ssl.create_default_context)
