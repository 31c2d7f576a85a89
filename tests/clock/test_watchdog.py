"""The watchdog: a world that stands still in real time is ended; a large one that gets on is not."""

import time

import pytest

from sim.case import Budget, Case, Session, Turn
from sim.clock import watchdog
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
            deadline_s = real_time() + busy_s
            while real_time() < deadline_s:
                pass
            return await super().generate(request_id, **kwargs)

    return sut_of("busy", lambda context: Busy(context.config, context.balancer))


real_time = time.perf_counter
"""Taken before a world puts virtual time in its place."""


@pytest.fixture(autouse=True)
def short_limit(monkeypatch):
    monkeypatch.setattr(watchdog, "MOST_REAL_S", LIMIT_S)


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
