"""The ledger of waste: each fate where it alone is non-zero, and the sum over all of them everywhere."""

import asyncio
import os

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.case import Budget, Case, EngineSettings, Limit, ServerSettings, Session, Turn
from sim.engine import Engine
from sim.engine.timed import TimedEngine
from sim.events import Decoded, Delivered, Ended, Granted, Sent, SessionEnded, TurnEnded, TurnStarted, WorldEnded
from sim.faults import AbortAll, AbortRequest, AfterTokens, AtTime, CancelClient, WeightUpdate
from sim.search.schedules import under_schedules
from sim.search.strategies import response_cases, routing_cases
from sim.servers.port import Instead
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, builtin_names, load_sut, sut_of
from sim.tokens import first_token
from sim.trace import Trace
from sim.waste import ledger
from sim.waste.ledger import FATES, LOSSES, Tally, pieces_of, tally, waste_of
from sim.world import World, run_world
from sim.world.ports import Ports

WORLDS = int(os.environ.get("WASTE_WORLDS", "150"))
"""How many random worlds; WASTE_WORLDS=10000 for the long run."""

BUDGET = Budget(prompt_length=8, response_length=10, max_model_len=64)
ONE = Session(2)


class RetryingClient(PinnedClient):
    """Asks for the whole response once more when the first answer takes too long, and lets the first one run on."""

    async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
        try:
            return await asyncio.wait_for(super().attempt(request_id, prompt_ids, sampling_params, **kwargs), 0.055)
        except TimeoutError:
            return await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)


class GivingUpClient(PinnedClient):
    """Raises when the answer takes too long."""

    async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
        return await asyncio.wait_for(super().attempt(request_id, prompt_ids, sampling_params, **kwargs), 0.055)


def own(client):
    return sut_of(client.__name__, lambda context: client(context.config, context.balancer))


def wasted(case, sut="reference:pinned"):
    """The losses that are not zero, in tokens, and what is kept."""
    waste = waste_of(case, run_world(case, load_sut(sut) if isinstance(sut, str) else sut))
    return {fate: tally.tokens for fate, tally in waste.fates.items() if tally.tokens}


