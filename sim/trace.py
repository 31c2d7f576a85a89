"""The event log of a run, its digest, and the token ledger derived from it.

The trace is what really happened, written by the world's own servers, transport and balancer wrapper. Invariants
read it and never what a system under test says of itself. Times are integer nanoseconds of virtual time; a
*request* is numbered in the order in which requests were sent.
"""

import hashlib
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from traceback import StackSummary
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from sim.case import Case
from sim.dialects import Outcome
from sim.tokens import Ids


class _Event(msgspec.Struct, frozen=True, tag=True, gc=False):
    t_ns: int


class TurnStarted(_Event, frozen=True, tag="turn_started"):
    """A call of the client's generate begins."""

    session: int
    turn: int
    prompt_tokens: int


class Acquired(_Event, frozen=True, tag="acquired"):
    """The balancer's choice reached the client."""

    session: int
    turn: int
    replica: int


class Sent(_Event, frozen=True, tag="sent"):
    """A client sent a request to a server. `limits`: the limits in its sampling params, by spelling."""

    request: int
    session: int
    turn: int
    attempt: int
    replica: int
    prompt_tokens: int
    limits: dict[str, Any]


class Granted(_Event, frozen=True, tag="granted"):
    """The server settled on a max_tokens; fields as in `sim.dialects.Grant`."""

    request: int
    tokens: int
    rule: str
    wanted_tokens: int
    room_tokens: int


class Parked(_Event, frozen=True, tag="parked"):
    """The request waits at a closed submission gate."""

    request: int


class Admitted(_Event, frozen=True, tag="admitted"):
    """The request is in the engine."""

    request: int


class Prefilled(_Event, frozen=True, tag="prefilled"):
    """Where the KV of a request's prompt came from, said when the request leaves the engine; see
    `sim.servers.decode_engine.Prefill`. What a resume computes again is among the computed tokens of later attempts."""

    request: int
    computed_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    stale_tokens: int


class Decoded(_Event, frozen=True, tag="decoded"):
    """A run of tokens was decoded: `tokens` of them, the first at absolute position `position`."""

    request: int
    position: int
    tokens: int
    version: int


class Ended(_Event, frozen=True, tag="ended"):
    """The server is done with the request. `refused`: turned away at the gate; `error`: the call raised.

    `in_flight_tokens`: decoded by the step under way when the request was aborted by its id, for nobody.
    """

    request: int
    outcome: Outcome
    tokens: int
    error: str | None = None
    in_flight_tokens: int = 0


class Delivered(_Event, frozen=True, tag="delivered"):
    """The server's answer reached its caller, with this many tokens."""

    request: int
    tokens: int


class Discarded(_Event, frozen=True, tag="discarded"):
    """The server's answer found no caller (it was cancelled)."""

    request: int
    tokens: int


Role = Literal["acquire", "release", "add", "remove", "clear_sticky"]
"""What a message to the balancer does, whatever a framework calls it."""


class Message(_Event, frozen=True, tag="message"):
    """The balancer has handled a message about `replicas`.

    `loads`: its own count for each replica afterwards (None: not registered), None where it shows none;
    `total`: its get_total_inflight. `in_flight`: messages on their way to it.
    """

    kind: str
    session: int | None
    turn: int | None
    replicas: tuple[int, ...]
    loads: tuple[int | None, ...] | None
    total: int | None
    in_flight: int
    error: str | None = None


class Paused(_Event, frozen=True, tag="paused"):
    """A replica closed its gate and ended its requests: their count as it reports it."""

    replica: int
    aborted: int


class Resumed(_Event, frozen=True, tag="resumed"):
    replica: int


class VersionChanged(_Event, frozen=True, tag="version_changed"):
    """`stale_requests`: running requests that keep KV of older weights; `stale_kv_tokens`: tokens in it."""

    replica: int
    version: int
    stale_requests: int = 0
    stale_kv_tokens: int = 0


class Cancelled(_Event, frozen=True, tag="cancelled"):
    """The task that runs a session was cancelled."""

    session: int


class FaultFired(_Event, frozen=True, tag="fault_fired"):
    """A fault acted; `note` says so where it found nothing to act on."""

    fault: int
    kind: str
    note: str = ""


class Logged(_Event, frozen=True, tag="logged"):
    """A warning (or worse) from the system under test."""

    logger: str
    text: str


class TurnEnded(_Event, frozen=True, tag="turn_ended"):
    """The client's generate returned, raised or was cancelled.

    `ids`: the tokens that it returned. `params_changed`: how the caller's sampling params differ from before the call.
    """

    session: int
    turn: int
    outcome: Literal["ok", "cancelled", "error"]
    ids: Ids
    stop_reason: str | None
    min_version: int | None
    max_version: int | None
    params_changed: str | None
    error: str | None = None


