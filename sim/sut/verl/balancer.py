"""The messages of verl's load balancer (0.8.0, 0.9.0 and 0.9.1), which one's own balancer speaks too."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from sim.sut.interface import unwrapped
from sim.trace import Role
from sim.transport.handles import Handle
from sim.transport.protocol import BalancerProtocol, ShownCounts, without_waiting


def _make(cls: type[Any], servers: dict[str, Any]) -> Any:
    return unwrapped(cls)(servers=servers)


def _replicas(role: Role, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Iterable[Any]:
    match role:
        case "acquire":
            return result[:1] if isinstance(result, (tuple, list)) else ()
        case "release":
            return (kwargs.get("server_id", args[0] if args else None),)
        case "add" | "remove":
            named: Iterable[Any] = args[0] if args else next(iter(kwargs.values()))
            return named
    return ()


def _counts(balancer: Any) -> Callable[[], ShownCounts]:
    get_status = getattr(balancer, "get_status", None)
    get_total = getattr(balancer, "get_total_inflight", None)

    def shown() -> ShownCounts:
        if get_status is None:
            return None, None
        status = without_waiting(get_status())
        total = status.get("total_inflight") if get_total is None else without_waiting(get_total())
        return status.get("servers", {}), total

    return shown


def _clear_sticky(balancer: Handle) -> "asyncio.Future[Any] | str":
    try:
        clear = balancer.clear_sticky_cache
    except AttributeError:  # as 0.8.0's
        return "this balancer has no clear_sticky_cache"
    return clear.remote()


PROTOCOL = BalancerProtocol(
    roles={
        "acquire_server": "acquire",
        "release_server": "release",
        "add_servers": "add",
        "remove_servers": "remove",
        "clear_sticky_cache": "clear_sticky",
    },
    make=_make,
    replicas=_replicas,
    counts=_counts,
    add=lambda balancer, servers: balancer.add_servers.remote(servers),
    remove=lambda balancer, names: balancer.remove_servers.remote(names),
    clear_sticky=_clear_sticky,
)
