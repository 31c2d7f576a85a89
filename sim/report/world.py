"""A world explained on the terminal, and the same as plain data: settings, faults, turns, and its verdicts."""

import traceback
from collections.abc import Sequence
from typing import Any

from sim.budget import odd_config
from sim.events import WorldEnded
from sim.invariants.judging import Findings
from sim.invariants.lifecycle import failures_of_itself
from sim.invariants.table import INVARIANTS
from sim.invariants.violation import Violation
from sim.ledger import Attempt, TurnRecord
from sim.report.messages import message_table
from sim.report.spelled import policies_line, schedule_line, settings_line, spelled_fault, spelled_firings
from sim.report.turns import turn_report
from sim.report.violated import MOST_MESSAGES, messages_of, turns_to_tell
from sim.search.compare import DIFFERS
from sim.search.find import Find
from sim.verdicts import Judged, clearing_policies

MOST_TURNS_SHOWN = 12
MOST_FRAMES_SHOWN = 3


def world_report(run: Judged) -> str:
    """The whole world: settings, faults, the turns (those in violation first where there are many), verdicts; of a case
    that repeats its sessions figures in the place of turns."""
    return _large_report(run) if run.case.repeat > 1 else _report(run, [*run.violations, *run.warnings], set())


def find_report(run: Judged, find: Find, told: set[str]) -> str:
    """The world of a find, with the violations of the invariant that it is about. A run that does not show it again
    (a SUT that breaks D1) is reported as it was seen.

    `told`: the places that exceptions came from, told so far; such a traceback is told once.
    """
    violations = [violation for violation in run.violations if violation.invariant == find.invariant]
    report = _report(run, violations or [Violation(find.invariant, find.message)], told)
    clearing = clearing_policies(run, find.invariant) if violations else []
    return report + (f"\nonly a policy decides this: clean under {', '.join(clearing)}" if clearing else "")


def _report(run: Judged, violations: Sequence[Violation], told: set[str]) -> str:
    case, trace = run.case, run.trace
    sections = [_head(run)]
    failures = failures_of_itself(trace.ledger)
    if failures:
        placed = (failure for failure in failures if (failure[0], failure[1].started.turn) in trace.raised)
        sections.insert(0, _raised_section(run, *next(placed, failures[0]), told))
    if case.faults:
        sections.append(_faults_section(run))
    turns = turns_to_tell(trace.ledger, violations, MOST_TURNS_SHOWN)
    sections += [turn_report(case, trace.ledger, session, turn, run.policies) for session, turn in turns]
    more = len(trace.ledger.turns()) - len(turns)
    if more:
        sections.append(f"… and {more} more turns")
    messages = message_table(run, violations)
    if messages:
        sections.append(messages)
    sections += [_ending(trace.end), verdict_lines(violations)]
    return "\n\n".join(sections)


def _large_report(run: Judged) -> str:
    """A world that was judged while it ran: settings, figures, verdicts."""
    case, findings = run.case, run.findings
    sections = [_head(run)]
    if case.faults:
        lines = [f"  {i}: {spelled_fault(fault)}{_notes(findings, i)}" for i, fault in enumerate(case.faults)]
        sections.append("\n".join(["faults", *lines]))
    figures = [
        f"{findings.sessions:,} of {case.num_sessions:,} sessions judged, with {findings.turns:,} turns and "
        f"{findings.attempts:,} requests; {findings.decoded_tokens:,} tokens decoded",
        f"at most {findings.most_live:,} sessions in memory at once; {findings.events:,} events",
    ]
    if findings.strays:
        figures.append(f"{findings.strays:,} requests came of sessions that had been judged already: not judged")
    figures.append(_ending(findings.end))
    sections += ["\n".join(figures), verdict_lines([*run.violations, *run.warnings])]
    more = [f"{count:,} times {number}" for number, count in findings.counts.items() if count > MOST_MESSAGES]
    if more:
        sections.append("in all " + ", ".join(more))
    return "\n\n".join(sections)


def _notes(findings: Findings, fault: int) -> str:
    """What went wrong, or came to nothing, when a fault fired, and how often."""
    firings = findings.faults.get(fault)
    if firings is None or not firings.notes:
        return ""
    notes = (f"{times:,} of {firings.times:,} times {note}" for note, times in firings.notes.items())
    return f" ({'; '.join(notes)})"


