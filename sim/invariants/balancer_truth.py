"""What a balancer ought to know, from the messages to it alone."""

from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from sim.events import Message
from sim.trace import Role


class Acquire(NamedTuple):
    """A request that the balancer counts until it is released.

    `epoch`: how often its replica had joined by then. `number`: of the message. `ordinal`: among those of its turn.
    """

    session: int
    turn: int
    epoch: int
    number: int
    ordinal: int


class BalancerTruth:
    """Which replicas are registered, where each session is, and each replica's load.

    Takes the messages one by one, in the order in which the balancer handled them. A replica's true load has a lower
    and an upper value: requests acquired since it last joined and not yet released, and all not yet released. A
    balancer may go by either; one that keeps epochs goes by the first. What is kept grows with the requests that are
    not released and with the sessions that were not forgotten, and with nothing else.
    """

    def __init__(self, replicas: int) -> None:
        self.registered = set(range(replicas))
        self.lowest = [0] * replicas
        self.highest = [0] * replicas
        """The lower and the upper value of each replica's load."""
        self.session_replica: dict[int, int] = {}
        """Where the sessions are that were not forgotten."""
        self.num_messages = 0
        self._epoch = [0] * replicas
        self._open: list[dict[int, deque[Acquire]]] = [{} for _ in range(replicas)]
        """Acquired and not released, by session."""
        self._loosened: set[int] = set()
        """Sessions whose replica has left since they were sent there."""
        self._acquires: dict[int, tuple[int, int]] = {}
        """For each session its last turn that acquired, and how often that did."""

    def handle(self, message: Message, role: Role | None) -> None:
        """Takes the next message, which asks for what `role` says. One that failed changed nothing."""
        if message.error is None and role is not None:
            match role:
                case "acquire":
                    self._acquire(message)
                case "release":
                    self._release(message)
                case "add":
                    self._add(message.replicas)
                case "remove":
                    self._remove(message.replicas)
                case "clear_sticky":
                    self.session_replica.clear()
        self.num_messages += 1

    def is_bound(self, session: int) -> bool:
        """Whether the session is to stay where it is: its replica is registered and has not left in between."""
        return self.session_replica.get(session) in self.registered and session not in self._loosened

    def has_open(self, session: int) -> bool:
        """Whether a request of the session is acquired and not released."""
        return any(session in acquires for acquires in self._open)

    def unreleased(self) -> list[tuple[int, Acquire]]:
        """Each replica's requests that are acquired and not released, in the order of their messages."""
        return [
            (replica, acquire)
            for replica, sessions in enumerate(self._open)
            for acquire in sorted([one for acquires in sessions.values() for one in acquires], key=attrgetter("number"))
        ]

    def forget(self, session: int) -> None:
        """Lets go of a session of which nothing more will come."""
        self.session_replica.pop(session, None)
        self._loosened.discard(session)
        self._acquires.pop(session, None)

    def _acquire(self, message: Message) -> None:
        session = message.session
        if session is None or not message.replicas:
            return
        (replica,) = message.replicas
        self.session_replica[session] = replica
        self._loosened.discard(session)
        turn = message.turn or 0
        last_turn, times = self._acquires.get(session, (turn, 0))
        ordinal = times if last_turn == turn else 0
        self._acquires[session] = turn, ordinal + 1
        acquire = Acquire(session, turn, self._epoch[replica], self.num_messages, ordinal)
        self._open[replica].setdefault(session, deque()).append(acquire)
        self.lowest[replica] += 1
        self.highest[replica] += 1

    def _release(self, message: Message) -> None:
        session = message.session
        if session is None or not message.replicas:
            return
        replica = message.replicas[0]
        acquires = self._open[replica].get(session)
        if not acquires:
            return
        acquire = acquires.popleft()
        if not acquires:
            del self._open[replica][session]
        self.highest[replica] -= 1
        self.lowest[replica] -= acquire.epoch == self._epoch[replica]

    def _add(self, replicas: Sequence[int]) -> None:
        for replica in replicas:
            if replica not in self.registered:
                self.registered.add(replica)
                self._epoch[replica] += 1
                self.lowest[replica] = 0

    def _remove(self, replicas: Sequence[int]) -> None:
        self.registered.difference_update(replicas)
        self._loosened.update(session for session, replica in self.session_replica.items() if replica in replicas)
