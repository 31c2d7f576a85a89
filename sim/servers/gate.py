"""The submission gate of verl 0.9.1's servers: what arrives between a pause and its resume waits, or is turned away."""

from collections.abc import Callable
from typing import Any


class SubmissionGate:
    """Open at first. Requests are whatever the server makes of them; a closed gate keeps them in order of arrival."""

    def __init__(self) -> None:
        self.is_closed = False
        self.rejects = False
        """Whether what arrives at the closed gate is turned away instead of waiting."""
        self._parked: list[Any] = []

    def close(self, rejects: bool) -> None:
        self.is_closed = True
        self.rejects = rejects

    def park(self, request: Any) -> None:
        """Has a request wait."""
        self._parked.append(request)

    async def settled(self) -> None:
        """What has passed the gate has arrived: returns when the pause may go on."""

    def open(self, let_in: Callable[[Any], object]) -> None:
        """`let_in` is called with each request that waits."""
        self.is_closed = self.rejects = False
        parked, self._parked = self._parked, []
        for request in parked:
            let_in(request)