def _head(run: Judged) -> str:
    lines = [run.sut.key, settings_line(run.case, run.policies), policies_line(run.policies), schedule_line(run.case)]
    return "\n".join(line for line in lines if line)


def _ending(end: WorldEnded | None) -> str:
    return "the world has not ended" if end is None else f"the world ended at {end.t_ns / 1e9:g} s: {end.reason}"


def _raised_section(run: Judged, session: int, turn: TurnRecord, told: set[str]) -> str:
    """What the client under test raised, and from where: the last lines of its traceback, unless they were told."""
    assert turn.ended is not None, "only a call that ended can have raised"
    error, where = turn.ended.error, f"session {session} turn {turn.started.turn}"
    if run.trace.factory_raised:
        lines = [f"{error}, and so each call fails; {odd_config(run.case)}"]
    else:
        lines = [f"your client raised {error} ({where})"]
    stack = run.trace.raised.get((session, turn.started.turn))
    if stack:
        frames = stack[-MOST_FRAMES_SHOWN:]
        origin = [line.rstrip() for line in "".join(traceback.format_list(frames)).splitlines()]
        where = "\n".join(origin[-2:])
        lines += ["  from the same place as above"] if where in told else origin
        told.add(where)
    return "\n".join(lines)


def _faults_section(run: Judged) -> str:
    lines = ["faults"]
    for index, (fault, at, note) in enumerate(spelled_firings(run.case, run.trace)):
        when = "did not fire" if at is None else f"fired at {at}"
        lines.append(f"  {index}: {fault}: {when}{f' ({note})' if note else ''}")
    return "\n".join(lines)


def verdict_lines(violations: Sequence[Violation]) -> str:
    """Each violated invariant with its statement and its violations; or that there are none."""
    warnings = [each for each in violations if each.severity == "warning"]
    violations = [each for each in violations if each.severity == "violation"]
    lines = [] if violations else ["no invariant is violated"]
    for number, messages in messages_of(violations).items():
        if number == DIFFERS:
            lines.append("The two clients do not do the same in this world; the first request in which they differ:")
        else:
            lines.append(f"{number} violated: {INVARIANTS[number].statement}")
        lines += [f"  {message}" for message in messages]
    for number, messages in messages_of(warnings).items():
        lines.append(f"warning, {number}: {INVARIANTS[number].statement}")
        lines += [f"  {message}" for message in messages]
    return "\n".join(lines)


# Plain data


def as_json(run: Judged) -> dict[str, Any]:
    """What `world_report` tells, as plain data."""
    findings, end = run.findings, run.findings.end
    data: dict[str, Any] = {
        "sut": run.sut.key,
        "digest": run.trace.digest(),
        "events": findings.events,
        "ended": None if end is None else end.reason,
        "virtual_s": None if end is None else end.t_ns / 1e9,
    }
    if run.case.repeat > 1:
        data |= {
            "sessions": findings.sessions,
            "turns": findings.turns,
            "requests": findings.attempts,
            "decoded_tokens": findings.decoded_tokens,
            "most_live_sessions": findings.most_live,
            "stray_requests": findings.strays,
            "counts": dict(findings.counts),
        }
    else:
        data["attempts"] = [_attempt_as_json(attempt) for attempt in run.trace.ledger.attempts]
    data["violations"] = [
        {"invariant": each.invariant, "message": each.message, "session": each.session, "severity": each.severity}
        for each in (*run.violations, *run.warnings)
    ]
    data["policies"] = run.policies.spelled()
    return data


def _attempt_as_json(attempt: Attempt) -> dict[str, Any]:
    sent, grant = attempt.sent, attempt.grant
    return {
        "session": sent.session,
        "turn": sent.turn,
        "attempt": sent.attempt,
        "replica": sent.replica,
        "prompt_tokens": sent.prompt_tokens,
        "limits": sent.limits,
        "grant_tokens": None if grant is None else grant.tokens,
        "rule": None if grant is None else grant.rule,
        "decoded_tokens": attempt.decoded_tokens,
        "outcomes": [ended.outcome for ended in attempt.ended],
    }
