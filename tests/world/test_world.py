"""World: from a Case to a Trace. The closed form of the budget, the ends of a run, and what never happens."""

import asyncio
import gc
import logging
import random
import time
import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.case import (
    AbortAll,
    AbortRequest,
    AddReplica,
    AfterSent,
    AfterTokens,
    AtTime,
    Budget,
    CancelClient,
    Case,
    ClearSticky,
    ClientView,
    DelayReleases,
    EngineSettings,
    FittedLatency,
    Limit,
    RemoveReplica,
    RooflineLatency,
    Router,
    Schedule,
    ServerSettings,
    Session,
    Transport,
    Turn,
    WeightUpdate,
    dumps,
    loads,
)
from sim.clock import to_ns
from sim.dialects.grants import NoRoom, take_grant
from sim.engine import Engine, EngineConfig
from sim.engine.latency import Constant
from sim.engine.timed import TimedEngine
from sim.events import Logged, Message, Prefilled, Sent, SessionEnded, TurnEnded, WorldEnded
from sim.invariants.judging import judge
from sim.invariants.table import INVARIANTS
from sim.sut.interface import Sut, SutError
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut
from sim.world import World, run_world
from sim.world.world import REST, bounds_of

BUDGET = Budget(prompt_length=4, response_length=10, max_model_len=64)
ONE = Session(4)


def decoded(trace, session=0):
    return [attempt.decoded_tokens for turn in trace.ledger.sessions[session].turns for attempt in turn.attempts]


def events(trace, kind):
    return [event for event in trace.events if isinstance(event, kind)]


def sut(client, name="under test"):
    """A SUT of a client class, with the built-in balancer."""
    return Sut(name, name, lambda context: client(context.config, context.balancer))


# The closed form: one response, aborted after every `every` tokens, `aborts` times.


