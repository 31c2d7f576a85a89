"""The client of a world: made by a factory, which may bring a balancer; both may do what they like."""

import logging

import numpy as np
import pytest

from sim.case import (
    Case,
)
from sim.events import Logged, Message, Sent, SessionEnded, TurnEnded
from sim.invariants.judging import judge
from sim.sut.interface import SutError
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.world import run_world
from tests.world.worlds import BUDGET, ONE, events, sut

# Factories


def test_a_factory_must_return_a_client():
    with pytest.raises(SutError, match="the factory of SUT 'nothing' returned int, which has no generate"):
        run_world(Case(BUDGET, (ONE,)), sut_of("nothing", lambda context: 3))


def test_after_a_factory_that_fails_the_next_world_runs():
    def failing(context):
        raise OSError("no such model")

    with pytest.raises(SutError, match="the factory of SUT 'failing' raised OSError: no such model"):
        run_world(Case(BUDGET, (ONE,)), sut_of("failing", failing))
    assert run_world(Case(BUDGET, (ONE,)), load_sut(CLEAN)).is_done


def test_a_factory_may_bring_its_own_balancer():
    class Fixed:
        def __init__(self, servers):
            self.servers = servers

        def acquire_server(self, request_id):
            return "replica-1", self.servers["replica-1"]

        def release_server(self, server_id, request_id):
            pass

    def plain(context):
        balancer = context.make_balancer(Fixed)
        return PinnedClient(context.config, balancer), balancer

    trace = run_world(Case(BUDGET, (ONE, ONE), replicas=2), sut_of("fixed", plain))
    assert {event.replica for event in events(trace, Sent)} == {1}
    assert events(trace, Message)[-1].loads is None, "it shows no counts"
    assert {violation.invariant for violation in judge(Case(BUDGET, (ONE, ONE), replicas=2), trace)} == {"R1"}


# Systems under test may do what they like; the harness stands


class Uncounted:
    """A balancer of one replica that shows nothing."""

    def __init__(self, servers):
        self.servers = servers

    def acquire_server(self, request_id):
        return "replica-0", self.servers["replica-0"]

    def release_server(self, server_id, request_id):
        pass


class AnsweringOddly(Uncounted):
    def acquire_server(self, request_id):
        return 7


class FailingToShow(Uncounted):
    def get_status(self):
        raise KeyError("servers")


class ShowingAList(Uncounted):
    def get_status(self):
        return [1]


class ShowingMore(Uncounted):
    def get_status(self):
        return {"servers": {"replica-0": {"in flight": 1, "waiting": 0}}, "total_inflight": "some"}


@pytest.mark.parametrize("cls", [AnsweringOddly, FailingToShow, ShowingAList, ShowingMore])
def test_a_balancer_may_show_what_it_likes(cls):
    case = Case(BUDGET, (ONE,))
    odd = sut_of("odd", lambda context: PinnedClient(context.config, context.make_balancer(cls)))
    trace = run_world(case, odd)
    assert trace.is_done
    assert not events(trace, Logged)
    # A client that cannot use the answer fails, and that is what is said.
    assert {violation.invariant for violation in judge(case, trace)} <= {"A9"}
    assert trace.digest() == run_world(case, odd).digest()


@pytest.mark.parametrize(
    "limit",
    [3.0, "3", float("nan"), object(), np.int64(3), True, -1, None],
    ids=["float", "text", "nan", "object", "numpy", "true", "negative", "none"],
)
def test_a_client_may_send_what_limit_it_likes(limit):
    class Odd(PinnedClient):
        async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
            return await super().attempt(request_id, prompt_ids, {"max_tokens": limit}, **kwargs)

    trace = run_world(Case(BUDGET, (ONE,)), sut(Odd))
    taken = isinstance(limit, int | np.int64)
    assert events(trace, SessionEnded)[0].outcome == ("ok" if taken else "error")
    assert len(trace.ledger.attempts[0].ended) == 1
    assert trace.digest() == run_world(Case(BUDGET, (ONE,)), sut(Odd)).digest()