ALONE = {
    "duplicate": (Case(BUDGET, (ONE,)), own(RetryingClient), {"duplicate": 10, "kept": 10}),
    # A cancel before the first token: the call is not withdrawn, and the server decodes for nobody.
    "zombie": (Case(BUDGET, (ONE,), (CancelClient(AtTime(0.005), 0),)), "reference:pinned", {"zombie": 10}),
    "dropped": (
        Case(BUDGET, (ONE,), (AbortAll(AfterTokens(0, 4), 0),), partial_rollout=False),
        "reference:pinned",
        {"dropped": 4},
    ),
    "overrun": (
        Case(BUDGET, (ONE,), (AbortAll(AfterTokens(0, 4), 0), AbortAll(AfterTokens(0, 8), 0))),
        "reference:deferred",
        {"overrun": 6, "kept": 10},
    ),
    "sliced": (
        Case(BUDGET, (Session(2, limit=Limit("max_tokens", 13)),)),
        "reference:pinned",
        {"sliced": 3, "kept": 10},
    ),
    "discarded": (Case(BUDGET, (ONE,)), own(GivingUpClient), {"discarded": 10}),
    # The abort comes in the middle of the step of the fifth token, and the resume decodes that one again.
    "in_flight": (Case(BUDGET, (ONE,), (AbortRequest(AtTime(0.045), 0),)), CLEAN, {"in_flight": 1, "kept": 10}),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_alone(loss):
    case, sut, expected = ALONE[loss]
    assert wasted(case, sut) == expected
    assert set(expected) - {"kept"} == {loss}


def test_without_any_fault_nothing_is_lost():
    for sut in ("reference:pinned", "reference:deferred"):
        assert wasted(Case(BUDGET, (ONE, Session(3, (Turn(4, 2), Turn(3)))), replicas=2), sut) == {"kept": 10 + 4 + 3}


# Precedence, and where one fate ends and the next begins


def test_a_cancel_parts_a_burst_to_the_token():
    case = Case(BUDGET, (ONE,), (CancelClient(AtTime(0.045), 0),))
    assert wasted(case) == {"discarded": 4, "zombie": 6}


def test_a_zombie_beyond_the_budget_is_a_zombie():
    faults = (AbortAll(AfterTokens(0, 4), 0), CancelClient(AfterTokens(0, 5), 0))
    assert wasted(Case(BUDGET, (ONE,), faults), "reference:deferred") == {"sliced": 4, "discarded": 1, "zombie": 9}


def test_a_response_cancelled_while_it_waits_to_resume_is_dropped_whole():
    faults = (AbortAll(AfterTokens(0, 4), 0), AbortAll(AfterTokens(0, 7), 0), CancelClient(AtTime(1.5), 0))
    assert wasted(Case(BUDGET, (ONE,), faults)) == {"dropped": 7}


def test_a_response_with_its_whole_budget_is_not_dropped_by_an_abort():
    faults = (AbortAll(AfterTokens(0, 4), 0), AbortAll(AfterTokens(0, 12), 0))
    drops = Case(BUDGET, (ONE,), faults[1:], partial_rollout=False)
    assert wasted(drops, "reference:deferred") == {"kept": 10}
    cancelled = Case(BUDGET, (ONE,), (*faults, CancelClient(AtTime(1.5), 0)))
    assert wasted(cancelled, "reference:deferred") == {"sliced": 10, "overrun": 2}


@pytest.mark.parametrize(("context_tokens", "fate"), [(8, "kept"), (9, "dropped")])
def test_an_abort_at_the_very_end_of_the_context_drops_nothing(context_tokens, fate):
    """Four tokens of the budget are left, and nowhere to put them. Our servers say `length` there, others may not."""
    case = Case(Budget(prompt_length=8, response_length=10, max_model_len=context_tokens), (ONE,))
    trace = Trace(1)
    first_id = first_token(0) + 2
    for event in (
        TurnStarted(0, 0, 0, 2),
        Sent(0, 0, 0, 0, 0, 0, 2, {}),
        Granted(0, 0, 6, "default", 10, 6),
        Decoded(0, 0, 2, 6, 0),
        Ended(0, 0, "abort", 6),
        Delivered(0, 0, 6),
        TurnEnded(0, 0, 0, "ok", ((first_id, 6),), "aborted", 0, 0, None),
        SessionEnded(0, 0, "ok", 6, 6),
    ):
        trace.add(event)
    trace.seal(WorldEnded(0, "done"))
    assert {name: tally.tokens for name, tally in waste_of(case, trace).fates.items() if tally.tokens} == {fate: 6}


def test_an_abort_at_the_very_end_of_the_budget_drops_nothing():
    faults = (AbortAll(AfterTokens(0, 10), 0),)
    server = ServerSettings(dialect="trtllm")
    case = Case(BUDGET, (Session(2, limit=Limit("max_tokens", 10)),), faults, server=server)
    assert wasted(case) == {"kept": 10}


def test_turns_beyond_the_trajectory_are_sliced_or_by_policy_overrun():
    sessions = (Session(2, (Turn(6, 1), Turn())),)
    assert wasted(Case(BUDGET, sessions)) == {"kept": 10 - 1, "sliced": 6 + 1 + 10 - 10}
    trajectory = Budget(8, 10, 64, policy="trajectory")
    assert wasted(Case(trajectory, sessions)) == {"kept": 10 - 1, "overrun": 6 + 1 + 10 - 10}


def test_a_session_that_fails_keeps_nothing_of_its_earlier_turns():
    case = Case(BUDGET, (Session(2, (Turn(3, 1), Turn(5))),), (CancelClient(AfterTokens(0, 4), 0),))
    assert wasted(case) == {"sliced": 3, "discarded": 1, "zombie": 4}


def test_a_lost_token_is_decoded_twice():
    case = Case(BUDGET, (ONE,), (AbortAll(AfterTokens(0, 4), 0),))
    assert wasted(case, "reference:loses-tokens") == {"duplicate": 1, "kept": 10}


def test_a_world_that_never_ends_keeps_nothing():
    case = Case(BUDGET, (ONE,), (WeightUpdate(AfterTokens(0, 4)),))
    assert wasted(case, "reference:stuck-gate") == {"sliced": 4}


def test_a_token_in_flight_is_first_what_the_others_are_too():
    aborted = AbortRequest(AtTime(0.045), 0)
    assert wasted(Case(BUDGET, (ONE,), (aborted,), partial_rollout=False)) == {"dropped": 5}
    cancelled = (CancelClient(AtTime(0.005), 0), aborted)
    assert wasted(Case(BUDGET, (ONE, ONE), cancelled)) == {"zombie": 5, "kept": 10}
    late = (AbortAll(AfterTokens(0, 4), 0), AbortRequest(AtTime(0.04 + 1.0 + 0.085), 0))
    assert wasted(Case(BUDGET, (ONE,), late), "reference:deferred") == {"overrun": 7, "kept": 10}


# Prefill, depth


def prefill(case, sut=CLEAN):
    """(first, of resumes, after preemptions, found in the cache, stale)"""
    waste = waste_of(case, run_world(case, load_sut(sut)))
    counts = (waste.prefill_tokens, waste.recomputed_tokens, waste.preempted_tokens)
    return (*counts, waste.cached_tokens, waste.stale_kv_tokens)


LONG = Budget(prompt_length=64, response_length=40, max_model_len=128)


def updated(**fault):
    return Case(LONG, (Session(50),), (WeightUpdate(AfterTokens(0, 20), **fault),))


def test_where_kv_came_from_over_an_update():
    assert prefill(updated()) == (50, 70, 0, 0, 0)
    assert prefill(updated(reset_prefix_cache=False)) == (50, 6, 0, 64, 64)
    assert prefill(updated(pause_mode="keep")) == (50, 0, 70, 0, 0)
    assert prefill(updated(pause_mode="keep", reset_prefix_cache=False)) == (50, 0, 0, 0, 69)
    assert prefill(updated(pause_mode="wait")) == (50, 0, 0, 0, 0)


def test_a_preemption_is_counted_apart_from_a_resume():
    """Nine blocks for two requests of up to six each: the later one gives its own back and computes them again."""
    engine = EngineSettings(num_gpu_blocks=10, enable_prefix_caching=False)
    case = Case(Budget(64, 40, 96), (Session(50), Session(50)), server=ServerSettings(engine=engine))
    first, resumed, preempted, cached, stale = prefill(case)
    assert (first, resumed, cached, stale) == (100, 0, 0, 0)
    assert preempted > 50
    assert wasted(case) == {"kept": 80}


def test_an_abort_in_the_middle_of_a_prefill_counts_what_was_computed():
    engine = EngineSettings(max_num_batched_tokens=16)
    case = Case(LONG, (Session(50),), (AbortRequest(AtTime(0.025), 0),), server=ServerSettings(engine=engine))
    assert prefill(case)[:2] == (50, 48), "three chunks of it, and all of it by the resume: two for the first time"
    assert wasted(case) == {"kept": 40}


def test_a_resume_recomputes_its_whole_prompt():
    faults = (AbortAll(AfterTokens(0, 4), 0), AbortAll(AfterTokens(0, 8), 0))
    case = Case(BUDGET, (ONE,), faults)
    waste = waste_of(case, run_world(case, load_sut("reference:pinned")))
    assert (waste.prefill_tokens, waste.recomputed_tokens) == (2, (2 + 4) + (2 + 8))


def test_depth_is_what_a_token_reads():
    assert tally(5, 3) == Tally(3, 5 + 6 + 7)
    assert tally(5, 3).depth_tokens == 6
    assert Tally().depth_tokens == 0


def test_the_overrun_sits_deepest():
    case, sut, _ = ALONE["overrun"]
    waste = waste_of(case, run_world(case, load_sut(sut)))
    assert waste.fates["overrun"] == tally(2 + 10, 6)
    assert waste.fates["overrun"].depth_tokens > waste.decoded.depth_tokens > waste.fates["kept"].depth_tokens


QUEUEING = Case(
    LONG,
    (Session(50),) * 4,
    (AbortRequest(AtTime(0.1), 0), AbortRequest(AtTime(0.1), 1)),
    server=ServerSettings(engine=EngineSettings(max_num_seqs=1)),
)


def test_a_prompt_that_queued_at_the_abort_is_prefilled_for_the_first_time_by_the_resume():
    """One runs at once. Of two that are aborted one was running, and the other waited for it."""
    first, resumed, preempted, cached, _ = prefill(QUEUEING)
    assert first == 4 * 50
    assert (resumed, preempted, cached) == (50 + 10, 0, 0)


# Prefill against the positions themselves


@st.composite
def short_of_everything(draw):
    """Few blocks, few seats, chunks: requests queue, preempt each other and share prompts, under updates and aborts."""
    lengths = st.integers(1, 24)
    budget = Budget(24, 16, 48)
    owner = draw(lengths)
    sessions = [Session(owner, (Turn(draw(st.integers(1, 20))),))]
    for _ in range(draw(st.integers(1, 5))):
        arrival_s = draw(st.sampled_from((0.0, 0.0, 0.02, 0.3)))
        turns = tuple(Turn(draw(st.integers(1, 20)), 2) for _ in range(draw(st.integers(1, 2))))
        if draw(st.booleans()):
            sessions.append(Session(owner, turns, arrival_s, shares_prompt_with=0))
        else:
            sessions.append(Session(draw(lengths), turns, arrival_s))
    faults = []
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.one_of(st.floats(0, 2).map(AtTime), st.integers(1, 10).map(lambda n: AfterTokens(0, n))))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            faults.append(AbortAll(at, 0))
        elif kind == 1:
            faults.append(AbortRequest(at, draw(st.integers(0, len(sessions) - 1))))
        else:
            mode = draw(st.sampled_from(("abort", "keep", "wait")))
            faults.append(WeightUpdate(at, 0.1, (), draw(st.booleans()), mode))
    engine = EngineSettings(
        num_gpu_blocks=draw(st.integers(14, 40)),
        block_size=4,
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.sampled_from((6, 8, 16, 64))),
        enable_prefix_caching=draw(st.booleans()),
    )
    return Case(budget, tuple(sessions), tuple(faults), server=ServerSettings(engine=engine))


