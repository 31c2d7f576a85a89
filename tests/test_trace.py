"""Trace: the digest tells runs apart, the seal holds, and what is handed on is what would be kept."""

import hashlib
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import trace as trace_module
from sim.case import Budget, Case, Session, Turn, dumps
from sim.events import (
    Admitted,
    Decoded,
    Delivered,
    Discarded,
    Ended,
    FaultFired,
    Granted,
    Logged,
    Sent,
    SessionEnded,
    TurnEnded,
    TurnStarted,
    WorldEnded,
)
from sim.faults import AbortAll, AfterTokens
from sim.sut.registry import CLEAN, load_sut
from sim.trace import EventsNotKept, Trace
from sim.world import run_world

TWO_ATTEMPTS = (
    TurnStarted(0, 0, 0, 4),
    Sent(0, 0, 0, 0, 0, 0, 4, {}),
    Granted(0, 0, 10, "default", 10, 28),
    Admitted(0, 0),
    Decoded(30, 0, 4, 3, 0),
    Ended(30, 0, "abort", 3),
    Delivered(30, 0, 3),
    Sent(40, 1, 0, 0, 1, 0, 7, {}),
    Granted(40, 1, 7, "default", 7, 25),
    Decoded(50, 1, 7, 2, 0),
    Decoded(60, 1, 9, 1, 1),
    Ended(60, 1, "stop", 3),
    Delivered(60, 1, 3),
    TurnEnded(60, 0, 0, "ok", ((4, 6),), "stop", 0, 1, None),
    SessionEnded(60, 0, "ok", 6, 6),
    WorldEnded(60, "done"),
)


def traced(*events, sessions=1, **settings):
    trace = Trace(sessions, **settings)
    for event in events:
        trace.add(event)
    return trace


def test_digest_is_the_events_and_nothing_else():
    assert traced(*TWO_ATTEMPTS).digest() == traced(*TWO_ATTEMPTS).digest()
    digests = {traced(*TWO_ATTEMPTS).digest(), traced(*TWO_ATTEMPTS[:-1]).digest()}
    for number, event in enumerate(TWO_ATTEMPTS):
        later = type(event)(**{field: getattr(event, field) for field in event.__struct_fields__} | {"t_ns": 99})
        digests.add(traced(*TWO_ATTEMPTS[:number], later, *TWO_ATTEMPTS[number + 1 :]).digest())
    assert len(digests) == 2 + len(TWO_ATTEMPTS)


def test_digest_tells_the_kinds_of_event_apart():
    assert traced(Delivered(1, 2, 3)).digest() != traced(Discarded(1, 2, 3)).digest()


def test_nothing_is_added_to_a_sealed_trace():
    trace = Trace(1)
    trace.add(Logged(0, "client", "before"))
    trace.seal(WorldEnded(1, "done"))
    trace.add(Logged(2, "client", "after"))

    assert trace.events == [Logged(0, "client", "before"), WorldEnded(1, "done")]
    assert trace.is_done


@pytest.mark.parametrize("reason", ["deadlock", "horizon", "livelock"])
def test_a_run_that_ended_otherwise_is_not_done(reason):
    trace = Trace(1)
    trace.seal(WorldEnded(1, reason))
    assert not trace.is_done
    assert trace.end.reason == reason


# Kept, or handed on


class Reader:
    """Keeps what it is handed, chapter by chapter."""

    def __init__(self):
        self.chapters = []

    def take(self, trace, events):
        self.chapters.append(list(events))

    @property
    def events(self):
        return [event for chapter in self.chapters for event in chapter]


def handed_on(events, chapter_events):
    """The same events, on a trace that keeps none; and its reader."""
    reader = Reader()
    trace = Trace(1, observers=[reader], chapter_events=chapter_events)
    for event in events[:-1]:
        trace.add(event)
    trace.seal(events[-1])
    return trace, reader


def test_all_events_are_handed_on_in_chapters():
    trace, reader = handed_on(TWO_ATTEMPTS, 5)
    assert reader.events == list(TWO_ATTEMPTS)
    assert [len(chapter) for chapter in reader.chapters] == [5, 5, 5, 1]
    assert trace.is_done
    assert not trace.keeps


@pytest.mark.parametrize("name", ["events", "ledger"])
def test_what_is_not_kept_cannot_be_read(name):
    trace, _ = handed_on(TWO_ATTEMPTS, 5)
    with pytest.raises(EventsNotKept, match="hands its events on to observers and keeps none"):
        getattr(trace, name)


FIRED = FaultFired(5, 0, "abort_all")
FAILED = FaultFired(5, 0, "abort_all", "RuntimeError: no")


