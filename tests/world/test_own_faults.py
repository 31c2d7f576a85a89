"""What a server of ours asserts is a fault of ours, whoever's call comes upon it; and the server's steps hold."""

import asyncio
import dataclasses

import pytest

from sim.case import Budget, Case, Schedule, ServerSettings, Session
from sim.invariants.judging import judge
from sim.servers.port import Instead
from sim.servers.server import SimulatedServer
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import sut_of
from sim.world import run_world

BUDGET = Budget(prompt_length=4, response_length=4)


class Aborting(PinnedClient):
    """Aborts a request that its replica has had for a step, and asks again."""

    after_s = 0.01

    async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
        for number in range(3):
            server_id, server = await self.acquire(request_id)
            own_id = f"{request_id}-{number}"
            call = server.generate.remote(
                request_id=own_id, prompt_ids=prompt_ids, sampling_params=dict(sampling_params), **kwargs
            )
            try:
                return await asyncio.wait_for(asyncio.shield(call), self.after_s if number < 2 else None)
            except TimeoutError:
                await server.abort_request.remote(own_id)
            finally:
                self.balancer.release_server.remote(server_id=server_id, request_id=request_id)
        raise AssertionError("the last attempt has all the time it needs")


def aborting(context):
    return Aborting(context.config, context.balancer)


@pytest.mark.parametrize("seed", range(40))
def test_an_abort_at_the_instant_in_which_a_step_ends_finds_the_engine_between_steps(seed):
    case = Case(
        budget=BUDGET,
        sessions=(Session(1), Session(1), Session(2)),
        replicas=2,
        server=ServerSettings(prefill_s=0.01, token_time_s=0.01),
        schedule=Schedule("random", seed),
    )
    trace = run_world(case, sut_of("aborting", aborting))
    assert trace.is_done
    assert [each.invariant for each in judge(case, trace, ("A9", "R7", "V1"))] == []


def asserting(method):
    """Servers whose `method` asserts what does not hold."""

    def make(parts):
        async def control(*_args, **_kwargs):
            raise AssertionError("this never is so")

        def generate(*_args, **_kwargs):
            raise AssertionError("this never is so")

        server = SimulatedServer(parts)
        return Instead(server, **{method: generate if method == "generate" else control})

    return make


@pytest.mark.parametrize("method", ["generate", "abort_request"])
def test_an_assertion_of_ours_is_raised_and_not_told_as_the_clients_failure(method):
    sut = dataclasses.replace(sut_of("aborting", aborting), make_server=asserting(method))
    case = Case(budget=BUDGET, sessions=(Session(1),), server=ServerSettings(prefill_s=0.5))
    with pytest.raises(AssertionError, match="this never is so"):
        run_world(case, sut)


def test_an_assertion_of_ones_own_balancer_is_ones_own():
    class Asserting:
        def __init__(self, servers):
            del servers

        def acquire_server(self, request_id):
            raise AssertionError(f"{request_id} is none of mine")

        def release_server(self, server_id, request_id=None):
            pass

    sut = sut_of("own balancer", lambda context: PinnedClient(context.config, context.make_balancer(Asserting)))
    assert run_world(Case(budget=BUDGET, sessions=(Session(1),)), sut).is_done
