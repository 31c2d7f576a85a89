"""The trace of a run: its events in their order, kept or handed on, and the digest of them.

The trace is what really happened, written by the world's own servers, transport and balancer wrapper. Invariants
read it and never what a system under test says of itself.
"""

import hashlib
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from traceback import StackSummary
from types import MappingProxyType
from typing import Any, Literal, Protocol

import msgspec

from sim.events import Event, WorldEnded
from sim.ledger import Ledger

Role = Literal["acquire", "release", "add", "remove", "clear_sticky"]
"""What a message asks of a balancer: a replica for a request, the slot of one given back, replicas added or removed,
or that it forget which session went where."""

MOST_RAISED_KEPT = 100

CHAPTER_EVENTS = 8192

WHOLE_EVENTS = 1 << 16
"""A trace of fewer events has the digest of a list."""


class EventsNotKept(RuntimeError):
    """The events were asked for of a trace that hands them on and keeps none."""


class Observer(Protocol):
    """Whoever is handed the events of a run while it goes on."""

    def take(self, trace: "Trace", events: Sequence[Event]) -> None:
        """What happened next on `trace`: a chapter of any length, never changed afterwards. The last event of the last
        chapter is `WorldEnded`. The sequence itself is not to be kept."""


class Trace:
    """The events of one run in the order in which they happened: kept, or handed on to observers and forgotten.

    `sessions`: how many there are. `roles`: what the kinds of messages to this world's balancer ask for; a kind that
    is not among them asks for nothing that is followed. `observers`: they are handed all events in chapters of about
    `chapter_events`, and the trace keeps none; None: it keeps them all, as `events` and `ledger`. All else is the same
    for both. `budget_setting`: what the client's config calls the length of a response.
    """

    def __init__(
        self,
        sessions: int,
        roles: Mapping[str, Role] = MappingProxyType({}),
        observers: Sequence[Observer] | None = None,
        chapter_events: int = CHAPTER_EVENTS,
        budget_setting: str = "response_length",
    ) -> None:
        self.roles = roles
        self.budget_setting = budget_setting
        self.raised: dict[tuple[int, int], StackSummary] = {}
        """Where the exception of a call came from, by (session, turn), for the first `MOST_RAISED_KEPT`. No event: it
        differs from machine to machine."""
        self.factory_raised = False
        """Whether there is no client: its factory raised over a config that is odd on purpose."""
        self.declared: Mapping[str, str] = MappingProxyType({})
        """The policies that the system under test, or a flag, declares (`sim.policies`); known before any event."""
        self.first_loads: Sequence[Any] | None = None
        """What the balancer showed as its count for each replica before any message; None where it shows none."""
        self.end: WorldEnded | None = None
        """How the run ended; None while it has not."""
        self._sessions = sessions
        self._events: list[Event] = []
        """All of them, or those that are still to be handed on."""
        self._open: list[Event] = []
        """May still be amended, in the order added."""
        self._observers = observers
        self._chapter_events = self._due = chapter_events
        self._digest = Digest()
        """Of the events that were handed on."""
        self.add: Callable[[Event], None] = self._events.append if observers is None else self._add
        """Takes an event, unless the trace is closed."""

    @property
    def keeps(self) -> bool:
        """Whether the events can be read when the run is over."""
        return self._observers is None

    @property
    def events(self) -> list[Event]:
        """All events so far. Raises `EventsNotKept` where they are handed on."""
        if self._observers is not None:
            raise EventsNotKept("this trace hands its events on to observers and keeps none")
        return self._events

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger, built once, when the run is over. Raises `EventsNotKept` as `events` does."""
        return Ledger(range(self._sessions), self.events)

    @property
    def is_done(self) -> bool:
        """Whether everything in the run came to its end."""
        return self.end is not None and self.end.reason == "done"

    def add_open(self, event: Event) -> None:
        """Takes an event of which it is not yet known how it will read: `amend` closes it. It and all later ones are
        not handed on before."""
        self._open.append(event)
        self.add(event)

    def amend(self, event: Event, amended: Event) -> None:
        """Puts `amended`, which may be the event itself, in the place of one that was added open. Nothing happens where
        the trace was closed before."""
        if not any(each is event for each in self._open):
            return
        self._open = [each for each in self._open if each is not event]
        self._events[self._place(event)] = amended

    def seal(self, end: WorldEnded) -> None:
        """Takes the last event."""
        self.add(end)
        self.end = end
        self.close()
        if self._observers is not None:
            self._hand_on()

    def close(self) -> None:
        """Takes no more events: what tasks still do while the world is torn down is not part of the run."""
        self.add = _unheard
        self._open.clear()

    def digest(self) -> str:
        """A hash of every event, equal for equal runs, in any process; for when the run is over. See `Digest`."""
        if self._observers is not None:
            return self._digest.text()
        digest = Digest()
        digest.take(self._events)
        return digest.text()

    def _add(self, event: Event) -> None:
        self._events.append(event)
        if len(self._events) >= self._due:
            self._hand_on()

    def _hand_on(self) -> None:
        """Hands on what is final."""
        assert self._observers is not None
        events = self._events
        final = self._place(self._open[0]) if self._open else len(events)
        chapter = events[:final]
        del events[:final]
        self._due = len(events) + self._chapter_events
        if chapter:
            self._digest.take(chapter)
            for observer in self._observers:
                observer.take(self, chapter)

    def _place(self, event: Event) -> int:
        return next(i for i in range(len(self._events) - 1, -1, -1) if self._events[i] is event)


def _unheard(event: Event) -> None:
    del event


class Digest:
    """The digest of a trace, from its events in chapters of any length: BLAKE2b of 16 bytes, as hexadecimal digits.

    Hashed are the events in MessagePack, one after the other. Where they are fewer than `WHOLE_EVENTS`, the header of
    an array of so many comes first, so that what is hashed is the MessagePack of the list of events; a longer trace has
    no header, as its length is known too late. Until there are so many, their bytes are kept: some megabytes. An event
    with an integer of more than 64 bits is a byte string with the event in JSON. Who waits at the end is left out: it
    names functions, of ours too.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._num_events = 0
        self._whole: list[bytes] = []
        """What is not in the hash yet, since the trace may turn out to be short."""

    def take(self, events: Sequence[Event]) -> None:
        """What happened next."""
        self._num_events += len(events)
        last = events[-1] if events else None
        if isinstance(last, WorldEnded) and last.waiting:
            events = [*events[:-1], WorldEnded(last.t_ns, last.reason)]
        self._whole.append(_packed(events))
        if self._num_events >= WHOLE_EVENTS:
            for packed in self._whole:
                self._hash.update(packed)
            self._whole.clear()

    def text(self) -> str:
        """The digest of what was taken."""
        if self._num_events >= WHOLE_EVENTS:
            return self._hash.hexdigest()
        whole = hashlib.blake2b(_array_header(self._num_events), digest_size=16)
        for packed in self._whole:
            whole.update(packed)
        return whole.hexdigest()


def _array_header(length: int) -> bytes:
    """What MessagePack puts in front of so many things in an array."""
    if length < 16:
        return bytes([0x90 | length])
    if length < 1 << 16:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")


def _packed(events: Sequence[Event]) -> bytes:
    """Events in MessagePack, one after the other."""
    try:
        return _encoder.encode(events)[len(_array_header(len(events))) :]
    except OverflowError:  # a client made an integer of more than 64 bits
        return b"".join([_packed_event(event) for event in events])


def _packed_event(event: Event) -> bytes:
    try:
        return _encoder.encode(event)
    except OverflowError:
        return _encoder.encode(msgspec.json.encode(event, enc_hook=_plain))


def _plain(value: Any) -> Any:
    """For what a system under test puts where plain data belongs: numpy's integers, or an object of its own."""
    try:
        return operator.index(value)
    except TypeError:
        return type(value).__name__


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
