"""The token ledger of a run: who decoded what. Sessions → turns → attempts, from the events alone."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from sim.events import (
    Admitted,
    Cancelled,
    Decoded,
    Delivered,
    Discarded,
    Ended,
    Event,
    Granted,
    Lost,
    Message,
    Parked,
    Prefilled,
    Sent,
    SessionEnded,
    TurnEnded,
    TurnStarted,
)

_LAST_FEW = 4


class DecodedRun(NamedTuple):
    """Tokens decoded in a row on one weight version, the first at absolute position `position`."""

    position: int
    tokens: int
    version: int


@dataclass(slots=True)
class Attempt:
    """One request, gathered from its events. Lengths in tokens; None where it did not come so far.

    `beside`: whether one of the turn's last few was still to be answered when it was sent: a second request for the
    same. `admitted`: of a request that was parked before. `decoded_at_cancel`: what it had decoded when its session's
    task was cancelled; None where it was not under way then.
    """

    sent: Sent
    beside: bool = False
    grant: Granted | None = None
    parked: Parked | None = None
    admitted: Admitted | None = None
    prefilled: Prefilled | None = None
    runs: list[DecodedRun] = field(default_factory=list)
    decoded_tokens: int = 0
    decoded_at_cancel: int | None = None
    ended: list[Ended] = field(default_factory=list)
    delivered: Delivered | None = None
    discarded: Discarded | None = None
    lost: Lost | None = None

    @property
    def is_open(self) -> bool:
        """Whether nobody has been told yet how it ended."""
        return self.delivered is None and self.discarded is None and self.lost is None

    @property
    def is_settled(self) -> bool:
        """Whether it has ended, and its answer, or what failed it, has found its caller, or none."""
        return bool(self.ended and (self.delivered or self.discarded or self.lost))


@dataclass(slots=True)
class TurnRecord:
    """One call of generate and the attempts that it made, in the order sent.

    `balancer_failed`: whether the balancer raised at a message that was sent on its behalf.
    """

    started: TurnStarted
    attempts: list[Attempt] = field(default_factory=list)
    ended: TurnEnded | None = None
    balancer_failed: bool = False

    @property
    def decoded_tokens(self) -> int:
        return sum([attempt.decoded_tokens for attempt in self.attempts])

    @property
    def lost_tokens(self) -> int:
        """Of those that were decoded, what failed calls took with them: their caller knows nothing of these."""
        return sum([attempt.decoded_tokens for attempt in self.attempts if attempt.lost is not None])


@dataclass(slots=True)
class SessionRecord:
    """The turns of a session, and how it ended."""

    turns: list[TurnRecord] = field(default_factory=list)
    cancelled: Cancelled | None = None
    ended: SessionEnded | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it has ended and none of its requests is under way."""
        return self.ended is not None and all(attempt.is_settled for turn in self.turns for attempt in turn.attempts)


