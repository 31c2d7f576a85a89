"""The wire: calls are futures of their own, arguments are copies or the objects themselves, delays add up."""

import asyncio
import contextvars
import gc

import pytest

from sim.case import Budget, Case, Limit, Session, Transport
from sim.clock import to_ns
from sim.events import Acquired, Delivered, Discarded, Message, Sent, WorldEnded
from sim.faults import AtTime, DelayReleases
from sim.sut.reference.client import PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.sut.verl.servers import TokenOutput
from sim.world import run_world

BUDGET = Budget(prompt_length=4, response_length=10, max_model_len=32)


# Copies and shared objects


@pytest.mark.parametrize(("objects", "kept"), [("copies", [1]), ("shared", [1, 2])])
def test_only_a_shared_argument_shows_what_the_caller_does_to_it_later(wired, objects, kept):
    loop, _, port, balancer = wired(objects=objects)
    argument = [1]
    balancer.release_server.remote(argument)
    argument.append(2)
    loop.run_until_idle()
    assert port.balancer.kept == [((kept,), {})]


@pytest.mark.parametrize(("objects", "changed"), [("copies", False), ("shared", True)])
def test_a_server_that_takes_the_limit_out_of_the_params_is_seen_only_when_they_are_shared(objects, changed):
    """verl's servers pop it. A client that passes its caller's own dict on shows the caller, unless Ray copies it."""

    class Trusting(PinnedClient):
        async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
            return await self.attempt(request_id, prompt_ids, sampling_params, **kwargs)

    case = Case(BUDGET, (Session(4, limit=Limit("max_tokens", 3)),), transport=Transport(objects))
    trace = run_world(case, sut_of("trusting", lambda context: Trusting(context.config, context.balancer)))

    (turn,) = trace.ledger.sessions[0].turns
    assert (turn.ended.params_changed is not None) == changed


# Futures


def test_an_error_reaches_the_caller_and_the_trace(wired):
    loop, trace, _, balancer = wired()

    async def call():
        await balancer.fail.remote()

    with pytest.raises(KeyError, match="no such thing"):
        loop.run_until_complete(call())
    assert trace.events[0].error == "KeyError: 'no such thing'"


def test_a_call_is_under_way_once_remote_was_called_whoever_waits(wired):
    loop, _, port, balancer = wired(balancer_delay_s=1.0)
    future = balancer.release_server.remote(1)
    assert port.messages_in_flight == 1
    future.cancel()
    loop.run_until_idle()
    assert port.balancer.kept == [((1,), {})]
    assert port.messages_in_flight == 0


def test_an_answer_that_finds_no_caller_is_discarded():
    class Impatient(PinnedClient):
        async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
            name, server = await self.acquire(request_id)
            call = server.generate.remote(request_id="x", prompt_ids=prompt_ids, sampling_params=sampling_params)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(call, 0.03)
            self.balancer.release_server.remote(server_id=name, request_id=request_id)
            return TokenOutput([], None, "completed")

    case = Case(BUDGET, (Session(4),))
    trace = run_world(case, sut_of("impatient", lambda c: Impatient(c.config, c.balancer)))

    assert [event for event in trace.events if isinstance(event, Delivered)] == []
    assert [event.tokens for event in trace.events if isinstance(event, Discarded)] == [10]
    assert trace.is_done


def test_a_call_outside_of_any_turn_is_refused():
    def factory(context):
        class Early(PinnedClient):
            async def generate(self, request_id, **kwargs):
                server = context.servers["replica-0"]
                loop = asyncio.get_running_loop()
                task = loop.create_task(self.call(server), context=contextvars.Context())
                await task
                return TokenOutput([], None, "completed")

            async def call(self, server):
                with pytest.raises(RuntimeError, match="outside of any turn"):
                    server.generate.remote(request_id="x", prompt_ids=[1], sampling_params={})

        return Early(context.config, context.balancer)

    assert run_world(Case(BUDGET, (Session(4),)), sut_of("early", factory)).is_done


# Delays


def times(trace, kind):
    return [event.t_ns for event in trace.events if isinstance(event, kind)]


def test_delays_count_once_each_way_for_servers_and_once_for_messages():
    case = Case(BUDGET, (Session(4),), transport=Transport(server_delay_s=3.0, balancer_delay_s=0.5))
    trace = run_world(case, load_sut(CLEAN))

    assert times(trace, Acquired) == [to_ns(0.5)]
    assert times(trace, Sent) == [to_ns(0.5)]
    assert times(trace, Delivered) == [to_ns(0.5 + 3.0 + 0.1 + 3.0)]
    assert times(trace, WorldEnded) == [to_ns(0.5 + 3.0 + 0.1 + 3.0 + 0.5)]


def test_late_releases_are_late_while_the_delay_lasts_and_hold_nothing_up():
    case = Case(
        BUDGET,
        (Session(4), Session(4, arrival_s=1.0)),
        (DelayReleases(AtTime(0.0), delay_s=5.0, duration_s=0.5),),
    )
    trace = run_world(case, load_sut(CLEAN))

    releases = [event for event in trace.events if isinstance(event, Message) and event.kind == "release_server"]
    assert [(event.session, event.t_ns) for event in releases] == [(1, to_ns(1.1)), (0, to_ns(5.1))]
    assert trace.events[-1] == WorldEnded(to_ns(5.1), "done")


def test_a_delay_without_end_does_not_outlive_the_world():
    case = Case(BUDGET, (Session(4),), (DelayReleases(AtTime(0.0), delay_s=5.0),))
    assert run_world(case, load_sut(CLEAN)).events[-1] == WorldEnded(to_ns(5.1), "done")


# Noise


@pytest.mark.parametrize("objects", ["copies", "shared"])
def test_errors_that_nobody_waits_for_leave_no_word_outside_the_trace(objects, capfd):
    class Failing(PinnedClient):
        async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
            self.balancer.fail.remote()
            return await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)

    class Unwell(LeastLoadedBalancer):
        def fail(self):
            raise RuntimeError("unwell")

    case = Case(BUDGET, (Session(4),), transport=Transport(objects))
    trace = run_world(case, sut_of("failing", lambda c: Failing(c.config, c.make_balancer(Unwell))))

    assert trace.is_done
    errors = [event.error for event in trace.events if isinstance(event, Message) and event.kind == "fail"]
    assert errors == ["RuntimeError: unwell"]
    gc.collect()
    assert capfd.readouterr() == ("", "")
