"""A world as a Perfetto (Chrome trace) JSON: drop the file on ui.perfetto.dev.

A process a replica, with as many lanes as attempts overlap on it; a slice an attempt with its grant as arguments, and
inside it a slice for each stretch that is lost, named after its fate; weight updates and other faults as marks.
Times are microseconds of virtual time.
"""

from collections.abc import Iterator
from typing import Any

from sim.case import Case
from sim.events import FaultFired, Parked, Paused, Resumed, VersionChanged
from sim.report.spans import Span, spans_of, take_lane
from sim.report.spelled import spelled_fault, spelled_grant, spelled_limits, spelled_outcomes
from sim.trace import Trace
from sim.waste.ledger import spelled_fate

_NS_PER_US = 1000
_TRAINER = 1_000_000
"""Process id of the faults' own track: no world has so many replicas."""

_CHROME_COLOURS = {
    "overrun": "terrible",
    "dropped": "bad",
    "sliced": "yellow",
    "zombie": "black",
    "duplicate": "olive",
    "discarded": "grey",
    "in_flight": "cq_build_running",
}
"""Names that chrome://tracing knows. Perfetto colours a slice by its name, and so tells the fates apart as well."""


def timeline(case: Case, trace: Trace) -> dict[str, Any]:
    """The trace in Chrome's format, ready for `json.dump`."""
    events = [*_names(case), *_marks(case, trace)]
    lanes: list[list[int]] = [[] for _ in range(case.replicas)]
    parked = {event.request: event.t_ns for event in trace.events if isinstance(event, Parked)}
    end_ns = trace.events[-1].t_ns
    spans = spans_of(case, trace)
    last = {(span.attempt.sent.session, span.attempt.sent.turn): number for number, span in enumerate(spans)}
    for number, span in enumerate(spans):
        sent = span.attempt.sent
        until_ns = end_ns if span.ended_ns is None else span.ended_ns
        lane = take_lane(lanes[sent.replica], span.sent_ns, until_ns)
        place = {"pid": sent.replica, "tid": lane}
        events += _slices(case, span, until_ns, parked.get(sent.request), place)
        if number != last[sent.session, sent.turn]:
            # An arrow starts in a slice, and its end is no longer part of it.
            events.append(_flow("s", span, max(span.sent_ns, until_ns - 1), place))
        if sent.attempt:
            events.append(_flow("f", span, span.sent_ns, place))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"digest": trace.digest()}}


def _names(case: Case) -> Iterator[dict[str, Any]]:
    for replica in range(case.replicas):
        yield {"ph": "M", "name": "process_name", "pid": replica, "args": {"name": f"replica {replica}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": replica, "args": {"sort_index": replica + 1}}
    yield {"ph": "M", "name": "process_name", "pid": _TRAINER, "args": {"name": "faults"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": _TRAINER, "args": {"sort_index": 0}}


def _marks(case: Case, trace: Trace) -> Iterator[dict[str, Any]]:
    """Faults across all tracks, pauses and weight versions on their replica's."""
    paused: dict[int, int] = {}
    for event in trace.events:
        at = {"ts": event.t_ns / _NS_PER_US}
        if isinstance(event, FaultFired):
            name = event.kind + (f" ({event.note})" if event.note else "")
            arguments = {"fault": event.fault, "what": spelled_fault(case.faults[event.fault])}
            yield {"ph": "i", "s": "g", "name": name, "pid": _TRAINER, "tid": 0, **at, "args": arguments}
        elif isinstance(event, VersionChanged):
            name = f"weights {event.version}"
            yield {"ph": "i", "s": "p", "name": name, "pid": event.replica, "tid": 0, **at}
        elif isinstance(event, Paused):
            paused[event.replica] = event.t_ns
        elif isinstance(event, Resumed) and event.replica in paused:
            since_ns = paused.pop(event.replica)
            name = f"replica {event.replica} paused"
            place = {"pid": _TRAINER, "tid": event.replica + 1, "ts": since_ns / _NS_PER_US}
            yield {"ph": "X", "name": name, **place, "dur": (event.t_ns - since_ns) / _NS_PER_US}


def _slices(
    case: Case, span: Span, until_ns: int, parked_ns: int | None, place: dict[str, int]
) -> Iterator[dict[str, Any]]:
    sent, grant = span.attempt.sent, span.attempt.grant
    outcomes = spelled_outcomes(span.attempt, "never ended")
    losses = {part.fate: 0 for part in span.parts}
    for part in span.parts:
        losses[part.fate] += part.tokens
    turn = f" turn {sent.turn}" if len(case.session(sent.session).turns) > 1 else ""
    yield {
        "ph": "X",
        "name": f"session {sent.session}{turn} attempt {sent.attempt}",
        "cat": outcomes,
        **place,
        "ts": span.sent_ns / _NS_PER_US,
        "dur": (until_ns - span.sent_ns) / _NS_PER_US,
        "args": {
            "request": sent.request,
            "prompt": sent.prompt_tokens,
            "limit sent": spelled_limits(span.attempt),
            "grant": None if grant is None else grant.tokens,
            "why": spelled_grant(case, span.attempt),
            "decoded": span.attempt.decoded_tokens,
            "ended": outcomes,
            "fates": losses,
        },
    }
    if parked_ns is not None:
        admitted_ns = until_ns if span.admitted_ns is None else span.admitted_ns
        yield _inside("parked at the gate", parked_ns, admitted_ns, place)
    for part in span.parts:
        if part.fate != "kept":
            inner = _inside(spelled_fate(part.fate), part.start_ns, part.end_ns, place)
            yield inner | {"cname": _CHROME_COLOURS[part.fate], "args": {"tokens": part.tokens}}


def _inside(name: str, start_ns: int, end_ns: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        **place,
        "ts": start_ns / _NS_PER_US,
        "dur": (end_ns - start_ns) / _NS_PER_US,
    }


def _flow(phase: str, span: Span, at_ns: int, place: dict[str, int]) -> dict[str, Any]:
    """An arrow from an attempt to the one that resumes it."""
    sent = span.attempt.sent
    number = sent.attempt + (phase == "s")
    arrow: dict[str, Any] = {"ph": phase, "name": "resume", "cat": "resume", **place, "ts": at_ns / _NS_PER_US}
    arrow["id"] = f"{sent.session}.{sent.turn}.{number}"
    if phase == "f":
        arrow["bp"] = "e"
    return arrow
