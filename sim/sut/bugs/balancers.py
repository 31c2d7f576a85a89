"""Balancers that choose or count wrongly."""

import random
from typing import Any

from sim.sut.reference.routing import LeastLoadedBalancer


class UnevenBalancer(LeastLoadedBalancer):
    """Chooses any replica, however loaded."""

    def choose(self) -> str:
        return random.choice(list(self.servers))


class ForgetfulBalancer(LeastLoadedBalancer):
    """Forgets where a session was."""

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        self.session_server.pop(request_id, None)
        return super().acquire_server(request_id)


class ZeroingBalancer(LeastLoadedBalancer):
    """Counts from zero when a replica is added that is there already."""

    def add_servers(self, servers: dict[str, Any]) -> None:
        super().add_servers(servers)
        for name in servers:
            self.in_flight[name] = {}
            self.loads[name] = 0


class FavouriteBalancer(LeastLoadedBalancer):
    """Takes the first of equals, always."""

    def __init__(self, servers: dict[str, Any]) -> None:
        super().__init__(servers, tie_break="first")


class GhostBalancer(LeastLoadedBalancer):
    """Goes on sending a session to its replica after that was removed."""

    def __init__(self, servers: dict[str, Any]) -> None:
        super().__init__(servers)
        self._known = dict(servers)

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        name = self.session_server.get(request_id)
        if name is not None and name not in self.servers:
            return name, self._known[name]
        return super().acquire_server(request_id)


_worlds_before = iter(range(2**62))


class WorldCountingBalancer(LeastLoadedBalancer):
    """Routes by a counter of the process, which no world resets."""

    def choose(self) -> str:
        names = list(self.servers)
        return names[next(_worlds_before) % len(names)]


class SetPickingBalancer(LeastLoadedBalancer):
    """Takes whichever of the least loaded a set of their names has first, which is another in each process."""

    def choose(self) -> str:
        least = min(self.loads.values())
        return next(iter({name for name, load in self.loads.items() if load == least}))