def with_an_open_event(trace, amended):
    trace.add(Logged(0, "client", "before"))
    trace.add_open(FIRED)
    for number in range(20):
        trace.add(Logged(number, "client", "meanwhile"))
    if amended is not None:
        trace.amend(FIRED, amended)
    for number in range(20):
        trace.add(Logged(number, "client", "after"))
    trace.seal(WorldEnded(30, "done"))
    return trace


@pytest.mark.parametrize("amended", [FAILED, FIRED, None], ids=["failed", "went well", "was never over"])
@pytest.mark.parametrize("chapter_events", [1, 2, 7, 100])
def test_an_event_that_is_open_is_handed_on_as_it_reads_in_the_end(chapter_events, amended):
    kept, reader = with_an_open_event(Trace(1), amended), Reader()
    trace = with_an_open_event(Trace(1, observers=[reader], chapter_events=chapter_events), amended)
    assert kept.events[1] == (amended or FIRED)
    assert reader.events == kept.events
    assert trace.digest() == kept.digest()


def test_two_events_may_be_open_at_once():
    reader = Reader()
    trace = Trace(1, observers=[reader], chapter_events=1)
    second = FaultFired(6, 1, "abort_all")
    trace.add_open(FIRED)
    trace.add_open(second)
    trace.amend(second, second)
    assert reader.events == []
    trace.amend(FIRED, FAILED)
    trace.seal(WorldEnded(7, "done"))
    assert reader.events == [FAILED, second, WorldEnded(7, "done")]


def test_nothing_is_amended_once_the_trace_is_closed():
    trace = Trace(1)
    trace.add_open(FIRED)
    trace.seal(WorldEnded(7, "deadlock"))
    trace.amend(FIRED, FAILED)
    assert trace.events == [FIRED, WorldEnded(7, "deadlock")]


EVENTS = st.lists(st.builds(Logged, st.integers(0, 2**40), st.just("client"), st.text(max_size=30)), max_size=60)
ODD = st.builds(Sent, *[st.just(0)] * 7, st.dictionaries(st.just("max_tokens"), st.sampled_from([5, 2**70, None])))


@given(EVENTS)
def test_the_digest_of_a_short_trace_is_that_of_a_list(events):
    expected = hashlib.blake2b(msgspec.msgpack.encode(events), digest_size=16).hexdigest()
    assert traced(*events).digest() == expected


@pytest.mark.parametrize("whole_events", [1, 13, 1 << 16])
@given(st.lists(EVENTS | st.lists(ODD, max_size=3), min_size=1, max_size=5), st.integers(1, 20))
def test_the_digest_is_the_same_whether_events_are_kept_or_handed_on(whole_events, parts, chapter_events):
    events = [*(event for part in parts for event in part), WorldEnded(1, "done")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_module, "WHOLE_EVENTS", whole_events)
        trace, _ = handed_on(events, chapter_events)
        assert trace.digest() == trace.digest() == traced(*events).digest()


def test_the_digest_of_a_long_trace_tells_its_events_apart():
    events = [Logged(number, "client", "") for number in range(trace_module.WHOLE_EVENTS + 3)]
    digests = {traced(*events[:length]).digest() for length in range(len(events) - 6, len(events))}
    assert len(digests) == 6


def test_an_integer_of_more_than_64_bits_is_in_the_digest():
    digests = {traced(Sent(0, 0, 0, 0, 0, 0, 4, {"max_tokens": 2**70 + more})).digest() for more in (0, 1)}
    assert len(digests) == 2


# D1: the same case gives the same digest.

CASE = Case(
    Budget(8, 16, 64),
    tuple(Session(4, (Turn(6, 2), Turn())) for _ in range(4)),
    (AbortAll(AfterTokens(1, 3), 0, 0.5), AbortAll(AfterTokens(2, 9), 1)),
    replicas=3,
)


def test_digest_does_not_depend_on_the_worlds_before():
    first = run_world(CASE, load_sut(CLEAN)).digest()
    for name in ("reference:deferred", "reference:routes-anywhere", "reference:leaks-slot"):
        run_world(CASE, load_sut(name))
    assert run_world(CASE, load_sut(CLEAN)).digest() == first


def test_digest_is_the_same_in_four_processes_with_four_hash_seeds():
    program = (
        "import sys\n"
        "from sim.case import loads\n"
        "from sim.sut.registry import CLEAN, load_sut\n"
        "from sim.world import run_world\n"
        "print(run_world(loads(sys.stdin.read()), load_sut(CLEAN)).digest())\n"
    )

    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(path for path in sys.path if path) or "."},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in (0, 1, 2, 3)
    ]
    digests = {process.communicate(dumps(CASE), timeout=60)[0].strip() for process in processes}
    assert digests == {run_world(CASE, load_sut(CLEAN)).digest()}