class SessionEnded(_Event, frozen=True, tag="session_ended"):
    """An agent loop is done. `response_tokens`: model and tool tokens before its slice; `kept_tokens`: after it."""

    session: int
    outcome: Literal["ok", "cancelled", "error"]
    response_tokens: int
    kept_tokens: int
    error: str | None = None


class WorldEnded(_Event, frozen=True, tag="world_ended"):
    """`done`: everything ended; `deadlock`: nothing could go on; `horizon`: the bound of virtual time; `livelock`."""

    reason: Literal["done", "deadlock", "horizon", "livelock"]
    waiting: tuple[tuple[str, str], ...] = ()


Event = (
    TurnStarted
    | Acquired
    | Sent
    | Granted
    | Parked
    | Admitted
    | Prefilled
    | Decoded
    | Ended
    | Delivered
    | Discarded
    | Message
    | Paused
    | Resumed
    | VersionChanged
    | Cancelled
    | FaultFired
    | Logged
    | TurnEnded
    | SessionEnded
    | WorldEnded
)


class Run(NamedTuple):
    """Tokens decoded in a row on one weight version, the first at absolute position `position`."""

    position: int
    tokens: int
    version: int


@dataclass(slots=True)
class Attempt:
    """One request, gathered from its events. Lengths in tokens; None where it did not come so far."""

    sent: Sent
    grant: Granted | None = None
    prefilled: Prefilled | None = None
    runs: list[Run] = field(default_factory=list)
    decoded_tokens: int = 0
    ended: list[Ended] = field(default_factory=list)
    delivered: Delivered | None = None
    discarded: Discarded | None = None


@dataclass(slots=True)
class TurnRecord:
    """One call of generate and the attempts that it made, in the order sent."""

    started: TurnStarted
    attempts: list[Attempt] = field(default_factory=list)
    ended: TurnEnded | None = None

    @property
    def decoded_tokens(self) -> int:
        return sum([attempt.decoded_tokens for attempt in self.attempts])


@dataclass(slots=True)
class SessionRecord:
    """The turns of a session, and how it ended."""

    turns: list[TurnRecord] = field(default_factory=list)
    cancelled: Cancelled | None = None
    ended: SessionEnded | None = None


class Ledger:
    """Who decoded what: sessions → turns → attempts, from the events alone."""

    def __init__(self, sessions: Iterable[int], events: Iterable[Event] = ()) -> None:
        self.sessions = {session: SessionRecord() for session in sessions}
        self._attempts: dict[int, Attempt] = {}
        self._turns: dict[tuple[int, int], TurnRecord] = {}
        self.book(events)

    @cached_property
    def attempts(self) -> list[Attempt]:
        """All attempts, in the order sent; to be read when all events are booked."""
        return list(self._attempts.values())

    def book(self, events: Iterable[Event]) -> None:
        """Enters what happened next."""
        for event in events:
            book = BOOKED.get(type(event))
            if book is not None:
                book(self, event)

    def _turn_started(self, event: TurnStarted) -> None:
        turn = self._turns[event.session, event.turn] = TurnRecord(event)
        self.sessions[event.session].turns.append(turn)

    def _sent(self, event: Sent) -> None:
        assert event.request not in self._attempts, "each request is sent once"
        attempt = self._attempts[event.request] = Attempt(event)
        self._turns[event.session, event.turn].attempts.append(attempt)

    def _granted(self, event: Granted) -> None:
        self._attempts[event.request].grant = event

    def _prefilled(self, event: Prefilled) -> None:
        self._attempts[event.request].prefilled = event

    def _decoded(self, event: Decoded) -> None:
        attempt = self._attempts[event.request]
        attempt.runs.append(Run(event.position, event.tokens, event.version))
        attempt.decoded_tokens += event.tokens

    def _ended(self, event: Ended) -> None:
        self._attempts[event.request].ended.append(event)

    def _delivered(self, event: Delivered) -> None:
        self._attempts[event.request].delivered = event

    def _discarded(self, event: Discarded) -> None:
        self._attempts[event.request].discarded = event

    def _turn_ended(self, event: TurnEnded) -> None:
        self._turns[event.session, event.turn].ended = event

    def _cancelled(self, event: Cancelled) -> None:
        self.sessions[event.session].cancelled = event

    def _session_ended(self, event: SessionEnded) -> None:
        self.sessions[event.session].ended = event

    @classmethod
    def of(cls, sessions: dict[int, SessionRecord]) -> "Ledger":
        """A ledger of sessions that were booked already."""
        ledger = cls(())
        ledger.sessions = sessions
        ledger.attempts = [each for record in sessions.values() for turn in record.turns for each in turn.attempts]
        return ledger

    def forget(self, session: int) -> None:
        """Lets go of a session, its turns and its attempts."""
        for turn in self.sessions.pop(session).turns:
            del self._turns[session, turn.started.turn]
            for attempt in turn.attempts:
                del self._attempts[attempt.sent.request]

    def turn_outcome(self, session: int, turn: int) -> str | None:
        """How a turn ended; None while it has not."""
        turns = self.sessions[session].turns if session in self.sessions else []
        ended = turns[turn].ended if turn < len(turns) else None
        return None if ended is None else ended.outcome

    def turns(self) -> list[tuple[int, TurnRecord]]:
        """All turns with their session's index."""
        return self._in_order

    @cached_property
    def _in_order(self) -> list[tuple[int, TurnRecord]]:
        return [(index, turn) for index, session in self.sessions.items() for turn in session.turns]


