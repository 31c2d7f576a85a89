"""A world explained on the terminal, and the same as plain data: settings, faults, turns, and its verdicts."""

import traceback
from collections.abc import Sequence
from typing import Any

from sim.case import Case
from sim.invariants import INVARIANTS, Violation
from sim.invariants.lifecycle import failures_of_itself, odd_config
from sim.report.messages import message_table
from sim.report.spelled import schedule_line, settings_line, spelled_fault, spelled_firings
from sim.report.subject import Subject, messages_of
from sim.report.turns import turn_report
from sim.rolling import RollingTrace
from sim.search.campaign import Find
from sim.search.compare import DIFFERS
from sim.trace import TurnRecord, WorldEnded

MOST_TURNS_SHOWN = 12
MOST_FRAMES_SHOWN = 3
MOST_VIOLATIONS_SHOWN = 6


def world_report(subject: Subject, told: set[str] | None = None) -> str:
    """The whole world: settings, faults, the turns (those in violation first where there are many), verdicts.

    `told`: the places that exceptions came from, told so far; such a traceback is told once.
    """
    case, trace = subject.case, subject.trace
    sections = [_head(case, subject.sut_key)]
    failures = failures_of_itself(trace)
    if failures:
        placed = (failure for failure in failures if (failure[0], failure[1].started.turn) in trace.raised)
        sections.insert(0, _raised_section(subject, *next(placed, failures[0]), set() if told is None else told))
    if case.faults:
        sections.append(_faults_section(subject))
    turns = subject.turns()
    sections += [turn_report(case, trace, session, turn) for session, turn in turns[:MOST_TURNS_SHOWN]]
    if len(turns) > MOST_TURNS_SHOWN:
        sections.append(f"… and {len(turns) - MOST_TURNS_SHOWN} more turns")
    messages = message_table(subject)
    if messages:
        sections.append(messages)
    sections += [_ending(trace.events[-1]), verdict_lines(subject.violations)]
    return "\n\n".join(sections)


def find_report(subject: Subject, find: Find, told: set[str] | None = None) -> str:
    """The world of a find, with the violations of the invariant that it is about. A run that does not show it again
    (a SUT that breaks D1) is reported as it was seen. `told`: as in `world_report`."""
    violations = [violation for violation in subject.violations if violation.invariant == find.invariant]
    return world_report(subject._replace(violations=violations or [Violation(find.invariant, find.message)]), told)


def large_report(case: Case, sut_key: str, trace: RollingTrace) -> str:
    """A world that was judged while it ran: settings, figures, verdicts."""
    findings = trace.findings
    sections = [_head(case, sut_key)]
    if case.faults:
        sections.append("faults\n" + "\n".join(f"  {i}: {spelled_fault(fault)}" for i, fault in enumerate(case.faults)))
    figures = [
        f"{findings.sessions:,} of {case.num_sessions:,} sessions judged, with {findings.turns:,} turns and "
        f"{findings.attempts:,} requests; {findings.decoded_tokens:,} tokens decoded",
        f"at most {findings.most_live:,} sessions in memory at once; {findings.events:,} events",
    ]
    if findings.strays:
        figures.append(f"{findings.strays:,} requests came of sessions that had been judged already: not judged")
    figures.append("the world has not ended" if findings.end is None else _ending(findings.end))
    sections += ["\n".join(figures), verdict_lines(findings.violations)]
    more = [f"{count:,} times {number}" for number, count in findings.counts.items() if count > MOST_VIOLATIONS_SHOWN]
    if more:
        sections.append("in all " + ", ".join(more))
    return "\n\n".join(sections)


def _head(case: Case, sut_key: str) -> str:
    return f"{sut_key}\n{settings_line(case)}\n{schedule_line(case)}"


def _ending(end: object) -> str:
    assert isinstance(end, WorldEnded)
    return f"the world ended at {end.t_ns / 1e9:g} s: {end.reason}"


def _raised_section(subject: Subject, session: int, turn: TurnRecord, told: set[str]) -> str:
    """What the client under test raised, and from where: the last lines of its traceback, unless they were told."""
    assert turn.ended is not None, "only a call that ended can have raised"
    error, where = turn.ended.error, f"session {session} turn {turn.started.turn}"
    if subject.trace.factory_raised:
        lines = [f"{error}, and so each call fails; {odd_config(subject.case)}"]
    else:
        lines = [f"your client raised {error} ({where})"]
    stack = subject.trace.raised.get((session, turn.started.turn))
    if stack:
        frames = stack[-MOST_FRAMES_SHOWN:]
        origin = [line.rstrip() for line in "".join(traceback.format_list(frames)).splitlines()]
        where = "\n".join(origin[-2:])
        lines += ["  from the same place as above"] if where in told else origin
        told.add(where)
    return "\n".join(lines)


def _faults_section(subject: Subject) -> str:
    lines = ["faults"]
    for index, (fault, at, note) in enumerate(spelled_firings(subject.case, subject.trace)):
        when = "did not fire" if at is None else f"fired at {at}"
        lines.append(f"  {index}: {fault}: {when}{f' ({note})' if note else ''}")
    return "\n".join(lines)


def verdict_lines(violations: Sequence[Violation]) -> str:
    """Each violated invariant with its statement and its violations; or that there are none."""
    if not violations:
        return "no invariant is violated"
    lines = []
    for number, messages in messages_of(violations).items():
        if number == DIFFERS:
            lines.append("The two clients do not do the same in this world; the first request in which they differ:")
        else:
            lines.append(f"{number} violated: {INVARIANTS[number].statement}")
        lines += [f"  {message}" for message in messages[:MOST_VIOLATIONS_SHOWN]]
    return "\n".join(lines)


# Plain data


def as_json(subject: Subject) -> dict[str, Any]:
    """What `world_report` tells, as plain data."""
    trace = subject.trace
    end = trace.events[-1]
    assert isinstance(end, WorldEnded)
    return {
        "sut": subject.sut_key,
        "digest": trace.digest(),
        "events": len(trace.events),
        "ended": end.reason,
        "virtual_s": end.t_ns / 1e9,
        "attempts": [
            {
                "session": attempt.sent.session,
                "turn": attempt.sent.turn,
                "attempt": attempt.sent.attempt,
                "replica": attempt.sent.replica,
                "prompt_tokens": attempt.sent.prompt_tokens,
                "limits": attempt.sent.limits,
                "grant_tokens": None if attempt.grant is None else attempt.grant.tokens,
                "rule": None if attempt.grant is None else attempt.grant.rule,
                "decoded_tokens": attempt.decoded_tokens,
                "outcomes": [ended.outcome for ended in attempt.ended],
            }
            for attempt in trace.ledger.attempts
        ],
        "violations": _violations_as_json(subject.violations),
    }


def large_as_json(sut_key: str, trace: RollingTrace) -> dict[str, Any]:
    """What `large_report` tells, as plain data."""
    findings = trace.findings
    end = findings.end
    return {
        "sut": sut_key,
        "digest": trace.digest(),
        "events": findings.events,
        "ended": None if end is None else end.reason,
        "virtual_s": None if end is None else end.t_ns / 1e9,
        "sessions": findings.sessions,
        "turns": findings.turns,
        "requests": findings.attempts,
        "decoded_tokens": findings.decoded_tokens,
        "most_live_sessions": findings.most_live,
        "stray_requests": findings.strays,
        "counts": dict(findings.counts),
        "violations": _violations_as_json(findings.violations),
    }


def _violations_as_json(violations: Sequence[Violation]) -> list[dict[str, Any]]:
    return [{"invariant": v.invariant, "message": v.message, "session": v.session} for v in violations]
