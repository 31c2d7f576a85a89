"""The sessions' progress, so that a fault can wait for an event instead of a time."""

import asyncio
from bisect import insort

from sim.case import Case
from sim.faults import AfterSent, AfterTokens, AtTime, Every, When
from sim.servers.port import Clock


class Triggers:
    """Whoever waits for a session to have decoded or sent so much."""

    def __init__(self, case: Case, clock: Clock) -> None:
        self._clock = clock
        named = {fault.at.session for fault in case.faults if isinstance(fault.at, AfterTokens | AfterSent)}
        self._decoded_tokens = dict.fromkeys(named, 0)
        """Of the sessions that somebody waits for; also sent_requests."""
        self._sent_requests = dict.fromkeys(named, 0)
        self._thresholds: dict[int, list[int]] = {}
        self._waiters: dict[When, list[asyncio.Future[None]]] = {}
        for fault in case.faults:
            if isinstance(fault.at, AfterTokens):
                thresholds = self._thresholds.setdefault(fault.at.session, [])
                if fault.at.tokens not in thresholds:
                    insort(thresholds, fault.at.tokens)

    async def wait(self, when: When) -> None:
        """Returns when it is time, or the event has come."""
        if isinstance(when, AtTime | Every):
            await asyncio.sleep(when.time_s)
        elif not self._has_come(when):
            future: asyncio.Future[None] = self._clock.create_future()
            self._waiters.setdefault(when, []).append(future)
            await future

    def _has_come(self, when: AfterTokens | AfterSent) -> bool:
        if isinstance(when, AfterTokens):
            return self._decoded_tokens[when.session] >= when.tokens
        return self._sent_requests[when.session] >= when.requests

    def _fire(self, when: When) -> None:
        for future in self._waiters.pop(when, ()):
            if not future.done():
                future.set_result(None)

    def next_threshold(self, session: int) -> int | None:
        """See `sim.servers.port.Watcher`."""
        thresholds = self._thresholds.get(session)
        if not thresholds:
            return None
        return thresholds[0]

    def decoded(self, session: int, tokens: int) -> None:
        """See `sim.servers.port.Watcher`."""
        if session not in self._decoded_tokens:
            return
        self._decoded_tokens[session] += tokens
        thresholds = self._thresholds.get(session)
        while thresholds and thresholds[0] <= self._decoded_tokens[session]:
            self._fire(AfterTokens(session, thresholds.pop(0)))

    def total(self, session: int) -> int:
        """See `sim.servers.port.Watcher`."""
        return self._decoded_tokens.get(session, 0)

    def sent(self, session: int) -> None:
        """See `sim.transport.wire.SentListener`."""
        if session in self._sent_requests:
            self._sent_requests[session] += 1
            self._fire(AfterSent(session, self._sent_requests[session]))
