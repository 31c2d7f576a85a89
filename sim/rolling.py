"""A trace that is judged while the world runs: for worlds too large to be kept.

Events are taken a chapter at a time. A session that has ended, whose requests have all come to their end and whose
slots are all given back, is held against the invariants and forgotten; so memory is bounded by the sessions that live.
What concerns all sessions, as the balancer's counts, is followed from message to message.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from sim.case import Case
from sim.clock import to_ns
from sim.invariants import INVARIANTS, judge
from sim.invariants.interface import Violation
from sim.invariants.routing import Replay, log_of
from sim.sut.interface import Sut
from sim.trace import (
    BOOKED,
    Event,
    Ledger,
    Logged,
    Message,
    Sent,
    SessionEnded,
    SessionRecord,
    Trace,
    VersionChanged,
    WorldEnded,
    packed,
)
from sim.world import World

_CHAPTER_EVENTS = 8192
_KEPT_VIOLATIONS = 20
"""Of each invariant; the others are counted."""
_KEPT_TEXTS = 100
"""Different warnings."""


@dataclass(slots=True)
class Findings:
    """What is known so far."""

    sessions: int = 0
    """Sessions, turns and attempts: of those that were judged."""
    turns: int = 0
    attempts: int = 0
    decoded_tokens: int = 0
    events: int = 0
    most_live: int = 0
    """Sessions that were in memory at the end of a chapter."""
    strays: int = 0
    """Requests that were sent for a session after it had been judged. They are not judged."""
    end: WorldEnded | None = None
    violations: list[Violation] = field(default_factory=list)
    """The first ones of each invariant."""
    counts: Counter[str] = field(default_factory=Counter)
    """How many there are, by invariant."""

    def add(self, found: Iterable[Violation]) -> None:
        for violation in found:
            self.counts[violation.invariant] += 1
            if self.counts[violation.invariant] <= _KEPT_VIOLATIONS:
                self.violations.append(violation)


def run_rolling(case: Case, sut: Sut) -> "RollingTrace":
    """The trace of one run, judged."""
    trace = RollingTrace(case)
    World(case, sut, trace=trace).run()
    return trace


class RollingTrace(Trace):
    """Has no `ledger`, and of the `events` only the last; `findings` is complete once the world has ended.

    `read`: called with each chapter's sessions, as a trace of those alone; `numbers`: the invariants to judge by.
    """

    def __init__(
        self,
        case: Case,
        numbers: Collection[str] = tuple(INVARIANTS),
        read: Callable[[Trace], None] = lambda _: None,
    ) -> None:
        super().__init__(0)
        self.findings = Findings()
        self.add = self._add
        self._case = case
        self._numbers = numbers
        self._numbers_of_a_session = [number for number in numbers if INVARIANTS[number].is_of_a_session]
        self.read = read
        self._live = _LiveLedger()
        self._leaving: dict[int, SessionRecord] = {}
        """Ended; something of theirs may still be under way."""
        self._one_object = case.transport.objects == "shared" and any(
            session.shares_params_with is not None for session in case.sessions
        )
        """Sessions share their params: they are judged together, at the end. No case with such repeats its sessions."""
        self._balancer_delay_ns = to_ns(case.transport.balancer_delay_s)
        self._replay = Replay(case)
        self._failed: dict[int, list[Message]] = {}
        """Messages that failed, by session."""
        self._stale: list[VersionChanged] = []
        """Of the chapter."""
        self._texts: dict[tuple[str, str], Logged] = {}
        self._digest = hashlib.blake2b(digest_size=16)

    def _add(self, event: Event) -> None:
        self.events.append(event)
        if len(self.events) == _CHAPTER_EVENTS:
            self._take_events()
            self._judge(self._gone(event.t_ns), WorldEnded(event.t_ns, "done"), self._numbers_of_a_session)

    def seal(self, end: WorldEnded) -> None:
        self._add(end)
        self.close()
        self.findings.end = end
        self._take_events()
        self._judge(dict(self._live.sessions), end, self._numbers)
        self.events.append(end)
        self._live = _LiveLedger()

    def digest(self) -> str:
        """As of any trace: equal for equal runs. It differs from that of a trace that is kept whole."""
        return self._digest.hexdigest()

    def _take_events(self) -> None:
        """Books the chapter's events and lets go of them."""
        events = self.events
        self._digest.update(packed(events))
        self.findings.events += len(events)
        self._live.book(events)
        for event in events:
            if isinstance(event, Message):
                self._replay.handle(event)
                if event.error and event.session in self._live.sessions:
                    self._failed.setdefault(event.session, []).append(event)
            elif isinstance(event, SessionEnded):
                self._leaving[event.session] = self._live.sessions[event.session]
            elif isinstance(event, VersionChanged):
                if event.stale_requests:
                    self._stale.append(event)
            elif isinstance(event, Logged) and len(self._texts) < _KEPT_TEXTS:
                self._texts.setdefault((event.logger, event.text), event)
        events.clear()
        log = self._replay.log
        for violations in (log.r1, log.r2, log.r5):
            self.findings.add(each for each in violations if each.invariant in self._numbers)
            violations.clear()
        self.findings.most_live = max(self.findings.most_live, len(self._live.sessions))
        self.findings.strays = self._live.strays

    def _gone(self, now_ns: int) -> dict[int, SessionRecord]:
        """Takes the sessions that nothing more will come of out of what is kept. What they sent to the balancer before
        they ended has reached it when its delay has passed; the trace has only what has."""
        if self._one_object:
            return {}
        ended_before_ns = now_ns - self._balancer_delay_ns
        gone = {
            session: record
            for session, record in self._leaving.items()
            if record.ended is not None
            and record.ended.t_ns < ended_before_ns
            and _is_settled(record)
            and not self._replay.has_open(session)
        }
        for session in gone:
            del self._leaving[session]
            self._live.forget(session)
            self._replay.forget(session)
        return gone

    def _judge(self, sessions: dict[int, SessionRecord], end: WorldEnded, numbers: Collection[str]) -> None:
        """Holds these sessions against the invariants of these numbers."""
        chapter = Trace(0)
        chapter.factory_raised = self.factory_raised
        failed = [message for session in sessions for message in self._failed.pop(session, ())]
        chapter.events = [*self._texts.values(), *failed, *self._stale, end]
        chapter.ledger = Ledger.of(sessions)
        if end is self.findings.end:
            chapter.know(log_of, self._replay.finish())
        self._stale.clear()
        findings = self.findings
        findings.sessions += len(sessions)
        findings.turns += len(chapter.ledger.turns())
        findings.attempts += len(chapter.ledger.attempts)
        findings.decoded_tokens += sum([attempt.decoded_tokens for attempt in chapter.ledger.attempts])
        findings.add(judge(self._case, chapter, numbers))
        self.read(chapter)


class _LiveLedger(Ledger):
    """Of sessions that come and go."""

    def __init__(self) -> None:
        super().__init__(())
        self.sessions = defaultdict(SessionRecord)
        self.strays = 0
        """Requests of turns that were forgotten."""

    def book(self, events: Iterable[Event]) -> None:
        for event in events:
            book = BOOKED.get(type(event))
            if book is not None:
                try:
                    book(self, event)
                except KeyError:
                    self.strays += type(event) is Sent


def _is_settled(record: SessionRecord) -> bool:
    """Whether each request has ended and its answer has found a caller, or none."""
    return all(
        attempt.ended and (attempt.delivered or attempt.discarded) for turn in record.turns for attempt in turn.attempts
    )
