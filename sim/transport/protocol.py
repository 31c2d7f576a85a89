"""How a framework's parts speak to each other, so that the transport can carry it and say what it was about.

These are records of a framework's adapter (`sim.sut.framework`); methods and replicas have the names that it gives.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sim.trace import Role


class AskedFor(NamedTuple):
    """What a client asks a server for: the ids of the prompt, and the limits that it sets, by their spelling."""

    prompt_ids: Sequence[int]
    limits: dict[str, Any]


ShownCounts = tuple[Mapping[str, Any] | None, int | None]
"""A balancer's own count of requests in flight for each replica, by name, and in total; None where not shown."""


def without_waiting(shown: Any) -> Any:
    """What a method shows, be it an `async def` one that awaits nothing. RuntimeError where it does."""
    if not inspect.iscoroutine(shown):
        return shown
    try:
        shown.send(None)
    except StopIteration as done:
        return done.value
    shown.close()
    raise RuntimeError("it cannot be looked at without waiting for it")


@dataclass(frozen=True)
class RequestProtocol:
    """How clients ask servers for tokens: with the method of this name, whose arguments `read` understands."""

    method: str
    read: Callable[[tuple[Any, ...], dict[str, Any]], AskedFor]


@dataclass(frozen=True)
class BalancerProtocol:
    """How a balancer is made and spoken to.

    `roles`: what its messages do. `make(cls, servers)`: a balancer of that class over handles by replica name.
    `replicas(role, args, kwargs, result)`: the names of the replicas that a message was about.
    `counts(balancer)`: a function that reads what it shows of itself, made once a world; it may raise.
    `add`, `remove`, `clear_sticky`: what a trainer sends; `clear_sticky` returns a note where a balancer has no such
    message.
    """

    roles: Mapping[str, Role]
    make: Callable[[type[Any], dict[str, Any]], Any]
    replicas: Callable[[Role, tuple[Any, ...], dict[str, Any], Any], Iterable[Any]]
    counts: Callable[[Any], Callable[[], ShownCounts]]
    add: Callable[[Any, dict[str, Any]], Awaitable[Any]]
    remove: Callable[[Any, list[str]], Awaitable[Any]]
    clear_sticky: Callable[[Any], Awaitable[Any] | str]
