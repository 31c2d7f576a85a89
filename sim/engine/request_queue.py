"""The waiting queue, under either scheduling policy."""

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from sim.engine.request import Request


class RequestQueue(Protocol):
    def add_request(self, request: Request, /) -> None: ...

    def prepend_request(self, request: Request, /) -> None:
        """Put back a request that was preempted."""

    def peek_request(self) -> Request: ...

    def pop_request(self) -> Request: ...

    def remove(self, request: Request, /) -> None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """In the order in which they will be looked at."""


class FCFSRequestQueue(deque[Request]):
    add_request = deque.append
    prepend_request = deque.appendleft
    pop_request = deque.popleft

    def peek_request(self) -> Request:
        return self[0]


class PriorityRequestQueue:
    """A heap of requests, in the order of `Request.__lt__`: there is no front to put anything back to."""

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add_request(self, request: Request, /) -> None:
        heapq.heappush(self._heap, request)

    def prepend_request(self, request: Request, /) -> None:
        self.add_request(request)

    def peek_request(self) -> Request:
        return self._heap[0]

    def pop_request(self) -> Request:
        return heapq.heappop(self._heap)

    def remove(self, request: Request, /) -> None:
        self._heap.remove(request)
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._heap))


def create_request_queue(scheduling_policy: str) -> RequestQueue:
    return PriorityRequestQueue() if scheduling_policy == "priority" else FCFSRequestQueue()