class Ledger:
    """The books of all sessions, or of those that live: one that is let go of is forgotten.

    `sessions`: those that are known from the start; the others are entered when their first event is booked.
    """

    def __init__(self, sessions: Iterable[int] = (), events: Iterable[Event] = ()) -> None:
        self.sessions: dict[int, SessionRecord] = defaultdict(SessionRecord)
        for session in sessions:
            self.sessions[session] = SessionRecord()
        self.strays = 0
        """Requests that were sent for a session after it had been let go of; they are in no book."""
        self._attempts: dict[int, Attempt] = {}
        self._turns: dict[tuple[int, int], TurnRecord] = {}
        self._has_let_go = False
        self.book(events)

    @cached_property
    def attempts(self) -> list[Attempt]:
        """All attempts, in the order sent; to be read when all events are booked."""
        return list(self._attempts.values())

    def turns(self) -> list[tuple[int, TurnRecord]]:
        """All turns with their session's index; to be read when all events are booked."""
        return self._in_order

    @cached_property
    def _in_order(self) -> list[tuple[int, TurnRecord]]:
        return [(index, turn) for index, session in self.sessions.items() for turn in session.turns]

    def turn_outcome(self, session: int, turn: int) -> str | None:
        """How a turn ended; None while it has not."""
        turns = self.sessions[session].turns if session in self.sessions else []
        ended = turns[turn].ended if turn < len(turns) else None
        return None if ended is None else ended.outcome

    def book(self, events: Iterable[Event]) -> None:
        """Enters what happened next."""
        for event in events:
            enter = _ENTERED.get(type(event))
            if enter is not None:
                try:
                    enter(self, event)
                except KeyError:
                    if not self._has_let_go:
                        raise
                    self.strays += type(event) is Sent

    def let_go(self, sessions: Iterable[int]) -> "Ledger":
        """Takes sessions, their turns and their attempts out of these books, into books of their own."""
        self._has_let_go = True
        gone = Ledger()
        for session in sessions:
            record = gone.sessions[session] = self.sessions.pop(session)
            for turn in record.turns:
                del self._turns[session, turn.started.turn]
                for attempt in turn.attempts:
                    request = attempt.sent.request
                    gone._attempts[request] = self._attempts.pop(request)
        return gone

    def _turn_started(self, event: TurnStarted) -> None:
        turn = self._turns[event.session, event.turn] = TurnRecord(event)
        self.sessions[event.session].turns.append(turn)

    def _sent(self, event: Sent) -> None:
        assert event.request not in self._attempts, "each request is sent once"
        turn = self._turns[event.session, event.turn]
        beside = any(each.is_open for each in turn.attempts[-_LAST_FEW:])
        attempt = self._attempts[event.request] = Attempt(event, beside)
        turn.attempts.append(attempt)

    def _granted(self, event: Granted) -> None:
        self._attempts[event.request].grant = event

    def _parked(self, event: Parked) -> None:
        self._attempts[event.request].parked = event

    def _admitted(self, event: Admitted) -> None:
        attempt = self._attempts[event.request]
        if attempt.parked is not None:
            attempt.admitted = event

    def _prefilled(self, event: Prefilled) -> None:
        self._attempts[event.request].prefilled = event

    def _decoded(self, event: Decoded) -> None:
        attempt = self._attempts[event.request]
        attempt.runs.append(DecodedRun(event.position, event.tokens, event.version))
        attempt.decoded_tokens += event.tokens

    def _ended(self, event: Ended) -> None:
        self._attempts[event.request].ended.append(event)

    def _delivered(self, event: Delivered) -> None:
        self._attempts[event.request].delivered = event

    def _discarded(self, event: Discarded) -> None:
        self._attempts[event.request].discarded = event

    def _lost(self, event: Lost) -> None:
        self._attempts[event.request].lost = event

    def _message(self, event: Message) -> None:
        if event.error is not None and event.session is not None and event.turn is not None:
            turn = self._turns.get((event.session, event.turn))
            if turn is not None:
                turn.balancer_failed = True

    def _turn_ended(self, event: TurnEnded) -> None:
        self._turns[event.session, event.turn].ended = event

    def _cancelled(self, event: Cancelled) -> None:
        session = self.sessions[event.session]
        session.cancelled = event
        for turn in session.turns[-1:]:
            for attempt in turn.attempts:
                if not attempt.ended:
                    attempt.decoded_at_cancel = attempt.decoded_tokens

    def _session_ended(self, event: SessionEnded) -> None:
        self.sessions[event.session].ended = event


_ENTERED: dict[type[Any], Callable[[Ledger, Any], None]] = {
    TurnStarted: Ledger._turn_started,
    Sent: Ledger._sent,
    Granted: Ledger._granted,
    Parked: Ledger._parked,
    Admitted: Ledger._admitted,
    Prefilled: Ledger._prefilled,
    Decoded: Ledger._decoded,
    Ended: Ledger._ended,
    Delivered: Ledger._delivered,
    Discarded: Ledger._discarded,
    Lost: Ledger._lost,
    Message: Ledger._message,
    TurnEnded: Ledger._turn_ended,
    Cancelled: Ledger._cancelled,
    SessionEnded: Ledger._session_ended,
}
"""The events that the ledger is made of. Looked up by type, since `match` costs ten times as much an event."""
