"""A balancer: least requests in flight, sticky sessions, replicas that come and go."""

import random
from collections import OrderedDict
from typing import Any

MOST_STICKY_SESSIONS = 100_000
"""How many sessions are remembered. verl's balancer remembers 10,000 (0.9.1): fewer than may live."""


class LeastLoadedBalancer:
    """verl's balancer protocol (0.9.1), with an epoch for each time a replica joins.

    A release that belongs to an earlier epoch of its replica is not counted against the present one; adding a
    replica that is there already changes nothing.
    """

    def __init__(self, servers: dict[str, Any], tie_break: str = "random", sticky: bool = True) -> None:
        self.servers = dict(servers)
        self.in_flight: dict[str, dict[str, int]] = {name: {} for name in servers}
        self.loads = dict.fromkeys(servers, 0)
        """The sums of `in_flight`, for the replicas that are here."""
        self._earlier: dict[str, dict[str, int]] = {}
        self.session_server: OrderedDict[str, str] = OrderedDict()
        """The longest unused first. A dict would have to look for it."""
        self._first_of_equals = tie_break == "first"
        self._sticky = sticky

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        """The replica for this session and its handle. Raises RuntimeError when there is none."""
        name = self.session_server.pop(request_id, None)
        if name is None or name not in self.servers or not self._sticky:
            name = self.choose()
        self.session_server[request_id] = name
        if len(self.session_server) > MOST_STICKY_SESSIONS:
            self._forget_the_longest_unused()
        sessions = self.in_flight[name]
        sessions[request_id] = sessions.get(request_id, 0) + 1
        self.loads[name] += 1
        return name, self.servers[name]

    def choose(self) -> str:
        """A replica with the fewest requests in flight."""
        if not self.servers:
            raise RuntimeError("No available servers in load balancer")
        least = min(self.loads.values())
        equals = [name for name, load in self.loads.items() if load == least]
        return equals[0] if self._first_of_equals else random.choice(equals)

    def _forget_the_longest_unused(self) -> None:
        """Nobody says when a session is over. One with a request in flight is not."""
        longest_unused, name = self.session_server.popitem(last=False)
        if longest_unused in self.in_flight.get(name, ()):
            self.session_server[longest_unused] = name

    def require_acquire_fields(self) -> list[str]:
        return []

    def require_release_fields(self) -> list[str]:
        return ["request_id"]

    def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """One request of this session has ended; the oldest epoch that still counts it lets it go.

        Without a session (verl's own balancers need none) it is taken for the oldest that is counted.
        """
        for epoch in (self._earlier.get(server_id, {}), self.in_flight.get(server_id, {})):
            session = request_id
            if session is None:
                session = next(iter(epoch), None)
            if session is not None and session in epoch:
                epoch[session] -= 1
                if not epoch[session]:
                    del epoch[session]
                if epoch is self.in_flight.get(server_id):
                    self.loads[server_id] -= 1
                return

    def add_servers(self, servers: dict[str, Any]) -> None:
        for name, handle in servers.items():
            self.servers[name] = handle
            self.in_flight.setdefault(name, {})
            self.loads.setdefault(name, 0)

    def remove_servers(self, server_ids: list[str]) -> None:
        for name in server_ids:
            self.servers.pop(name, None)
            self.loads.pop(name, None)
            earlier = self._earlier.setdefault(name, {})
            for request_id, count in self.in_flight.pop(name, {}).items():
                earlier[request_id] = earlier.get(request_id, 0) + count

    def clear_sticky_cache(self) -> dict[str, Any]:
        """The next request of every session chooses anew."""
        cleared = len(self.session_server)
        self.session_server.clear()
        return {"cleared_entries": cleared, "server_loads": self.get_status()["servers"]}

    def get_status(self) -> dict[str, Any]:
        loads = dict(self.loads)
        return {"servers": loads, "total_inflight": sum(loads.values()), "active_servers": len(loads)}

    def get_total_inflight(self) -> int:
        return sum(self.loads.values())
