"""The Perfetto trace: slices nest, the overrun is where it should be, arrows join attempts."""

import json

import pytest

from sim.case import Budget, Case, Schedule, ServerSettings, Session, Turn
from sim.clock import NS_PER_S
from sim.events import Paused
from sim.faults import AbortRequest, AfterTokens, AtTime, CancelClient, WeightUpdate
from sim.report.spans import Part, spans_of
from sim.report.timeline import timeline
from sim.sut.registry import load_sut
from sim.world import run_world

SEED = Case(
    Budget(2048, 8192), (Session(136),), tuple(WeightUpdate(AfterTokens(0, 2000 * number)) for number in range(1, 6))
)
CROWD = Case(
    Budget(8, 20, 64),
    tuple(Session(3, (Turn(None, 2, 0.1), Turn(4)), index * 0.03) for index in range(9)),
    (WeightUpdate(AtTime(0.15)), CancelClient(AtTime(1.2), 4), WeightUpdate(AtTime(1.3))),
    replicas=2,
    server=ServerSettings(prefill_s=0.02),
    schedule=Schedule("random", 3),
)


FROZEN = Case(
    Budget(64, 40, 128),
    tuple(Session(20, arrival_s=0.005 * index) for index in range(3)),
    (WeightUpdate(AtTime(0.1), pause_mode="keep"), AbortRequest(AtTime(1.2033), 1)),
)
"""Requests that are frozen for a second, and one that is aborted in the middle of a step."""


def laid_out(case, sut="reference:deferred"):
    trace = run_world(case, load_sut(sut))
    return trace, json.loads(json.dumps(timeline(case, trace)))["traceEvents"]


def slices(events):
    return [event for event in events if event["ph"] == "X"]


def test_the_seed_in_time():
    trace, events = laid_out(SEED)
    attempts = [event for event in slices(events) if event["name"].startswith("session 0")]
    assert [event["args"]["decoded"] for event in attempts] == [2000] * 5 + [104]
    assert [event["args"]["grant"] for event in attempts] == [8192, 8104, 6104, 4104, 2104, 104]
    assert attempts[0]["args"]["why"].startswith("8192 = default min(8192")
    overrun = [event for event in slices(events) if event["name"] == "overrun"]
    assert [event["args"]["tokens"] for event in overrun] == [1808, 104]
    assert overrun[0]["ts"] == attempts[4]["ts"] + 192 * 10_000, "it begins with the 8193rd token"
    updates = [event for event in events if event["ph"] == "i" and event["name"] == "weight_update"]
    assert len(updates) == 5
    assert trace.events[-1].t_ns / 1000 == pytest.approx(max(event["ts"] + event["dur"] for event in slices(events)))


CASES = pytest.mark.parametrize("case", [SEED, CROWD, FROZEN], ids=["seed", "crowd", "frozen"])


@pytest.mark.parametrize("sut", ["reference:deferred", "reference:pinned", "reference:loses-tokens"])
@CASES
def test_slices_of_a_track_nest(case, sut):
    nest(laid_out(case, sut)[1])


