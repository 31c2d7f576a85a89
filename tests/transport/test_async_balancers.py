"""Balancers with `async def` methods: awaited, one beside the other as in Ray's async actors, and judged fairly."""

import asyncio

import pytest

from sim.case import Budget, Case, Schedule, ServerSettings, Session
from sim.invariants.judging import judge
from sim.sut.reference.client import PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.registry import sut_of
from sim.testing import search
from sim.world import run_world

BUDGET = Budget(prompt_length=4, response_length=4)
CASE = Case(budget=BUDGET, sessions=tuple(Session(2) for _ in range(6)), replicas=3)


class Plain(LeastLoadedBalancer):
    def __init__(self, servers):
        super().__init__(servers)


class Async(Plain):
    """Every method is `async def`; `pause` is what each awaits before and after its work."""

    async def pause(self):
        pass

    async def acquire_server(self, request_id):
        await self.pause()
        chosen = Plain.acquire_server(self, request_id)
        await self.pause()
        return chosen

    async def release_server(self, server_id, request_id=None):
        await self.pause()
        Plain.release_server(self, server_id, request_id)
        await self.pause()

    async def add_servers(self, servers):
        Plain.add_servers(self, servers)

    async def remove_servers(self, server_ids):
        Plain.remove_servers(self, server_ids)

    async def clear_sticky_cache(self):
        self.session_server.clear()

    async def get_status(self):
        return Plain.get_status(self)

    async def get_total_inflight(self):
        return sum(self.loads.values())


class Pausing(Async):
    async def pause(self):
        await asyncio.sleep(0.01)


class LosesUpdates(Async):
    """Reads a count, awaits, and writes it: what others counted meanwhile is lost."""

    async def acquire_server(self, request_id):
        name = self.session_server.get(request_id) or self.choose()
        before = self.loads[name]
        await asyncio.sleep(0)
        self.session_server[request_id] = name
        self.in_flight[name][request_id] = 1
        self.loads[name] = before + 1
        return name, self.servers[name]


class Queueing(Async):
    """Two requests at most on a replica; who comes then waits for a release."""

    def __init__(self, servers):
        super().__init__(servers)
        self.freed = asyncio.Event()

    async def acquire_server(self, request_id):
        while min(self.loads.values()) >= 2:
            self.freed.clear()
            await self.freed.wait()
        return Plain.acquire_server(self, request_id)

    async def release_server(self, server_id, request_id=None):
        Plain.release_server(self, server_id, request_id)
        self.freed.set()


def of(balancer):
    return sut_of(balancer.__name__, lambda context: PinnedClient(context.config, context.make_balancer(balancer)))


def test_a_method_that_awaits_nothing_is_as_its_plain_twin():
    assert run_world(CASE, of(Async)).digest() == run_world(CASE, of(Plain)).digest()


@pytest.mark.parametrize("balancer", [Async, Pausing, Queueing])
@pytest.mark.parametrize("seed", range(5))
def test_right_ones_break_nothing(balancer, seed):
    case = Case(
        budget=BUDGET,
        sessions=tuple(Session(2, arrival_s=0.003 * index) for index in range(10)),
        replicas=2,
        server=ServerSettings(token_time_s=0.02),
        schedule=Schedule("random", seed),
    )
    assert judge(case, run_world(case, of(balancer))) == []


@pytest.mark.parametrize("kind", ["routing", "lifecycle", "liveness"])
@pytest.mark.parametrize("balancer", [Async, Pausing, Queueing])
def test_right_ones_are_clean_in_drawn_worlds(balancer, kind):
    assert search(of(balancer), kind, worlds=150).finds == []


def test_an_update_that_is_lost_over_an_await_is_found():
    assert "R3" in {violation.invariant for violation in judge(CASE, run_world(CASE, of(LosesUpdates)))}


def test_what_one_raises_reaches_the_caller_and_the_trace():
    class Failing(Async):
        async def acquire_server(self, request_id):
            raise RuntimeError(f"no room for {request_id}")

    trace = run_world(CASE, of(Failing))
    assert {turn.ended.error for _, turn in trace.ledger.turns()} == {
        f"RuntimeError: no room for session-{index}" for index in range(6)
    }
    assert judge(CASE, trace, ("A9",)) == []
