"""The balancer's end of the wire: it handles messages, says which replicas they are about, and shows its counts."""

from collections.abc import Sequence
from typing import Any

from sim.registry import blame
from sim.transport.protocol import BalancerProtocol

Shown = tuple[tuple[int | None, ...] | None, int | None]
"""The balancer's own count for each replica (None: not registered), and in total; None where it shows none."""

_NOTHING: Shown = (None, None)


class BalancerPort:
    """A balancer and what is under way to it."""

    def __init__(self, balancer: Any, protocol: BalancerProtocol, replica_names: Sequence[str]) -> None:
        self.balancer = balancer
        self.protocol = protocol
        self.messages_in_flight = 0
        """Messages that have not reached the balancer yet, or that it awaits something for."""
        self._replica_names = replica_names
        self._replica_of = {name: index for index, name in enumerate(replica_names)}
        self._counts = protocol.counts(balancer)

    def handle(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Has the balancer handle a message that has arrived. What an `async def` method returns is to be awaited."""
        return getattr(self.balancer, name)(*args, **kwargs)

    def shown(self) -> Shown:
        """What the balancer shows of itself."""
        try:
            by_replica, total = self._counts()
            if by_replica is None:
                return _NOTHING
            return tuple(map(by_replica.get, self._replica_names)), total
        except Exception:  # a balancer may show something else, or fail: then it shows none
            return _NOTHING

    def replicas_of(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> tuple[int, ...]:
        """The replicas that a message is about."""
        role = self.protocol.roles.get(name)
        if role is None:
            return ()
        try:
            named = list(self.protocol.replicas(role, args, kwargs, result))
        except Exception as error:
            blame(error, self.protocol.replicas, "balancer.replicas of the framework")
        return tuple([self._replica_of[each] for each in named if isinstance(each, str) and each in self._replica_of])