def by_positions(trace, chunks):
    """(first, again by resumes, again within a request, found in the cache), each position looked up in a set."""
    first = resumed = preempted = cached = 0
    for _, turn in trace.ledger.turns():
        before: set[int] = set()
        for attempt in turn.attempts:
            sent = attempt.sent
            if attempt.prefilled is None:
                assert not any(request == sent.request for request, *_ in chunks) or not attempt.ended
            mine: set[int] = set()
            for request, start, end, known in chunks:
                if request != sent.request or attempt.prefilled is None:
                    continue
                if known > sent.prompt_tokens:
                    mine |= set(range(known))
                found = set(range(start)) - mine
                cached += len(found)
                mine |= found
                computed = set(range(start, end))
                preempted += len(computed & mine)
                resumed += len((computed - mine) & before)
                first += len(computed - mine - before)
                mine |= computed
            before |= mine | set(range(sent.prompt_tokens + attempt.decoded_tokens if attempt.decoded_tokens else 0))
    return first, resumed, preempted, cached


def watched(case, sut=CLEAN):
    """The trace of a case, and the positions that its requests compute, chunk by chunk: (request, first position, the
    one behind the last, positions known by then)."""
    chunks = []

    def watched_engine(case):
        engine = Engine(case.server.engine.config(case.budget.context_tokens), keep_finish_steps=False)

        def begin_step():
            output = engine.begin_step()
            for request, tokens in output.scheduled.items():
                end = request.num_computed_tokens
                known = request.num_prompt_tokens + request.num_output_tokens
                decodes = bool(request.num_output_tokens) and tokens == 1 and end == known
                if not decodes:
                    chunks.append((int(request.request_id), end - tokens, end, known))
            return output

        return TimedEngine(Instead(engine, begin_step=begin_step), case.server.make_latency())

    trace = World(case, load_sut(sut), ports=Ports(make_engine=watched_engine)).run()
    return trace, chunks