def nest(events):
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in slices(events):
        assert event["dur"] >= 0
        tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for track in tracks.values():
        stack: list[float] = []
        for start, end in sorted(track, key=lambda pair: (pair[0], -pair[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1] + 1e-6, "a slice ends after the one that it is in"
            stack.append(end)


NEEDED = {
    "X": {"name", "ts", "dur", "pid", "tid"},
    "i": {"name", "ts", "s", "pid", "tid"},
    "M": {"name", "args", "pid"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
}
"""Phase → fields, after Google's "Trace Event Format"."""


def valid(events):
    """Fields and their kinds; marks have a scope; an outer slice stands before the inner ones that begin with it; an
    arrow begins and ends in a slice, and goes forwards."""
    began: dict[tuple[int, int, float], float] = {}
    arrows = {}
    for event in events:
        assert set(event) >= NEEDED[event["ph"]], event
        assert {type(event.get(field, 0)) for field in ("pid", "tid")} == {int}
        assert isinstance(event.get("ts", 0.0), int | float)
        assert event.get("ts", 0) >= 0
        if event["ph"] == "X":
            place = (event["pid"], event["tid"], event["ts"])
            assert event["dur"] <= began.get(place, float("inf")), "an inner slice stands before the outer one"
            began[place] = event["dur"]
        elif event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        elif event["ph"] == "s":
            arrows[event["id"]] = event["ts"]
        elif event["ph"] == "f":
            assert arrows.pop(event["id"]) <= event["ts"]
        if event["ph"] in "sf":
            assert any(
                (each["pid"], each["tid"]) == (event["pid"], event["tid"])
                and each["ts"] <= event["ts"] <= each["ts"] + each["dur"]
                for each in slices(events)
            )
    assert not arrows


@CASES
def test_it_keeps_to_the_trace_event_format(case):
    valid(laid_out(case)[1])


def test_what_is_wrong_in_a_trace_is_noticed():
    """Planted: a slice that outlasts its outer one, an inner one before it, an arrow into the void."""
    _, events = laid_out(SEED)
    first = next(number for number, event in enumerate(events) if event.get("name") == "overrun")
    longer = [*events[:first], events[first] | {"dur": events[first]["dur"] + 1e9}, *events[first + 1 :]]
    with pytest.raises(AssertionError, match="a slice ends after"):
        nest(longer)
    outer = {"ph": "X", "name": "outer", "pid": 0, "tid": 0, "ts": 5.0, "dur": 9.0}
    valid([outer, outer | {"dur": 4.0}])
    with pytest.raises(AssertionError, match="an inner slice stands before"):
        valid([outer | {"dur": 4.0}, outer])
    with pytest.raises((AssertionError, KeyError)):
        valid([event for event in events if event["ph"] != "s"])


def test_a_frozen_request_decodes_nothing_while_it_is_frozen():
    trace = run_world(FROZEN, load_sut("reference:pinned"))
    frozen, *_ = spans_of(FROZEN, trace)
    before, after = frozen.parts
    paused_ns = next(event.t_ns for event in trace.events if isinstance(event, Paused))
    assert (before.end_ns, after.start_ns) == (paused_ns, paused_ns + NS_PER_S)
    assert before.tokens + after.tokens == 40
    in_flight = [part for span in spans_of(FROZEN, trace) for part in span.parts if part.fate == "in_flight"]
    assert [part.tokens for part in in_flight] == [1]


def test_every_resume_has_an_arrow_from_what_it_resumes():
    trace, events = laid_out(CROWD)
    starts = [event["id"] for event in events if event["ph"] == "s"]
    ends = [event["id"] for event in events if event["ph"] == "f"]
    resumes = sum(attempt.sent.attempt > 0 for attempt in trace.ledger.attempts)
    assert len(set(ends)) == len(ends) == resumes > 0
    assert sorted(starts) == sorted(ends)


def test_spans_hold_every_decoded_token_once_and_in_order():
    trace = run_world(CROWD, load_sut("reference:deferred"))
    for span in spans_of(CROWD, trace):
        assert sum(part.tokens for part in span.parts) == span.attempt.decoded_tokens
        times = [time for part in span.parts for time in (part.start_ns, part.end_ns)]
        assert times == sorted(times)
        assert all(time >= span.sent_ns for time in times)
        assert not span.parts or times[-1] <= span.ended_ns


def test_a_part_begins_and_ends_with_its_tokens():
    case = Case(Budget(8, 10, 64), (Session(2),), (WeightUpdate(AfterTokens(0, 4)),))
    trace = run_world(case, load_sut("reference:deferred"))
    resumed_ns = NS_PER_S + 40_000_000
    ten_ms = 10_000_000
    assert [span.parts for span in spans_of(case, trace)] == [
        (Part(0, 4 * ten_ms, 4, "kept"),),
        (
            Part(resumed_ns, resumed_ns + 6 * ten_ms, 6, "kept"),
            Part(resumed_ns + 6 * ten_ms, resumed_ns + 10 * ten_ms, 4, "overrun"),
        ),
    ]
