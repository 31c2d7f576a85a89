"""Faults, grants, budgets and settings in words, as every report has them."""

from collections.abc import Iterator
from typing import Any

import msgspec

from sim.budget import odd_config, usable
from sim.case import Case, explicit_limit
from sim.events import FaultFired
from sim.faults import AfterSent, AfterTokens, AtTime, Every, Fault, When
from sim.ledger import Attempt
from sim.policies import Policies
from sim.trace import Trace

# Faults


def spelled_when(when: When) -> str:
    """When a fault acts."""
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
    """`weight_update (pause_s 1) once session 0 has decoded 5 tokens`."""
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


def spelled_firings(case: Case, trace: Trace) -> Iterator[tuple[str, str | None, str]]:
    """Each fault of the case, at what time it fired (`1.5 s`; None: not at all), and what is noted of it."""
    fired = {event.fault: event for event in trace.events if isinstance(event, FaultFired)}
    for index, fault in enumerate(case.faults):
        event = fired.get(index)
        yield spelled_fault(fault), *((None, "") if event is None else (f"{event.t_ns / 1e9:g} s", event.note))


# Attempts


def spelled_grant(case: Case, attempt: Attempt) -> str:
    """A grant and why: `9 = default min(8, 4 + 8 − 3 = 9)`."""
    grant = attempt.grant
    if grant is None:
        return "none"
    if grant.rule == "default":
        why = f"default {case.server.rules.spelled_default(case.budget, attempt.sent.prompt_tokens)}"
    else:
        why = f"{grant.rule} {grant.wanted_tokens}"
    clamped = "" if grant.tokens == grant.wanted_tokens else f", clamped to the room of {grant.room_tokens}"
    if grant.tokens > grant.room_tokens or grant.tokens > grant.wanted_tokens:
        clamped = f", raised to {grant.tokens}"
    return f"{grant.tokens} = {why}{clamped}"


def spelled_limits(attempt: Attempt) -> str:
    """The limits that the client sent: `max_tokens 8`, or `none`."""
    return ", ".join(f"{key} {value}" for key, value in attempt.sent.limits.items()) or "none"


def spelled_outcomes(attempt: Attempt, none: str = "never") -> str:
    """How it ended; a server may end a request more than once."""
    return " and ".join(ended.outcome for ended in attempt.ended) or none


# The case


def spelled_budget(case: Case, session: int, policies: Policies) -> str:
    """What a session may use, and who says so: `budget 2 (the caller's max_tokens)`."""
    limit, budget = explicit_limit(case, session), case.budget
    if limit is not None:
        return f"budget {limit.tokens} (the caller's {' and '.join(limit.keys)})"
    if not usable(budget.client_response_length):
        return f"no budget ({odd_config(case)})"
    whose = "response_length" if policies.budget == "turn" else "response_length, of all turns"
    return f"budget {budget.client_response_length} ({whose})"


def settings_line(case: Case, policies: Policies) -> str:
    """The settings that the arithmetic needs."""
    budget = case.budget
    return (
        f"prompt_length {budget.prompt_length} · response_length {budget.response_length} · "
        f"max_model_len {budget.context_tokens} · {case.server.dialect} grants · "
        f"{case.replicas} replica{'s' * (case.replicas > 1)} · budget of a {policies.budget}"
    )


def policies_line(policies: Policies) -> str:
    """By which policies a run was judged, as far as they are other than by default; empty where none is."""
    return f"judged under {', '.join(policies.spelled())}" if policies.spelled() else ""


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
