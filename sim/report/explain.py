"""A world explained on the terminal: its attempts and grants with the arithmetic spelled out, and its verdicts."""

import itertools
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from sim.budget import odd_config, turn_budget_tokens, usable, used_before_tokens
from sim.case import Case, explicit_limit
from sim.events import FaultFired, Message, WorldEnded
from sim.faults import AfterSent, AfterTokens, AtTime, Every, Fault, When
from sim.invariants.balancer_truth import BalancerTruth
from sim.invariants.judging import Findings, judge
from sim.invariants.lifecycle import failures_of_itself
from sim.invariants.table import INVARIANTS
from sim.invariants.violation import Violation
from sim.ledger import Attempt, TurnRecord
from sim.search.campaign import Find
from sim.search.compare import DIFFERS
from sim.sut.interface import Sut
from sim.trace import Trace
from sim.world import run_world

MOST_TURNS_SHOWN = 12
MOST_ATTEMPTS_SHOWN = 16
MOST_FRAMES_SHOWN = 3
MOST_VIOLATIONS_SHOWN = 6
MESSAGES_AROUND = 4, 5
"""Messages to the balancer that are shown before and after the one that is evidence."""
_BAR_COLUMNS = 56
_COUNTS_CHARS = 60


def table(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Rows as left-aligned columns, the first one being the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join((indent + line).rstrip() for line in lines)


def spelled_when(when: When) -> str:
    """When a fault acts, in words."""
    match when:
        case AtTime():
            return f"at {when.time_s:g} s"
        case AfterTokens():
            return f"once session {when.session} has decoded {when.tokens} tokens"
        case AfterSent():
            return f"once session {when.session} has sent {when.requests} request{'s' * (when.requests > 1)}"
        case Every():
            return f"every {when.time_s:g} s"


def spelled_fault(fault: Fault) -> str:
    """A fault in words: `weight_update (pause_s 1) once session 0 has decoded 5 tokens`."""
    fields = msgspec.structs.asdict(fault)
    details = ", ".join(
        f"{key} {_spelled_value(value)}"
        for key, value in fields.items()
        if key != "at" and value not in ((), "abort") and value is not True  # those are as usual
    )
    return f"{fault.__struct_config__.tag}{f' ({details})' if details else ''} {spelled_when(fault.at)}"


def _spelled_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    return ", ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"


def spelled_grant(case: Case, attempt: Attempt) -> str:
    """A grant and why: `9 = default: min(8, 4 + 8 − 3 = 9)`."""
    grant = attempt.grant
    if grant is None:
        return "none"
    budget, prompt = case.budget, attempt.sent.prompt_tokens
    if grant.rule == "default":
        rest = budget.prompt_length + budget.response_length - prompt
        why = (
            f"default min({budget.response_length}, "
            f"{budget.prompt_length} + {budget.response_length} − {prompt} = {rest})"
        )
    else:
        why = f"{grant.rule} {grant.wanted_tokens}"
    clamped = "" if grant.tokens == grant.wanted_tokens else f", clamped to the room of {grant.room_tokens}"
    if grant.tokens > grant.room_tokens or grant.tokens > grant.wanted_tokens:
        clamped = f", raised to {grant.tokens}"
    return f"{grant.tokens} = {why}{clamped}"


def _spelled_prompt(turn: TurnRecord, attempt: Attempt) -> str:
    first, now = turn.started.prompt_tokens, attempt.sent.prompt_tokens
    return str(now) if now == first else f"{first} + {now - first} = {now}"


def _spelled_limits(attempt: Attempt) -> str:
    return ", ".join(f"{key} {value}" for key, value in attempt.sent.limits.items()) or "none"


def _spelled_outcome(attempt: Attempt) -> str:
    return " and ".join(ended.outcome for ended in attempt.ended) or "never"


def attempts_table(case: Case, turn: TurnRecord) -> str:
    """The attempts of a turn, one a row, and their sum against the budget."""
    rows = []
    for attempt in turn.attempts:
        rows.append(
            (
                str(attempt.sent.attempt),
                str(attempt.sent.replica),
                _spelled_prompt(turn, attempt),
                _spelled_limits(attempt),
                spelled_grant(case, attempt),
                str(attempt.decoded_tokens),
                _spelled_outcome(attempt),
            )
        )
    heading = ("attempt", "replica", "prompt", "limit sent", "grant, and why", "decoded", "ended")
    shown = _without_repeats(rows)
    laid_out = iter(table([heading, *(each for each in shown if not isinstance(each, str))], "  ").splitlines())
    return "\n".join([next(laid_out), *(f"  {each}" if isinstance(each, str) else next(laid_out) for each in shown)])


_Row = tuple[str, ...]


def _without_repeats(rows: Sequence[_Row]) -> list[_Row | str]:
    """Of attempts in a row that differ in their number and replica only, as a client makes that retries for ever, the
    first and how many there are; of very many others the first and the last ones."""
    shown: list[_Row | str] = []
    for _, group in itertools.groupby(rows, key=lambda row: row[2:]):
        alike = list(group)
        shown += alike if len(alike) <= 3 else [alike[0], f"… {len(alike) - 1} more attempts like this"]
    half = MOST_ATTEMPTS_SHOWN // 2
    if len(shown) > MOST_ATTEMPTS_SHOWN:
        shown[half:-half] = [f"… {len(rows)} attempts in all"]
    return shown


def _sum_line(case: Case, trace: Trace, session: int, turn: TurnRecord) -> str:
    parts = [attempt.decoded_tokens for attempt in turn.attempts]
    used = used_before_tokens(case, trace.ledger, session, turn)
    total = used + sum(parts)
    summands = [str(part) for part in ([used] if used else []) + parts]
    half = MOST_ATTEMPTS_SHOWN // 2
    if len(summands) > MOST_ATTEMPTS_SHOWN:
        summands[half:-half] = ["…"]
    spelled = " + ".join(summands) or "0"
    budget = turn_budget_tokens(case, session)
    line = f"decoded {spelled} = {total}" if len(parts) + bool(used) > 1 else f"decoded {spelled}"
    if budget is None:
        return line
    if total > budget:
        return f"{line}; budget {budget}; overrun {total - budget}"
    return f"{line}; budget {budget}"


def budget_bar(case: Case, session: int, turn: TurnRecord) -> str:
    """The attempts drawn over the budget: decoded tokens as blocks, those beyond the budget shaded."""
    budget = turn_budget_tokens(case, session)
    total = turn.decoded_tokens
    if budget is None or total == 0:
        return ""
    scale = _BAR_COLUMNS / max(total, budget)
    edge = round(budget * scale)
    lines = []
    done = 0
    for attempt in turn.attempts:
        start, end = round(done * scale), round((done + attempt.decoded_tokens) * scale)
        inside = "█" * max(0, min(end, edge) - start)
        beyond = "▒" * max(0, end - max(start, edge))
        lines.append(f"  {f'attempt {attempt.sent.attempt}':<10} {' ' * start}{inside}{beyond}")
        done += attempt.decoded_tokens
    half = MOST_ATTEMPTS_SHOWN // 2
    if len(lines) > MOST_ATTEMPTS_SHOWN:
        lines[half:-half] = ["  …"]
    return "\n".join([f"  {'budget':<10} {'─' * edge}┤ {budget}", *lines]) + f" {total}"


def why_it_overran(case: Case, turn: TurnRecord) -> str:
    """The cause of an overrun, where the arithmetic shows it; empty where it does not."""
    first = turn.started.prompt_tokens
    for attempt in turn.attempts:
        generated = attempt.sent.prompt_tokens - first
        if attempt.grant is None or attempt.grant.rule != "default" or generated <= 0:
            continue
        sent = "sends no limit"
        if attempt.sent.limits:
            sent = f"sends {_spelled_limits(attempt)} and the server ignores it"
        return (
            f"  Attempt {attempt.sent.attempt} is a resume: {generated} of the {attempt.sent.prompt_tokens} tokens of "
            f"its prompt were generated before the abort.\n"
            f"  The client {sent}, so the server's default holds. It charges those {generated} to the prompt\n"
            f"  allowance ({case.budget.prompt_length}, of which the prompt itself needs {first}) and not to the "
            f"response: what was used is granted anew."
        )
    return ""


def turn_report(case: Case, trace: Trace, session: int, turn: TurnRecord) -> str:
    """One turn: table, sum, and for an overrun the bar and the cause."""
    head = f"session {session} turn {turn.started.turn}: prompt {turn.started.prompt_tokens} tokens"
    lines = [f"{head}; {spelled_budget(case, session)}"]
    if turn.attempts:
        lines.append(attempts_table(case, turn))
    lines.append("  " + _sum_line(case, trace, session, turn))
    budget = turn_budget_tokens(case, session)
    if budget is not None and turn.decoded_tokens > budget:
        lines += ["", budget_bar(case, session, turn)]
        cause = why_it_overran(case, turn)
        if cause:
            lines += ["", cause]
    ended = turn.ended
    if ended is not None and ended.outcome != "ok":
        lines.append(f"  the client's call was cut: {ended.outcome}{f' ({ended.error})' if ended.error else ''}")
    return "\n".join(lines)


def spelled_budget(case: Case, session: int) -> str:
    """What a session may use, and who says so: `budget 2 (the caller's max_tokens)`."""
    limit, budget = explicit_limit(case, session), case.budget
    if limit is not None:
        key = "max_tokens and max_new_tokens" if limit.spelling == "both" else limit.spelling
        return f"budget {limit.tokens} (the caller's {key})"
    if not usable(budget.client_response_length):
        return f"no budget ({odd_config(case)})"
    whose = "response_length" if budget.policy == "turn" else "response_length, of all turns"
    return f"budget {budget.client_response_length} ({whose})"


class MessageRow(NamedTuple):
    """A message to the balancer in a table. `marked`: the invariants that it is the evidence for."""

    marked: str
    number: str
    time: str
    kind: str
    session: str
    replica: str
    shown: str
    truth: str


MESSAGE_HEADS = MessageRow("", "message", "time", "kind", "session", "replica", "counts shown", "truth")


def message_rows(case: Case, trace: Trace, violations: Sequence[Violation]) -> list[MessageRow]:
    """The balancer's messages around the first violation of each routing invariant, and the last of all; what lies
    between is one row of dots. Counts are those of the replicas in their order, after the message."""
    marks: dict[int, list[str]] = {}
    wanted: set[int] = set()
    messages = [event for event in trace.events if isinstance(event, Message)]
    firsts = {violation.invariant: violation for violation in reversed(violations) if _is_of_routing(violation)}
    for invariant, violation in sorted(firsts.items()):
        at = violation.balancer_message
        if at is None:  # about all choices together
            wanted.update(range(MESSAGES_AROUND[0] + MESSAGES_AROUND[1]))
        else:
            marks.setdefault(at, []).append(invariant)
            wanted.update(range(at - MESSAGES_AROUND[0], at + MESSAGES_AROUND[1] + 1))
    if not wanted:
        return []
    wanted.add(len(messages) - 1)
    rows: list[MessageRow] = []
    balancer, last = BalancerTruth(case.replicas), -1
    for number, message in enumerate(messages):
        balancer.handle(message, trace.roles.get(message.kind))
        if number not in wanted:
            continue
        if number > last + 1:
            rows.append(MessageRow("", "…", "", "", "", "", "", ""))
        last = number
        truth = (
            str(low) if low == high else f"{low} to {high}"
            for low, high in zip(balancer.lowest, balancer.highest, strict=True)
        )
        rows.append(
            MessageRow(
                ", ".join(marks.get(number, ())),
                str(number),
                f"{message.t_ns / 1e9:g} s",
                message.kind if message.error is None else f"{message.kind}: {message.error}",
                "" if message.session is None else str(message.session),
                ", ".join(map(str, message.replicas)),
                "none" if message.loads is None else _listed("–" if n is None else str(n) for n in message.loads),
                _listed(truth),
            )
        )
    return rows


def _listed(counts: Iterable[str]) -> str:
    """Counts in a line, of very many replicas the first ones."""
    text = ", ".join(counts)
    return text if len(text) <= _COUNTS_CHARS else f"{text[:_COUNTS_CHARS]}…"


def _is_of_routing(violation: Violation) -> bool:
    return violation.invariant in INVARIANTS and INVARIANTS[violation.invariant].kind == "routing"


def _messages_section(case: Case, trace: Trace, violations: Sequence[Violation]) -> str:
    rows = message_rows(case, trace, violations)
    if not rows:
        return ""
    shown = [row._replace(marked=f"{row.marked} →" if row.marked else "") for row in rows]
    return "messages to the balancer\n" + table([MESSAGE_HEADS, *shown], "  ")


def settings_line(case: Case) -> str:
    """The settings that the arithmetic needs."""
    budget = case.budget
    return (
        f"prompt_length {budget.prompt_length} · response_length {budget.response_length} · "
        f"max_model_len {budget.context_tokens} · {case.server.dialect} grants · "
        f"{case.replicas} replica{'s' * (case.replicas > 1)} · budget of a {budget.policy}"
    )


def schedule_line(case: Case) -> str:
    """What the schedule has to do with it."""
    schedule = case.schedule
    if schedule.policy == "fifo":
        return "schedule: FIFO, no deviations: not a race"
    if schedule.policy == "random":
        return f"schedule: random order, seed {schedule.seed}"
    places = ", ".join(f"step {step} takes callback {pick}" for step, pick in schedule.deviations)
    count = len(schedule.deviations)
    return f"schedule: FIFO but for {count} deviation{'s' * (count > 1)} ({places}): a race"


def world_report(
    case: Case, sut: Sut, trace: Trace, violations: Sequence[Violation], told: set[str] | None = None
) -> str:
    """The whole world: settings, faults, the turns (those in violation first where there are many), verdicts.

    `told`: the places that exceptions came from, told so far; such a traceback is told once.
    """
    sections = [f"{sut.key}\n{settings_line(case)}\n{schedule_line(case)}"]
    failures = failures_of_itself(trace.ledger)
    if failures:
        placed = (failure for failure in failures if (failure[0], failure[1].started.turn) in trace.raised)
        sections.insert(0, _raised_section(case, trace, *next(placed, failures[0]), set() if told is None else told))
    if case.faults:
        sections.append(_faults_section(case, trace))
    turns = list(trace.ledger.turns())
    named = {violation.session for violation in violations}
    turns.sort(key=lambda pair: pair[0] not in named)
    sections += [turn_report(case, trace, session, turn) for session, turn in turns[:MOST_TURNS_SHOWN]]
    if len(turns) > MOST_TURNS_SHOWN:
        sections.append(f"… and {len(turns) - MOST_TURNS_SHOWN} more turns")
    messages = _messages_section(case, trace, violations)
    if messages:
        sections.append(messages)
    end = trace.events[-1]
    assert isinstance(end, WorldEnded)
    sections.append(f"the world ended at {end.t_ns / 1e9:g} s: {end.reason}")
    sections.append(verdict_lines(violations))
    return "\n\n".join(sections)


def _raised_section(case: Case, trace: Trace, session: int, turn: TurnRecord, told: set[str]) -> str:
    """What the client under test raised, and from where: the last lines of its traceback, unless they were told."""
    assert turn.ended is not None, "only a call that ended can have raised"
    error, where = turn.ended.error, f"session {session} turn {turn.started.turn}"
    if trace.factory_raised:
        lines = [f"{error}, and so each call fails; {odd_config(case)}"]
    else:
        lines = [f"your client raised {error} ({where})"]
    stack = trace.raised.get((session, turn.started.turn))
    if stack:
        frames = stack[-MOST_FRAMES_SHOWN:]
        origin = [line.rstrip() for line in "".join(traceback.format_list(frames)).splitlines()]
        where = "\n".join(origin[-2:])
        lines += ["  from the same place as above"] if where in told else origin
        told.add(where)
    return "\n".join(lines)


def large_report(case: Case, sut: Sut, findings: Findings) -> str:
    """A world that was judged while it ran: settings, figures, verdicts."""
    sections = [f"{sut.key}\n{settings_line(case)}\n{schedule_line(case)}"]
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
    end = findings.end
    figures.append(
        "the world has not ended" if end is None else f"the world ended at {end.t_ns / 1e9:g} s: {end.reason}"
    )
    sections.append("\n".join(figures))
    more = {number: count for number, count in findings.counts.items() if count > MOST_VIOLATIONS_SHOWN}
    sections.append(verdict_lines(findings.violations))
    if more:
        sections.append("in all " + ", ".join(f"{count:,} times {number}" for number, count in more.items()))
    return "\n\n".join(sections)


def _notes(findings: Findings, fault: int) -> str:
    """What went wrong, or came to nothing, when a fault fired, and how often."""
    firings = findings.faults.get(fault)
    if firings is None or not firings.notes:
        return ""
    return (
        " (" + "; ".join(f"{times:,} of {firings.times:,} times {note}" for note, times in firings.notes.items()) + ")"
    )


def find_report(sut: Sut, find: Find, told: set[str] | None = None) -> str:
    """The world of a find. One that does not show it again (a SUT that breaks D1) is reported as it was seen.
    `told`: as in `world_report`."""
    trace = run_world(find.case, sut)
    violations = [violation for violation in judge(find.case, trace) if violation.invariant == find.invariant]
    return world_report(find.case, sut, trace, violations or [Violation(find.invariant, find.message)], told)


def _faults_section(case: Case, trace: Trace) -> str:
    fired = {event.fault: event for event in trace.events if isinstance(event, FaultFired)}
    lines = ["faults"]
    for index, fault in enumerate(case.faults):
        event = fired.get(index)
        when = "did not fire" if event is None else f"fired at {event.t_ns / 1e9:g} s"
        note = f" ({event.note})" if event is not None and event.note else ""
        lines.append(f"  {index}: {spelled_fault(fault)}: {when}{note}")
    return "\n".join(lines)


def verdict_lines(violations: Sequence[Violation]) -> str:
    """Each violated invariant with its statement and its violations; or that there are none."""
    if not violations:
        return "no invariant is violated"
    lines = []
    for number in dict.fromkeys(violation.invariant for violation in violations):
        if number == DIFFERS:
            lines.append("The two clients do not do the same in this world; the first request in which they differ:")
        else:
            lines.append(f"{number} violated: {INVARIANTS[number].statement}")
        lines += [f"  {violation.message}" for violation in violations if violation.invariant == number][
            :MOST_VIOLATIONS_SHOWN
        ]
    return "\n".join(lines)


def large_as_json(sut: Sut, trace: Trace, findings: Findings) -> dict[str, Any]:
    """The figures and verdicts of a world that was judged while it ran, as plain data."""
    end = findings.end
    return {
        "sut": sut.key,
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


def as_json(sut: Sut, trace: Trace, violations: Sequence[Violation]) -> dict[str, Any]:
    """The same as plain data."""
    end = trace.events[-1]
    assert isinstance(end, WorldEnded)
    return {
        "sut": sut.key,
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
        "violations": _violations_as_json(violations),
    }
