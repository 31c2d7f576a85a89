"""What a run shows of pauses and of the requests that they meet: A3 and A4."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sim.case import Case
from sim.events import Admitted, Crashed, Decoded, Ended, Event, Paused, Resumed, Sent, VersionChanged
from sim.invariants.violation import Violation


@dataclass(slots=True)
class PauseLog:
    """`paused`: the last pause of each replica that is paused. `found`: violations of A4 since sessions were last
    judged."""

    paused: dict[int, Paused] = field(default_factory=dict)
    found: list[Violation] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    session: int
    has_token: bool = False


class PauseWatch:
    """Follows the requests in the engines of each replica, and what trainers tell it. Kept are those under way."""

    def __init__(self, case: Case) -> None:
        self.log = PauseLog()
        self._lands_at_once = case.server.has_gate and not case.server.admission_s
        """What is in the engine when an abort is acknowledged was in it before: all else waits at the gate."""
        self._sent: dict[int, tuple[int, int]] = {}
        self._in_engine: dict[int, dict[int, _Open]] = {}

    def sent(self, event: Sent) -> None:
        self._sent[event.request] = event.replica, event.session

    def admitted(self, event: Admitted) -> None:
        replica, session = self._sent[event.request]
        self._in_engine.setdefault(replica, {})[event.request] = _Open(session)

    def decoded(self, event: Decoded) -> None:
        requests = self._in_engine.get(self._sent[event.request][0])
        if requests is not None and event.request in requests:
            requests[event.request].has_token = True

    def ended(self, event: Ended) -> None:
        sent = self._sent.pop(event.request, None)
        if sent is not None and sent[0] in self._in_engine:
            self._in_engine[sent[0]].pop(event.request, None)

    def paused(self, event: Paused) -> None:
        self.log.paused[event.replica] = event
        if event.mode == "abort":
            for request, live in self._at_work(event.replica):
                self._find(request, live, f"replica {event.replica} acknowledged an abort, and", "is still in it")

    def resumed(self, event: Resumed) -> None:
        self.log.paused.pop(event.replica, None)

    def crashed(self, event: Crashed) -> None:
        self.log.paused.pop(event.replica, None)

    def version_changed(self, event: VersionChanged) -> None:
        if event.replica not in self.log.paused:
            for request, live in self._at_work(event.replica):
                how = f"replica {event.replica} was given weights without having paused, and"
                self._find(request, live, how, "was at work")

    def _at_work(self, replica: int) -> list[tuple[int, _Open]]:
        """Those in the engine that were there before the last call of the trainer came."""
        requests = self._in_engine.get(replica, {})
        return [(number, live) for number, live in requests.items() if live.has_token or self._lands_at_once]

    def _find(self, request: int, live: _Open, how: str, what: str) -> None:
        message = f"{how} request {request} (session {live.session}) {what}"
        self.log.found.append(Violation("A4", message, live.session))


FOLLOWED: dict[type[Event], Callable[[PauseWatch, Any], None]] = {
    Sent: PauseWatch.sent,
    Admitted: PauseWatch.admitted,
    Decoded: PauseWatch.decoded,
    Ended: PauseWatch.ended,
    Paused: PauseWatch.paused,
    Resumed: PauseWatch.resumed,
    Crashed: PauseWatch.crashed,
    VersionChanged: PauseWatch.version_changed,
}
"""What a watch is to be told, by type."""
