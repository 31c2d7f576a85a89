"""The judge: holds a run against the invariants, from its events alone.

There is one way of judging. A judge takes the events in chapters of any length, while the run goes on (as an observer
of its trace) or afterwards; what it finds is the same.

A case that repeats its sessions has too many of them to be kept. There the judge sits after every `SITTING_EVENTS`
events of the run: each session that has ended, with nothing of it under way, is judged and let go of, so that memory
goes by the sessions that live. What is sent for such a session afterwards is counted as a stray, and not judged. In any
other case all sessions are judged together at the end: a client may do something for a session that has ended, and
sessions that share their sampling params cannot be told apart.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.budget import turn_budget_tokens
from sim.case import Case
from sim.clock import to_ns
from sim.events import (
    Awaited,
    Delivered,
    Discarded,
    Ended,
    Event,
    FaultFired,
    Logged,
    Message,
    Sent,
    SessionEnded,
    VersionChanged,
    WorldEnded,
)
from sim.invariants.interface import Evidence
from sim.invariants.pauses import FOLLOWED, PauseWatch
from sim.invariants.routing_log import RoutingWatch
from sim.invariants.table import INVARIANTS, with_numbers
from sim.invariants.violation import Violation
from sim.ledger import Ledger
from sim.policies import Policies, in_force
from sim.trace import Role, Trace

SITTING_EVENTS = 8192

_MOST_VIOLATIONS = 20
"""That are kept of each invariant where sessions are let go of; the others are counted."""

CONSEQUENCES = (("R3", "R1"),)
"""What only follows, where its cause is judged too: who counts wrongly takes a replica for less loaded than it is."""

_MOST_WARNINGS = 10_000
_MOST_NOTES = 10
"""Different ones."""


@dataclass(slots=True)
class Firings:
    """What one fault of the case did: how often it fired, when last, and how often with which note, each on one firing
    that failed or found nothing to act on."""

    times: int = 0
    last_ns: int = 0
    notes: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Findings:
    """What a judge has found so far. Sessions, turns, attempts and decoded tokens are those that were judged."""

    sessions: int = 0
    turns: int = 0
    attempts: int = 0
    decoded_tokens: int = 0
    events: int = 0
    most_live: int = 0
    """Sessions that were in memory when the judge sat."""
    strays: int = 0
    """Requests that were sent for a session after it had been judged."""
    faults: dict[int, Firings] = field(default_factory=dict)
    """By the fault's number in the case."""
    end: WorldEnded | None = None
    violations: list[Violation] = field(default_factory=list)
    """Of a case that repeats its sessions the first ones of each invariant."""
    warnings: list[Violation] = field(default_factory=list)
    """What is no offence; as `violations`."""
    counts: Counter[str] = field(default_factory=Counter)
    """How many violations and warnings there are, by invariant."""

    def add(self, found: Iterable[Violation], most: int = sys.maxsize) -> None:
        """Takes over what was found; of each invariant no more than `most` are kept."""
        for violation in found:
            self.counts[violation.invariant] += 1
            if self.counts[violation.invariant] <= most:
                (self.warnings if violation.severity == "warning" else self.violations).append(violation)

    def tell_as_one(self, cause: str, consequence: str) -> None:
        """Takes what only follows from something else out of the list, and says so there."""
        times, first = self.counts[consequence], next((v for v in self.violations if v.invariant == cause), None)
        if not times or first is None:
            return
        self.violations = [each for each in self.violations if each.invariant != consequence]
        del self.counts[consequence]
        told = first._replace(
            message=f"{first.message}; {consequence} follows from it, {times} time{'s' * (times > 1)}"
        )
        self.violations[self.violations.index(first)] = told

    def drop(self, withdrawn: Sequence[Violation]) -> None:
        """Takes back what was found."""
        for violation in withdrawn:
            self.violations.remove(violation)
            self.counts[violation.invariant] -= 1
        self.counts = +self.counts


