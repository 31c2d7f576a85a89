"""Trace: the digest tells runs apart, the ledger adds up, the seal holds."""

import subprocess
import sys

import pytest

from sim.case import AbortAll, AfterTokens, Budget, Case, Session, Turn, dumps
from sim.events import (
    Admitted,
    Cancelled,
    Decoded,
    Delivered,
    Discarded,
    Ended,
    Granted,
    Logged,
    Sent,
    SessionEnded,
    TurnEnded,
    TurnStarted,
    WorldEnded,
)
from sim.sut.registry import CLEAN, load_sut
from sim.trace import Trace
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


def traced(*events, sessions=1):
    trace = Trace(sessions)
    trace.events.extend(events)
    return trace


def test_ledger_gathers_attempts_under_their_turn():
    ledger = traced(*TWO_ATTEMPTS).ledger

    (turn,) = ledger.sessions[0].turns
    assert turn.decoded_tokens == 6
    assert [attempt.runs for attempt in turn.attempts] == [
        [DecodedRun(4, 3, 0)],
        [DecodedRun(7, 2, 0), DecodedRun(9, 1, 1)],
    ]
    assert [attempt.grant.tokens for attempt in turn.attempts] == [10, 7]
    assert [[ended.outcome for ended in attempt.ended] for attempt in turn.attempts] == [["abort"], ["stop"]]
    assert [attempt.delivered.tokens for attempt in turn.attempts] == [3, 3]
    assert ledger.sessions[0].ended == SessionEnded(60, 0, "ok", 6, 6)
    assert list(ledger.turns()) == [(0, turn)]
    assert ledger.turn_outcome(0, 0) == "ok"
    assert ledger.turn_outcome(0, 1) is None


def test_ledger_tells_an_answer_that_found_no_caller():
    ledger = traced(
        TurnStarted(0, 0, 0, 4),
        Sent(0, 0, 0, 0, 0, 0, 4, {}),
        Cancelled(5, 0),
        TurnEnded(5, 0, 0, "cancelled", (), None, None, None, None),
        Decoded(30, 0, 4, 3, 0),
        Ended(30, 0, "length", 3),
        Discarded(30, 0, 3),
        WorldEnded(30, "done"),
    ).ledger

    assert ledger.attempts[0].delivered is None
    assert ledger.attempts[0].discarded == Discarded(30, 0, 3)
    assert ledger.sessions[0].cancelled == Cancelled(5, 0)
    assert ledger.turn_outcome(0, 0) == "cancelled"


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
    assert not traced(WorldEnded(1, reason)).is_done


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