@pytest.mark.parametrize(
    "prompt_ids",
    [[], [5, 6], [-5], ["x"], [9 << 24], [1.5], np.arange(1 << 24, (1 << 24) + 4)],
    ids=["empty", "nobody's", "negative", "text", "another's", "float", "numpy"],
)
def test_a_client_may_send_what_prompt_it_likes(prompt_ids):
    class Odd(PinnedClient):
        async def attempt(self, request_id, _, sampling_params, **kwargs):
            return await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)

    trace = run_world(Case(BUDGET, (ONE,)), sut(Odd))
    assert trace.is_done
    assert not events(trace, Logged)
    assert len(trace.ledger.attempts[0].ended) == 1
    assert trace.digest() == run_world(Case(BUDGET, (ONE,)), sut(Odd)).digest()


@pytest.mark.parametrize(
    ("token_ids", "outcome"),
    [([5, 6], "ok"), (np.arange(7), "ok"), (["a", "b"], "error"), ([None], "error"), (3, "error"), (None, "error")],
    ids=["foreign", "numpy", "texts", "none", "number", "nothing"],
)
@pytest.mark.parametrize("stop_reason", ["length", object()], ids=["text", "object"])
def test_a_client_may_return_what_it_likes(token_ids, outcome, stop_reason):
    class Odd(PinnedClient):
        async def generate(self, request_id, **kwargs):
            output = await super().generate(request_id, **kwargs)
            output.token_ids, output.stop_reason = token_ids, stop_reason
            return output

    case = Case(BUDGET, (ONE,))
    trace = run_world(case, sut(Odd))
    assert [event.outcome for event in events(trace, TurnEnded)] == [outcome]
    assert trace.is_done
    assert ("A2" in {violation.invariant for violation in judge(case, trace)}) == (outcome == "ok")
    assert trace.digest() == run_world(case, sut(Odd)).digest()


def test_addresses_are_no_part_of_a_trace():
    """An object's default repr holds one, which is another in every process."""

    class Odd(PinnedClient):
        async def generate(self, request_id, *, sampling_params, **kwargs):
            logging.getLogger("client").warning("%s", object())
            sampling_params["object"] = object()
            raise ValueError(object())

    trace = run_world(Case(BUDGET, (ONE,)), sut(Odd))
    assert events(trace, Logged)[0].text == "<object object at …>"
    assert events(trace, TurnEnded)[0].error == "ValueError: <object object at …>"
    assert "'object': <object object at …>" in events(trace, TurnEnded)[0].params_changed
    assert events(trace, SessionEnded)[0].error == "ValueError: <object object at …>"


def test_a_warning_whose_arguments_do_not_fit_is_heard_as_it_is(capfd):
    class Odd(PinnedClient):
        async def generate(self, request_id, **kwargs):
            logging.getLogger("client").warning("%d", "three")
            return await super().generate(request_id, **kwargs)

    assert events(run_world(Case(BUDGET, (ONE,)), sut(Odd)), Logged)[0].text == "%d"
    assert capfd.readouterr() == ("", "")


# What a client gets wrong at first


class Hasty(PinnedClient):
    async def generate(self, request_id, **kwargs):
        await self.balancer.acquire_server(request_id)


class Synchronous(PinnedClient):
    def generate(self, request_id, **kwargs):
        return [1, 2]


def returning(value):
    class Returning(PinnedClient):
        async def generate(self, request_id, **kwargs):
            return value

    return Returning


@pytest.mark.parametrize(
    ("client", "told"),
    [
        (
            returning(None),
            "TypeError: generate returned None: it has no token_ids, stop_reason, extra_fields; something",
        ),
        (returning([1, 2]), "TypeError: generate returned [1, 2]: it has no token_ids"),
        (Synchronous, "TypeError: generate returned [1, 2], which cannot be awaited: async def is needed"),
        (Hasty, "balancer.acquire_server is a method of a handle: call balancer.acquire_server.remote(…)"),
    ],
)
def test_what_a_client_gets_wrong_is_told_in_its_own_terms(client, told):
    trace = run_world(Case(BUDGET, (ONE,)), sut(client))
    (ended,) = events(trace, TurnEnded)
    assert told in ended.error
    assert not any("/sim/" in frame.filename for stack in trace.raised.values() for frame in stack)


def test_a_factory_that_is_async_is_told_so():
    async def build(context):
        return PinnedClient(context.config, context.balancer)

    with pytest.raises(
        SutError, match="the factory of SUT 'late' is an async def; a plain function that returns a client"
    ):
        run_world(Case(BUDGET, (ONE,)), sut_of("late", build))