def closed_form(dialect, budget, prompt_tokens, every, aborts, pinned):
    """The tokens decoded in each attempt, by the grants alone. An attempt that would end at the abort has ended."""
    parts = []
    while True:
        generated = sum(parts)
        left = budget.response_length - generated if pinned else None
        if (pinned and left <= 0) or prompt_tokens + generated >= budget.context_tokens:
            return parts
        params = {"max_tokens": left} if pinned else {}
        try:
            granted = take_grant(dialect, budget, prompt_tokens + generated, params).tokens
        except NoRoom:
            return parts
        next_abort = every * (generated // every + 1)
        if granted <= next_abort - generated or next_abort > every * aborts:
            return [*parts, granted]
        parts.append(next_abort - generated)


@pytest.mark.parametrize(
    ("client", "parts"),
    [("reference:deferred", [2000] * 5 + [104]), ("reference:pinned", [2000] * 4 + [192])],
)
def test_the_overrun_of_verl_pr_7207(client, parts):
    """10104 tokens against a budget of 8192, and 8192 with the fix."""
    budget = Budget(prompt_length=2048, response_length=8192, max_model_len=32_768)
    faults = tuple(AbortAll(AfterTokens(0, 2000 * number), 0) for number in range(1, 7))
    trace = run_world(Case(budget, (Session(136),), faults), load_sut(client))

    assert decoded(trace) == parts
    assert closed_form("vllm", budget, 136, 2000, 6, pinned=client.endswith("pinned")) == parts


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(
    dialect=st.sampled_from(["vllm", "sglang", "trtllm"]),
    pinned=st.booleans(),
    prompt_length=st.integers(1, 30),
    response_length=st.integers(1, 40),
    context=st.integers(1, 80),
    prompt_tokens=st.integers(1, 40),
    every=st.integers(1, 30),
    aborts=st.integers(0, 8),
    token_time_s=st.sampled_from([0.01, 1.0, 0.000000001]),
    gate=st.booleans(),
)
def test_the_world_agrees_with_the_closed_form(
    dialect, pinned, prompt_length, response_length, context, prompt_tokens, every, aborts, token_time_s, gate
):
    budget = Budget(prompt_length, response_length, context)
    prompt_tokens = min(prompt_tokens, context)
    faults = tuple(AbortAll(AfterTokens(0, every * number), 0) for number in range(1, aborts + 1))
    case = Case(budget, (Session(prompt_tokens),), faults, server=ServerSettings(dialect, gate, token_time_s))
    trace = run_world(case, load_sut("reference:pinned" if pinned else "reference:deferred"))

    expected = closed_form(dialect, budget, prompt_tokens, every, aborts, pinned)
    assert [tokens for tokens in decoded(trace) if tokens] == [tokens for tokens in expected if tokens]
    overrun = sum(expected) > budget.response_length
    assert overrun == ("B1" in {violation.invariant for violation in judge(case, trace)})
    if dialect != "trtllm" and pinned:
        assert not overrun


@settings(deadline=None, derandomize=True, database=None)
@given(
    prompt_length=st.integers(1, 300),
    prompt_tokens=st.integers(1, 300),
    response_length=st.integers(1, 800),
    every=st.integers(1, 1000),
)
def test_in_general_the_overrun_is_the_unused_prompt_allowance(prompt_length, prompt_tokens, response_length, every):
    """For a model that never stops and aborts that never end, as soon as one comes before the first attempt is over.

    From the first attempt that starts with the allowance used up, each is granted just what is left to
    prompt_length + response_length.
    """
    prompt_tokens = min(prompt_tokens, prompt_length)
    budget = Budget(prompt_length, response_length)
    overrun = prompt_length - prompt_tokens if every < response_length else 0

    parts = closed_form("vllm", budget, prompt_tokens, every, 10**6, pinned=False)
    assert sum(parts) == response_length + overrun


# Sessions and turns


def test_turns_continue_from_what_came_before():
    session = Session(4, (Turn(2, 3, tool_time_s=1.0), Turn(1, 1), Turn(1)))
    trace = run_world(Case(BUDGET, (session,)), load_sut(CLEAN))

    assert [turn.started.prompt_tokens for turn in trace.ledger.sessions[0].turns] == [4, 9, 11]
    assert events(trace, SessionEnded) == [SessionEnded(to_ns(1.04), 0, "ok", 8, 8)]


@pytest.mark.parametrize(
    ("turns", "started", "response", "kept"),
    [
        ((Turn(10), Turn(1)), 1, 10, 10),  # the first turn uses up response_length
        ((Turn(4, 6), Turn(1)), 1, 4, 4),  # the tool's answer would
        ((Turn(4, 5), Turn(1)), 2, 10, 10),
        ((Turn(4, 5), Turn(3)), 2, 12, 10),  # the slice drops 2 tokens
    ],
)
def test_response_length_ends_the_turns_and_slices_the_rest(turns, started, response, kept):
    trace = run_world(Case(BUDGET, (Session(4, turns),)), load_sut(CLEAN))
    (ended,) = events(trace, SessionEnded)
    assert len(trace.ledger.sessions[0].turns) == started
    assert (ended.response_tokens, ended.kept_tokens) == (response, kept)


def test_a_response_at_response_length_calls_no_tool():
    session = Session(4, (Turn(10, tool_time_s=1.0), Turn(1)))
    assert events(run_world(Case(BUDGET, (session,)), load_sut(CLEAN)), SessionEnded)[0].t_ns == to_ns(0.1)


def test_attempts_are_numbered_within_their_turn():
    faults = (AbortAll(AfterTokens(0, 2), 0), AbortAll(AfterTokens(0, 6), 0))
    trace = run_world(Case(BUDGET, (Session(4, (Turn(3, 1), Turn(5))),), faults), load_sut(CLEAN))
    assert [(event.turn, event.attempt) for event in events(trace, Sent)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_model_that_stops_late_stops_at_its_place_after_aborts():
    faults = (AbortAll(AfterTokens(0, 3), 0), AbortAll(AfterTokens(0, 5), 0))
    trace = run_world(Case(BUDGET, (Session(4, (Turn(7),)),), faults), load_sut(CLEAN))
    assert decoded(trace) == [3, 2, 2]
    assert trace.ledger.attempts[-1].ended[0].outcome == "stop"


@pytest.mark.parametrize(
    ("spelling", "limits"),
    [
        ("max_tokens", {"max_tokens": 3}),
        ("max_new_tokens", {"max_new_tokens": 3}),
    ],
)
def test_a_limit_is_sent_as_it_is_spelled(spelling, limits):
    trace = run_world(Case(BUDGET, (Session(4, limit=Limit(spelling, 3)),)), load_sut(CLEAN))
    assert events(trace, Sent)[0].limits == limits
    assert decoded(trace) == [3]


def test_the_client_sees_its_own_view_of_the_config():
    seen = []

    class Looking(PinnedClient):
        async def generate(self, request_id, **kwargs):
            seen.append(getattr(self.config.actor_rollout_ref.rollout, "response_length", "missing"))
            return await super().generate(request_id, **kwargs)

    for view in (None, ClientView(), ClientView(None), ClientView("8")):
        run_world(Case(Budget(4, 10, 64, client_view=view), (ONE,)), sut(Looking))
    assert seen == [10, "missing", None, "8"]


@pytest.mark.parametrize("partial_rollout", [True, False])
def test_partial_rollout_off_means_no_resume(partial_rollout):
    case = Case(BUDGET, (ONE,), (AbortAll(AfterTokens(0, 3), 0),), partial_rollout=partial_rollout)
    assert decoded(run_world(case, load_sut(CLEAN))) == ([3, 7] if partial_rollout else [3])


def test_every_tie_is_the_orders_to_break():
    """Two sessions at one instant: some random order sends the second one first, FIFO never does."""
    case = Case(BUDGET, (ONE, ONE))
    first = {
        events(run_world(Case(BUDGET, case.sessions, schedule=schedule), load_sut(CLEAN)), Sent)[0].session
        for schedule in (Schedule("random", seed) for seed in range(20))
    }
    assert first == {0, 1}
    assert events(run_world(case, load_sut(CLEAN)), Sent)[0].session == 0


def test_a_random_schedule_is_replayed_by_its_deviations():
    sessions = tuple(Session(4, (Turn(3, 1), Turn())) for _ in range(4))
    faults = (WeightUpdate(AtTime(0.05)), AbortAll(AfterTokens(1, 2), 0))
    for seed in range(10):
        case = Case(BUDGET, sessions, faults, replicas=2, schedule=Schedule("random", seed))
        world = World(case, load_sut(CLEAN))
        digest = world.run().digest()
        deviations = tuple((step, pick) for step, pick in world.deviations)
        assert deviations
        explicit = Case(BUDGET, sessions, faults, replicas=2, schedule=Schedule("explicit", deviations=deviations))
        again = World(explicit, load_sut(CLEAN))
        assert again.run().digest() == digest
        assert again.deviations == world.deviations


# How a run ends


def last(trace):
    return trace.events[-1]


def test_a_run_ends_with_the_balancers_counts_at_rest():
    trace = run_world(Case(BUDGET, (ONE, ONE), replicas=2), load_sut(CLEAN))
    assert events(trace, Message)[-1] == Message(to_ns(0.1), REST, None, None, (), (0, 0), 0, 0)
    assert last(trace) == WorldEnded(to_ns(0.1), "done")


def test_a_client_that_waits_for_ever_is_a_deadlock_that_names_it():
    class Waiting(PinnedClient):
        async def generate(self, request_id, **kwargs):
            await asyncio.get_running_loop().create_future()

    trace = run_world(Case(BUDGET, (ONE,)), sut(Waiting))
    assert last(trace).reason == "deadlock"
    assert any("session 0" in task and "Waiting.generate" in awaited for task, awaited in last(trace).waiting)


def test_a_client_that_polls_without_letting_time_pass_is_a_livelock():
    class Polling(PinnedClient):
        async def generate(self, request_id, **kwargs):
            while True:
                await asyncio.sleep(0)

    trace = run_world(Case(BUDGET, (ONE,)), sut(Polling))
    assert last(trace).reason == "livelock"
    assert "session 0" in last(trace).waiting[0][1]


def test_a_client_that_polls_for_ever_meets_the_horizon():
    class Sleeping(PinnedClient):
        async def generate(self, request_id, **kwargs):
            while True:
                await asyncio.sleep(1)

    case = Case(BUDGET, (ONE,))
    trace = run_world(case, sut(Sleeping))
    assert last(trace).reason == "horizon"
    assert last(trace).t_ns <= to_ns(bounds_of(case).virtual_s)


def test_a_client_that_fails_ends_its_turn_and_session_with_its_error():
    class Failing(PinnedClient):
        async def generate(self, request_id, **kwargs):
            raise ZeroDivisionError("nothing to divide by")

    trace = run_world(Case(BUDGET, (ONE, ONE)), sut(Failing))
    assert [event.error for event in events(trace, TurnEnded)] == ["ZeroDivisionError: nothing to divide by"] * 2
    assert [event.outcome for event in events(trace, SessionEnded)] == ["error", "error"]
    assert trace.is_done


@pytest.mark.parametrize("answer", [None, "text", 3, {"token_ids": [1]}])
def test_a_client_that_returns_no_answer_is_an_error_of_its_session(answer):
    class Mute(PinnedClient):
        async def generate(self, request_id, **kwargs):
            return answer

    trace = run_world(Case(BUDGET, (ONE,)), sut(Mute))
    assert events(trace, SessionEnded)[0].outcome == "error"


def test_a_client_that_swallows_its_cancellation_is_no_hang():
    class Stubborn(PinnedClient):
        async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
            while True:
                try:
                    return await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)
                except asyncio.CancelledError:
                    continue

    case = Case(BUDGET, (ONE,), (CancelClient(AfterTokens(0, 3), 0),))
    trace = run_world(case, sut(Stubborn))
    assert decoded(trace) == [10, 10]
    assert events(trace, SessionEnded)[0].outcome == "ok"


def test_a_factory_must_return_a_client():
    with pytest.raises(SutError, match="the factory of SUT 'nothing' returned int, which has no generate"):
        run_world(Case(BUDGET, (ONE,)), Sut("nothing", "nothing", lambda context: 3))


def test_after_a_factory_that_fails_the_next_world_runs():
    def failing(context):
        raise OSError("no such model")

    with pytest.raises(SutError, match="the factory of SUT 'failing' raised OSError: no such model"):
        run_world(Case(BUDGET, (ONE,)), Sut("failing", "failing", failing))
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

    trace = run_world(Case(BUDGET, (ONE, ONE), replicas=2), Sut("fixed", "fixed", plain))
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
    odd = Sut("odd", "odd", lambda context: PinnedClient(context.config, context.make_balancer(cls)))
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


# What a world leaves as it was


def test_nothing_of_the_process_is_changed_or_used():
    random.seed(7)
    before = random.getstate()
    names = (time.time, time.monotonic, time.sleep, uuid.uuid4, random.choice)
    handlers = logging.getLogger().handlers[:]
    started = time.monotonic()

    trace = run_world(Case(BUDGET, (ONE,), (AbortAll(AfterTokens(0, 3), 0, pause_s=1e5),)), load_sut(CLEAN))

    assert trace.is_done
    assert time.monotonic() - started < 10
    assert random.getstate() == before
    assert (time.time, time.monotonic, time.sleep, uuid.uuid4, random.choice) == names
    assert logging.getLogger().handlers == handlers


def test_warnings_of_the_system_under_test_are_on_the_trace_and_not_on_the_terminal(capfd):
    class Warning(PinnedClient):
        async def generate(self, request_id, **kwargs):
            logging.getLogger("client").warning("at %s", 3)
            logging.getLogger("client").info("unheard")
            return await super().generate(request_id, **kwargs)

    trace = run_world(Case(BUDGET, (ONE,)), sut(Warning))
    assert events(trace, Logged) == [Logged(0, "client", "at 3")]
    assert capfd.readouterr() == ("", "")


# Engines


class SmallPoolWorld(World):
    """Its engines have a pool that vLLM would not start with, so that a long prompt never fits."""

    def _make_engine(self):
        config = EngineConfig(
            num_gpu_blocks=3, block_size=4, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64
        )
        return TimedEngine(Engine(config), Constant(to_ns(0.01)))


@pytest.mark.parametrize("faults", [(), (AbortAll(AtTime(1.0), 0),)])
def test_a_request_that_never_fits_ends_the_world_with_the_engines_reason(faults):
    """An abort ends it, after 60 s of waiting for its first token, and the client sends it again."""
    case = Case(BUDGET, (Session(4, (Turn(2),)), Session(12)), faults)
    world = SmallPoolWorld(case, load_sut(CLEAN))
    (violation,) = [each for each in judge(case, world.run()) if each.invariant == "V1"]
    assert violation.message.startswith(f"deadlock at {62 if faults else 0.03:g}")
    assert (
        f"replica 0 is stuck: request '{2 if faults else 1}' at the head of the queue needs 3 blocks and the pool"
        in (violation.message)
    )
    assert world.steps < 100_000


@pytest.mark.parametrize("latency", [RooflineLatency("H100-SXM", "Qwen2.5-7B"), FittedLatency(0.01, 1e-5, 1e-8)])
@pytest.mark.parametrize("engine", [EngineSettings(), EngineSettings(6, 16, 4, 64)])
def test_worlds_end_whatever_a_step_takes_and_however_small_the_pool(latency, engine):
    server = ServerSettings(engine=engine, latency=latency)
    sessions = tuple(Session(4, arrival_s=0.01 * index) for index in range(12))
    case = Case(Budget(16, 48, 64), sessions, (WeightUpdate(AfterTokens(3, 20)),), server=server)
    trace = run_world(case, load_sut(CLEAN))
    assert trace.is_done
    assert judge(case, trace) == []
    prefilled = [event for event in trace.events if isinstance(event, Prefilled)]
    assert any(event.recomputed_tokens for event in prefilled) == (engine.num_gpu_blocks is not None)


# Odd worlds: anything that a Case can say, small, with edges of times, lengths and triggers more often than not


def odd_case(seed):
    draw = random.Random(seed)
    token_time_s = draw.choice([0.01, 0.01, 0.0, 1.0])
    budget = Budget(draw.randint(1, 12), draw.randint(1, 20), draw.choice([None, draw.randint(2, 40), 40]))
    replicas, count = draw.choice([1, 2, 3]), draw.choice([1, 2, 3, 5])

    def seconds():
        return draw.choice([0.0, 0.0, 1.0, token_time_s * draw.randint(0, 20), draw.random()])

    def session(index):
        turns = tuple(
            Turn(draw.choice([None, draw.randint(1, 20)]), draw.choice([0, draw.randint(0, 5)]), seconds())
            for _ in range(draw.randint(1, 3))
        )
        limit = Limit(draw.choice(["max_tokens", "max_new_tokens", "both"]), draw.choice([0, 1, 5, 10**7]))
        shares = index > 0 and draw.random() < 0.2
        return Session(
            min(budget.context_tokens, draw.randint(1, 15)),
            turns,
            seconds(),
            limit if draw.random() < 0.3 and not shares else None,
            0 if shares else None,
        )

    def when():
        session, number = draw.randrange(count), draw.randint(1, 12)
        return draw.choice([AtTime(seconds()), AfterTokens(session, number), AfterSent(session, 1 + number % 3)])

    def fault():
        replica, session = draw.randrange(replicas), draw.randrange(count)
        return draw.choice(
            [
                WeightUpdate(when(), seconds(), tuple(draw.sample(range(replicas), draw.randrange(replicas)))),
                AbortAll(when(), replica, seconds()),
                AbortRequest(when(), session),
                CancelClient(when(), session),
                RemoveReplica(when(), replica),
                AddReplica(when(), replica),
                ClearSticky(when()),
                DelayReleases(when(), seconds(), draw.choice([seconds(), 1e7])),
            ]
        )

    return Case(
        budget,
        tuple(session(index) for index in range(count)),
        tuple(fault() for _ in range(draw.choice([0, 1, 2, 4, 8]))),
        replicas,
        ServerSettings(draw.choice(["vllm", "sglang"]), draw.random() < 0.7, token_time_s, seconds(), seconds()),
        Router(sticky=draw.random() < 0.8),
        Transport(draw.choice(["copies", "shared"]), seconds(), seconds()),
        draw.random() < 0.8,
        seed,
        draw.choice([Schedule(), Schedule("random", seed)]),
    )


@pytest.mark.parametrize("hundred", range(5))
def test_the_known_good_client_breaks_nothing_in_odd_worlds(hundred, capfd):
    for seed in range(100 * hundred, 100 * hundred + 100):
        case = odd_case(seed)
        trace = run_world(case, load_sut(CLEAN))
        assert judge(case, trace) == [], f"seed {seed}: {dumps(case)}"
        assert not events(trace, Logged), f"seed {seed}: {events(trace, Logged)}"
        assert loads(dumps(case)) == case
    gc.collect()
    assert capfd.readouterr() == ("", "")


def test_what_trtllms_server_does_to_a_limit_is_found():
    """It overwrites whatever limit the client sent: a pinned budget has no effect there."""
    faults = tuple(AbortAll(AfterTokens(0, tokens), 0) for tokens in (4, 8, 12))
    case = Case(Budget(8, 10, 64), (Session(2),), faults, server=ServerSettings("trtllm"))
    assert {violation.invariant for violation in judge(case, run_world(case, load_sut(CLEAN)))} == {"B1", "B10"}


def test_pinning_each_turn_overruns_a_trajectory():
    """What response_length limits is the Case's to say: the same client is right by the turn, wrong by the whole."""
    for policy, found in (("turn", set()), ("trajectory", {"B1"})):
        case = Case(Budget(4, 10, 64, policy=policy), (Session(4, (Turn(8, 1), Turn())),))
        assert {violation.invariant for violation in judge(case, run_world(case, load_sut(CLEAN)))} == found


def test_known_good_is_good_in_a_large_world():
    sessions = tuple(Session(4, (Turn(3, 1), Turn()), arrival_s=0.01 * (index % 7)) for index in range(200))
    faults = (WeightUpdate(AtTime(0.05), 1.0, tuple(range(40))), WeightUpdate(AtTime(0.06), 0.0, (63,)))
    case = Case(BUDGET, sessions, faults, replicas=64)
    trace = run_world(case, load_sut(CLEAN))
    assert judge(case, trace) == []
    assert trace.is_done
    gc.collect()


def test_every_invariant_has_a_number_a_kind_and_a_sentence():
    assert len(INVARIANTS) == 19
    assert all(invariant.statement.endswith(".") for invariant in INVARIANTS.values())
