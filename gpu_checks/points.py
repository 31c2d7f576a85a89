"""The points of a run: what happened on the real engine in which order, and a simulation led through the same order.

A point is something that one part of a world does to another: a message reaches the balancer, a request reaches a
server, a request ends by itself, a server closes its gate, cuts its requests off, takes new weights, opens again, a
fault fires. Ends by abort are no points of their own: the cut is, and how many tokens each request then had.

The simulation is led through these points in the observed order, and free in all else. What it does must follow from
its own rules; where these are wrong it arrives at a point with other figures, or never.
"""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sim.clock import VirtualLoop
from sim.events import Sent
from sim.trace import Trace

RequestKey = tuple[int, int, int]
"""A request by (session, turn, attempt): numbers in the order sent may differ between two runs."""


class Name(NamedTuple):
    """A point's name: what, of whom, and which of those that are called alike, from 0."""

    kind: str
    where: tuple[Hashable, ...]
    number: int

    def __str__(self) -> str:
        again = f" (time {self.number + 1})" if self.number else ""
        return f"{self.kind} {', '.join(str(each) for each in self.where)}{again}"


class Point(NamedTuple):
    name: Name
    t_ns: int


class AnswerFigures(NamedTuple):
    """What a server's generate returned, but for the tokens themselves; or the type of what it raised."""

    stop_reason: str | None
    tokens: int
    log_probs: int | None
    version: int | None
    error: str | None = None


def note_answer(answers: dict[RequestKey, AnswerFigures], key: RequestKey, done: "asyncio.Future[Any]") -> None:
    """Takes down how a server's generate came out."""
    if done.cancelled():
        return
    error = done.exception()
    if error is not None:
        answers[key] = AnswerFigures(None, 0, None, None, type(error).__name__)
        return
    output = done.result().output
    log_probs = None if output.log_probs is None else len(output.log_probs)
    version = output.extra_fields.get("global_steps")
    answers[key] = AnswerFigures(output.stop_reason, len(output.token_ids), log_probs, version)


@dataclass
class Points:
    """What was observed. `held_tokens`: for each request that was aborted, what it had decoded by then."""

    order: list[Point] = field(default_factory=list)
    held_tokens: dict[RequestKey, int] = field(default_factory=dict)


class _Counter:
    """Numbers the points that are called alike."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, tuple[Hashable, ...]], int] = {}

    def name(self, kind: str, where: tuple[Hashable, ...]) -> Name:
        number = self._seen.get((kind, where), 0)
        self._seen[kind, where] = number + 1
        return Name(kind, where, number)


class Recorder:
    """Takes down the points of a real run."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.points = Points()
        self._now_ns = now_ns
        self._counter = _Counter()

    def note(self, kind: str, *where: Hashable) -> None:
        self.points.order.append(Point(self._counter.name(kind, where), self._now_ns()))

    def held(self, key: RequestKey, tokens: int) -> None:
        """An aborted request ended with this many tokens."""
        self.points.held_tokens[key] = tokens


class Leader:
    """Leads a simulation through observed points: each waits for those before it, and for its moment.

    The moment is the observed time (of the real run's clock, from its start). The order alone would do for what is a
    point; the time keeps timers that are none, such as a client's wait, from running ahead.
    """

    def __init__(self, points: Points, loop: VirtualLoop) -> None:
        self._order = points.order
        self._known = {point.name for point in points.order}
        self._loop = loop
        self._counter = _Counter()
        self._arrived: dict[Name, Callable[[], Any]] = {}
        self._next = 0
        self._checking = False

    @property
    def position(self) -> int:
        """Points that the simulation came through."""
        return self._next

    @property
    def missed(self) -> Name | None:
        """The first observed point that the simulation never came to."""
        return self._order[self._next].name if self._next < len(self._order) else None

    def when(self, action: Callable[[], Any], kind: str, *where: Hashable) -> None:
        """Does `action` at its point. One that was never observed is not held back: it shows as a difference."""
        name = self._counter.name(kind, where)
        if name not in self._known:
            action()
            return
        self._arrived[name] = action
        self._check_soon()

    async def turn(self, kind: str, *where: Hashable) -> None:
        """Returns at the point; the caller acts before the next point can come."""
        reached = self._loop.create_future()
        self.when(lambda: None if reached.done() else reached.set_result(None), kind, *where)
        await reached

    def expects(self, kind: str, *where: Hashable) -> bool:
        """Whether such a point was observed at all."""
        return Name(kind, where, 0) in self._known

    def _check_soon(self) -> None:
        if not self._checking:
            self._checking = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        self._checking = False
        if self._next == len(self._order) or self._order[self._next].name not in self._arrived:
            return
        name, t_ns = self._order[self._next]
        if t_ns > self._loop.now_ns:
            self._checking = True
            self._loop.call_at_ns(t_ns, self._check)
            return
        self._next += 1
        self._arrived.pop(name)()
        # Behind whatever the action has made ready, so that it comes first.
        self._check_soon()


def key_of(trace: Trace, request: int) -> RequestKey:
    """The key of a request that was sent, by its number."""
    for event in reversed(trace.events):
        if isinstance(event, Sent) and event.request == request:
            return event.session, event.turn, event.attempt
    raise KeyError(f"request {request} was never sent")