BOOKED: dict[type[Any], Callable[[Ledger, Any], None]] = {
    TurnStarted: Ledger._turn_started,
    Sent: Ledger._sent,
    Granted: Ledger._granted,
    Prefilled: Ledger._prefilled,
    Decoded: Ledger._decoded,
    Ended: Ledger._ended,
    Delivered: Ledger._delivered,
    Discarded: Ledger._discarded,
    TurnEnded: Ledger._turn_ended,
    Cancelled: Ledger._cancelled,
    SessionEnded: Ledger._session_ended,
}
"""The events that the ledger is made of. Looked up by type, since `match` costs ten times as much an event."""


Derived = TypeVar("Derived")

MOST_RAISED_KEPT = 100


class Trace:
    """The events of one run in the order in which they happened."""

    def __init__(self, sessions: int) -> None:
        self.events: list[Event] = []
        self.add: Callable[[Event], None] = self.events.append
        """Takes an event, unless the trace is sealed."""
        self.raised: dict[tuple[int, int], StackSummary] = {}
        """Where the exception of a call came from, by (session, turn), for the first `MOST_RAISED_KEPT`. No event: it
        differs from machine to machine."""
        self.factory_raised = False
        """Whether there is no client: its factory raised over a config that is odd on purpose."""
        self._sessions = sessions
        self._derived: dict[Any, Any] = {}

    def amend(self, event: Event, amended: Event) -> None:
        """Puts another event in the place of one that is on the trace."""
        for position in range(len(self.events) - 1, -1, -1):
            if self.events[position] is event:
                self.events[position] = amended
                return

    def seal(self, end: WorldEnded) -> None:
        """The last event."""
        self.add(end)
        self.close()

    def close(self) -> None:
        """Takes no more events: what tasks still do while the world is torn down is not part of the run."""
        unheard: list[Event] = []
        self.add = unheard.append

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger, built once, when the run is over."""
        return Ledger(range(self._sessions), self.events)

    @property
    def is_done(self) -> bool:
        """Whether everything in the run came to its end."""
        end = self.events[-1]
        return isinstance(end, WorldEnded) and end.reason == "done"

    def derived(self, make: "Callable[[Trace, Case], Derived]", case: Case) -> Derived:
        """What `make` derives from the finished trace, made once."""
        if make not in self._derived:
            self._derived[make] = make(self, case)
        result: Derived = self._derived[make]
        return result

    def know(self, make: "Callable[[Trace, Case], Derived]", result: Derived) -> None:
        """Sets what `make` would derive."""
        self._derived[make] = result

    def digest(self) -> str:
        """A hash of every event: equal for equal runs, in any process."""
        return hashlib.blake2b(packed(self.events), digest_size=16).hexdigest()


def packed(events: list[Event]) -> bytes:
    """Events as bytes, to be hashed."""
    try:
        return _encoder.encode(events)
    except OverflowError:  # a client made an integer of more than 64 bits
        return msgspec.json.encode(events, enc_hook=_plain)


def _plain(value: Any) -> Any:
    """For what a system under test puts where plain data belongs: numpy's integers, or an object of its own."""
    try:
        return operator.index(value)
    except TypeError:
        return type(value).__name__


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)


def spelled(error: BaseException) -> str:
    """An error as text that is the same in every process."""
    return without_addresses(f"{type(error).__name__}: {error}")


def without_addresses(text: str) -> str:
    """A text without the memory addresses that the repr of an object has."""
    return _ADDRESS.sub("…", text) if "x" in text else text


_ADDRESS = re.compile(r"0?x[0-9a-f]{8,}\b")
