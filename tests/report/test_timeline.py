"""The Perfetto trace: slices nest, the overrun is where it should be, arrows join attempts."""

import json

import pytest

from sim.case import (
    AfterTokens,
    AtTime,
    Budget,
    CancelClient,
    Case,
    Schedule,
    ServerSettings,
    Session,
    Turn,
    WeightUpdate,
)
from sim.clock import NS_PER_S
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


@pytest.mark.parametrize("sut", ["reference:deferred", "reference:pinned", "reference:loses-tokens"])
@pytest.mark.parametrize("case", [SEED, CROWD], ids=["seed", "crowd"])
def test_slices_of_a_track_nest(case, sut):
    _, events = laid_out(case, sut)
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