class Judge:
    """Judges one run of `case`: an observer of its trace. `findings` is complete when the run's last event was taken.

    `numbers`: the invariants to judge by; None: all that are registered. `policies`: in the place of those that the
    trace tells. `read` is called with the evidence of each sitting, the last of them at the end. `sitting_events`: in
    the place of what suits the case.
    """

    def __init__(
        self,
        case: Case,
        numbers: Collection[str] | None = None,
        read: Callable[[Evidence], None] | None = None,
        sitting_events: int | None = None,
        policies: Policies | None = None,
    ) -> None:
        self.findings = Findings()
        self.policies = policies or in_force(case.policies, {})
        """Those in force, which the trace tells unless they were given."""
        self._policies_given = policies is not None
        self._has_begun = False
        self._case = case
        self._invariants = with_numbers(INVARIANTS if numbers is None else numbers)
        self._read = read
        repeats = case.repeat > 1
        self._sitting_events = sitting_events or (SITTING_EVENTS if repeats else sys.maxsize)
        self._most_violations = _MOST_VIOLATIONS if repeats else sys.maxsize
        self._budgets: tuple[int | None, ...] = ()
        self._balancer_delay_ns = to_ns(case.transport.balancer_delay_s)
        self._ledger = Ledger(() if repeats else range(case.num_sessions))
        self._leaving: dict[int, None] = {}
        """Sessions that have ended, in their order; something of theirs may still be under way."""
        self._watch = RoutingWatch(case, self.policies)
        self._pauses = PauseWatch(case)
        self._roles: Mapping[str, Role] = {}
        self._books = _BOOKED
        self._warnings: dict[tuple[str, str], Logged] = {}
        self._stale_updates: list[VersionChanged] = []

    @property
    def warnings(self) -> Collection[Logged]:
        """Each different warning of the system under test so far."""
        return self._warnings.values()

    def take(self, trace: Trace, events: Sequence[Event]) -> None:
        """What happened next, as `sim.trace.Observer` has it."""
        if not self._has_begun:
            self._begin(trace)
        findings = self.findings
        start = 0
        while start < len(events):
            part = events[start : start + self._sitting_events - findings.events % self._sitting_events]
            start += len(part)
            findings.events += len(part)
            self._book(part)
            if findings.end is not None or findings.events % self._sitting_events == 0:
                self._sit(part[-1].t_ns, trace)

    def _begin(self, trace: Trace) -> None:
        """Before the first event: what the trace tells of its world."""
        self._has_begun, self._roles, case = True, trace.roles, self._case
        if not self._policies_given:
            self.policies = in_force(case.policies, trace.declared)
        policies = self.policies
        self._budgets = tuple([turn_budget_tokens(case, session, policies) for session in range(len(case.sessions))])
        self._watch = RoutingWatch(case, policies)
        if self._watch.excused is not None:
            self._books = {**_BOOKED, **dict.fromkeys((Sent, Ended, Delivered, Discarded), Judge._request)}

    def _book(self, events: Sequence[Event]) -> None:
        self._ledger.book(events)
        books = self._books
        for event in events:
            book = books.get(type(event))
            if book is not None:
                book(self, event)
            follow = FOLLOWED.get(type(event))
            if follow is not None:
                follow(self._pauses, event)

    def _message(self, event: Message) -> None:
        self._watch.handle(event, self._roles.get(event.kind))

    def _awaited(self, event: Awaited) -> None:
        self._watch.begin(event)

    def _request(self, event: Event) -> None:
        assert self._watch.excused is not None, "only then it is entered"
        self._watch.excused.book(event)

    def _session_ended(self, event: SessionEnded) -> None:
        self._leaving[event.session] = None

    def _version_changed(self, event: VersionChanged) -> None:
        if event.stale_requests:
            self._stale_updates.append(event)

    def _logged(self, event: Logged) -> None:
        if len(self._warnings) < _MOST_WARNINGS:
            self._warnings.setdefault((event.logger, event.text), event)

    def _fault_fired(self, event: FaultFired) -> None:
        firings = self.findings.faults.setdefault(event.fault, Firings())
        firings.times += 1
        firings.last_ns = event.t_ns
        if event.note and (event.note in firings.notes or len(firings.notes) < _MOST_NOTES):
            firings.notes[event.note] += 1

    def _world_ended(self, event: WorldEnded) -> None:
        self.findings.end = event

    def _sit(self, now_ns: int, trace: Trace) -> None:
        """Judges the sessions that nothing more will come of, and at the end of the run all that are left."""
        findings, watch = self.findings, self._watch
        findings.most_live = max(findings.most_live, len(self._ledger.sessions))
        findings.strays = self._ledger.strays
        if findings.end is None:
            ledger = self._let_go(now_ns)
        else:
            ledger, self._ledger = self._ledger, Ledger()
            watch.log.unreleased = watch.truth.unreleased()
        findings.sessions += len(ledger.sessions)
        findings.turns += len(ledger.turns())
        findings.attempts += len(ledger.attempts)
        findings.decoded_tokens += sum([attempt.decoded_tokens for attempt in ledger.attempts])
        evidence = Evidence(
            self._case,
            self.policies,
            ledger,
            self._budgets,
            self._warnings.values(),
            self._stale_updates,
            watch.log,
            self._pauses.log,
            trace.first_loads,
            findings.end,
            trace.factory_raised,
            trace.budget_setting,
        )
        for invariant in self._invariants:
            if findings.end is not None or invariant.scope == "sessions":
                findings.add(invariant.broken_in(evidence), self._most_violations)
        if findings.end is not None:
            for cause, consequence in CONSEQUENCES:
                findings.tell_as_one(cause, consequence)
        if self._read is not None:
            self._read(evidence)
        self._stale_updates.clear()
        watch.log.forget_judged()
        self._pauses.log.found.clear()

    def _let_go(self, now_ns: int) -> Ledger:
        """Takes out of the books the sessions that nothing more will come of. What they sent to the balancer before
        they ended has reached it when its delay has passed; the trace has only what has."""
        ended_before_ns = now_ns - self._balancer_delay_ns
        gone = [session for session in self._leaving if self._is_gone(session, ended_before_ns)]
        for session in gone:
            del self._leaving[session]
            self._watch.forget(session)
        return self._ledger.let_go(gone)

    def _is_gone(self, session: int, ended_before_ns: int) -> bool:
        record = self._ledger.sessions[session]
        return (
            record.ended is not None
            and record.ended.t_ns < ended_before_ns
            and record.is_settled
            and not self._watch.truth.has_open(session)
        )


_BOOKED: dict[type[Any], Callable[[Judge, Any], None]] = {
    Awaited: Judge._awaited,
    Message: Judge._message,
    SessionEnded: Judge._session_ended,
    VersionChanged: Judge._version_changed,
    Logged: Judge._logged,
    FaultFired: Judge._fault_fired,
    WorldEnded: Judge._world_ended,
}
"""What the judge enters in books of its own, by type."""


def judge(
    case: Case, trace: Trace, numbers: Collection[str] | None = None, policies: Policies | None = None
) -> list[Violation]:
    """Every violation of the invariants with these numbers (None: of all) in a run that is over, in their order; of
    those that are asked for by number the warnings too, last.

    Raises `sim.trace.EventsNotKept` where the trace has handed its events on (a `Judge` is to be among its observers
    then), and ValueError where the run is not over.
    """
    if trace.end is None:
        raise ValueError("the run is not over: its trace has no WorldEnded")
    one = Judge(case, numbers, policies=policies)
    one.take(trace, trace.events)
    found = one.findings
    return found.violations if numbers is None else found.violations + found.warnings
