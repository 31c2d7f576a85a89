"""The watchdog: a world that stands still in real time is ended; a large one that gets on is not."""

import signal
import threading
import time

import pytest

from sim.case import Budget, Case, Session, Turn
from sim.clock import Blocked, watchdog, watched
from sim.sut.interface import SutError
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import sut_of
from sim.world import run_world, world

CASE = Case(Budget(8, 16), (Session(4, (Turn(2),)),) * 20, max_concurrent_sessions=1)
LIMIT_S = 0.3


def sut(busy_s, calls=None):
    """A client that computes for a while in each call."""

    class Busy(PinnedClient):
        async def generate(self, request_id, **kwargs):
            if calls is not None:
                calls.append(request_id)
            compute(busy_s)
            return await super().generate(request_id, **kwargs)

    return sut_of("busy", lambda context: Busy(context.config, context.balancer))


real_time = time.perf_counter
"""Taken before a world puts virtual time in its place."""


@pytest.fixture(autouse=True)
def short_limit(monkeypatch):
    monkeypatch.setattr(watchdog, "MOST_REAL_S", LIMIT_S)


def compute(real_s):
    deadline_s = real_time() + real_s
    while real_time() < deadline_s:
        pass


def test_a_body_that_does_not_let_go_is_blocked_where_it_stands():
    place = r"did not let go for 0\.3 s of real time in compute \(.*test_watchdog\.py:\d+\)"
    with pytest.raises(Blocked, match=place), watched():
        compute(10 * LIMIT_S)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_body_that_swallows_it_is_blocked_again(monkeypatch):
    monkeypatch.setattr(watchdog, "_AGAIN_S", LIMIT_S / 3)
    with watched():
        for _ in range(2):
            with pytest.raises(Blocked):
                compute(10 * LIMIT_S)


def test_progress_buys_the_limit_again():
    steps = 0
    with watched(lambda: steps):
        for steps in range(1, 5):  # noqa: B007
            compute(LIMIT_S * 2 / 3)
    with pytest.raises(Blocked), watched(lambda: steps):
        compute(10 * LIMIT_S)


def test_somebody_elses_timer_signal_is_left_alone():
    before = signal.signal(signal.SIGALRM, lambda _number, _frame: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 60)
        with watched():
            compute(LIMIT_S * 4 / 3)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 50
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_another_thread_is_not_watched():
    done = []

    def body():
        with watched():
            done.append(signal.getitimer(signal.ITIMER_REAL)[0])

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done == [0]


def test_a_world_may_not_take_longer_than_the_limit():
    with pytest.raises(SutError, match="did not let go"):
        run_world(CASE, sut(LIMIT_S / 8))


def test_a_large_one_may_while_it_gets_on(monkeypatch):
    monkeypatch.setattr(world, "_LARGE_SESSIONS", 20)
    assert run_world(CASE, sut(LIMIT_S / 8)).is_done


def test_a_large_one_that_stands_still_is_ended(monkeypatch):
    monkeypatch.setattr(world, "_LARGE_SESSIONS", 20)
    calls = []
    with pytest.raises(SutError, match="did not let go"):
        run_world(CASE, sut(100 * LIMIT_S, calls))
    assert calls == ["session-0"], "no other session began while the world was torn down"