def check_prefill(case, trace, chunks):
    waste = waste_of(case, trace)
    found = (waste.prefill_tokens, waste.recomputed_tokens, waste.preempted_tokens, waste.cached_tokens)
    assert found == by_positions(trace, chunks)
    ended = {attempt.sent.request for attempt in trace.ledger.attempts if attempt.prefilled is not None}
    computed = sum(end - start for request, start, end, _ in chunks if request in ended)
    assert computed == waste.prefill_tokens + waste.again_tokens
    distinct = sum(
        max((attempt.sent.prompt_tokens for attempt in turn.attempts), default=0) for _, turn in trace.ledger.turns()
    )
    assert waste.prefill_tokens <= distinct


@settings(max_examples=WORLDS, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(short_of_everything(), st.sampled_from((CLEAN, "reference:deferred", "reference:loses-tokens")))
def test_prefill_is_first_or_again_by_its_positions(case, sut):
    check_prefill(case, *watched(case, sut))


def by_attempt(case, attempt, waste, reached):
    """The planted fault: what a first attempt computes is first, and what a resume computes is again."""
    del case, reached
    if attempt.prefilled is not None:
        waste.cached_tokens += attempt.prefilled.cached_tokens
        waste.preempted_tokens += attempt.prefilled.recomputed_tokens
        if attempt.sent.attempt:
            waste.recomputed_tokens += attempt.prefilled.computed_tokens
        else:
            waste.prefill_tokens += attempt.prefilled.computed_tokens
    return 0


def test_prefill_booked_by_attempts_is_found_out(monkeypatch):
    trace, chunks = watched(QUEUEING)
    check_prefill(QUEUEING, trace, chunks)
    monkeypatch.setattr(ledger, "_count_prefill", by_attempt)
    with pytest.raises(AssertionError):
        check_prefill(QUEUEING, trace, chunks)


# The sum rule


def updated_otherwise(case, pause_mode, reset):
    """The case with other weight updates, where those are possible."""
    faults = []
    for fault in case.faults:
        if isinstance(fault, WeightUpdate):
            possible = case.server.dialect == "vllm" and case.server.engine is not None and not fault.leaving
            mode = pause_mode if possible else "abort"
            fault = msgspec.structs.replace(fault, pause_mode=mode, reset_prefix_cache=reset)
        faults.append(fault)
    return msgspec.structs.replace(case, faults=tuple(faults))


@settings(max_examples=WORLDS, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(("vllm", "sglang", "trtllm")).flatmap(
        lambda dialect: st.one_of(
            response_cases(dialect), response_cases(dialect, "trajectory"), routing_cases(dialect)
        )
    ),
    st.sampled_from([*builtin_names(), RetryingClient, GivingUpClient]),
    st.integers(0, 3),
    st.sampled_from(("abort", "abort", "keep", "wait")),
    st.booleans(),
)
def test_the_fates_add_up_to_what_was_decoded(case, subject, schedule, pause_mode, reset):
    sut = load_sut(subject) if isinstance(subject, str) else own(subject)
    case = updated_otherwise(under_schedules(case)[schedule], pause_mode, reset)
    trace = run_world(case, sut)
    waste = waste_of(case, trace)

    decoded = [event for event in trace.events if isinstance(event, Decoded)]
    in_flight = [
        (trace.ledger.attempts[event.request].sent.prompt_tokens + event.tokens, event.in_flight_tokens)
        for event in trace.events
        if isinstance(event, Ended)
    ]
    every = [(event.position, event.tokens) for event in decoded] + in_flight
    assert waste.decoded.tokens == sum(tokens for _, tokens in every)
    assert waste.decoded.kv_tokens == sum(sum(range(start, start + tokens)) for start, tokens in every)
    assert waste.wasted.tokens + waste.kept_tokens == waste.decoded.tokens
    assert waste.stale_kv_tokens == 0 or not reset or subject == "reference:keeps-cache"
    assert all(piece.tokens > 0 and piece.fate in FATES for piece in pieces_of(case, trace))

    by_request: dict[int, set[int]] = {}
    for piece in pieces_of(case, trace):
        positions = by_request.setdefault(piece.request, set())
        mine = set(range(piece.position, piece.position + piece.tokens))
        assert not positions & mine, "a token has two fates"
        positions |= mine
    sessions = [ended.kept_tokens for session in trace.ledger.sessions.values() if (ended := session.ended) is not None]
    assert waste.kept_tokens <= min(sum(sessions), waste.delivered_tokens)
