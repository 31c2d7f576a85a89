"""The timed engine: when steps start and end, what interferes with them, and that planning many changes nothing."""

import random
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine import Engine, EngineConfig, StepTotals
from sim.engine.latency import Affine, Constant, Fitted, Latency, Roofline
from sim.engine.port import Burst, Moment, Prefill, Stale
from sim.engine.timed import TimedEngine
from sim.tokens import TokenIds

STEP_NS = 10


def make_timed(latency: Latency | None = None, **settings: Any) -> TimedEngine:
    defaults: dict[str, Any] = {
        "num_gpu_blocks": 101,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
    }
    return TimedEngine(Engine(EngineConfig(**(defaults | settings))), latency or Constant(STEP_NS))


def add(timed: TimedEngine, now_ns: int, request: int, prompt_tokens: int = 4, max_tokens: int = 5) -> None:
    timed.add(now_ns, request, range(10_000 * request, 10_000 * request + prompt_tokens), max_tokens, None)


def run_until(timed: TimedEngine, until_ns: int) -> list[tuple[int, Burst]]:
    """As a server does with nothing else to do; moments at until_ns itself are left."""
    bursts = []
    for _ in range(10_000):
        moment = timed.next_moment()
        if moment is None or moment.at_ns >= until_ns:
            return bursts
        bursts += [(moment.at_ns, burst) for burst in timed.advance(moment.at_ns)]
        if moment.last:
            timed.start(moment.at_ns)
    raise AssertionError("it goes on and on")


# When steps start and end


def test_a_step_starts_as_the_last_thing_at_its_instant() -> None:
    timed = make_timed()
    add(timed, 100, 1)
    assert timed.next_moment() == Moment(100, last=True)
    add(timed, 100, 2, max_tokens=1)
    timed.start(100)
    assert timed.step_end_ns(100) == 110

    assert timed.next_moment() == Moment(110, last=False)
    (burst,) = timed.advance(110)
    assert (burst.request, burst.tokens, burst.finish) == (2, 1, "length")
    assert timed.step_end_ns(110) is None
    assert timed.next_moment() == Moment(110, last=True)


def test_what_arrives_while_a_step_is_under_way_waits_for_the_next_one() -> None:
    timed = make_timed()
    add(timed, 0, 1, max_tokens=3)
    timed.start(0)
    add(timed, 5, 2, max_tokens=1)
    assert [(t_ns, burst.request) for t_ns, burst in run_until(timed, 1000)] == [(20, 2), (30, 1)]


def test_nothing_is_decoded_before_its_step_ends() -> None:
    timed = make_timed()
    add(timed, 0, 1)
    timed.start(0)
    assert timed.flush(9) == []
    assert timed.flush(10) == [Burst(1, 1, None)]
    timed.start(10)
    assert timed.flush(29) == [Burst(1, 1, None)]
    assert timed.flush(30) == [Burst(1, 1, None)]


def test_steps_that_only_decode_are_one_moment() -> None:
    timed = make_timed()
    add(timed, 0, 1, max_tokens=200)
    timed.start(0)
    assert timed.next_moment() == Moment(10, last=False)
    assert timed.advance(10) == []
    timed.start(10)
    assert timed.next_moment() == Moment(2000, last=False)
    (burst,) = timed.advance(2000)
    assert burst == Burst(1, 200, "length", Prefill(4, 0, 0, 0))


def test_a_watched_token_is_a_moment() -> None:
    timed = make_timed()
    add(timed, 0, 1, max_tokens=200)
    timed.watch(1, 70)
    assert run_until(timed, 701) == [(700, Burst(1, 70, None))]
    timed.watch(1, 71)
    assert run_until(timed, 1999) == [(710, Burst(1, 1, None))]


def test_a_watch_shortens_what_is_planned_already() -> None:
    timed = make_timed()
    add(timed, 0, 1, max_tokens=200)
    run_until(timed, 20)
    timed.watch(1, 7)
    assert run_until(timed, 1999) == [(70, Burst(1, 7, None))]


def test_no_tokens_are_decoded_at_once() -> None:
    timed = make_timed()
    add(timed, 50, 1, max_tokens=0)
    assert timed.next_moment() == Moment(0, last=False)
    assert timed.advance(50) == [Burst(1, 0, "length", Prefill(0, 0, 0, 0))]
    assert timed.next_moment() is None


# What interferes


def test_an_abort_leaves_the_token_in_flight() -> None:
    timed = make_timed()
    add(timed, 0, 1)
    add(timed, 0, 2)
    run_until(timed, 20)
    assert [burst.tokens for burst in timed.flush(25)] == [2, 2]
    assert timed.abort(2).in_flight_tokens == 1
    assert timed.flush(30) == [Burst(1, 1, None)]
    assert timed.abort(1).in_flight_tokens == 0, "between steps nothing is"
    assert timed.next_moment() is None


def test_a_request_that_waits_has_nothing_in_flight() -> None:
    timed = make_timed(max_num_seqs=1)
    add(timed, 0, 1)
    add(timed, 0, 2)
    run_until(timed, 5)
    timed.flush(5)
    assert timed.abort(2) == (0, Prefill(0, 0, 0, 0))


def test_a_pause_lets_nobody_in_until_the_resume() -> None:
    timed = make_timed()
    timed.pause(0)
    add(timed, 5, 1, max_tokens=1)
    assert timed.next_moment() is None
    timed.resume(40)
    assert [t_ns for t_ns, _ in run_until(timed, 1000)] == [50]


def test_a_request_that_can_never_fit_is_stuck() -> None:
    timed = make_timed(num_gpu_blocks=3)
    add(timed, 0, 1, prompt_tokens=20)
    assert run_until(timed, 10**6) == []
    assert timed.stuck == "request '1' at the head of the queue needs 5 blocks and the pool has 2"
    assert timed.next_moment() is None


# Where the KV comes from


def test_prompt_tokens_come_from_the_cache_or_are_computed() -> None:
    timed = make_timed()
    prompt = range(1000, 1010)
    timed.add(0, 1, prompt, 1, None)
    timed.add(20, 2, prompt, 1, None)
    assert [burst.prefill for _, burst in run_until(timed, 1000)] == [Prefill(10, 0, 0, 0), Prefill(2, 8, 0, 0)]


@pytest.mark.parametrize(("reset", "prefill"), [(True, Prefill(10, 0, 0, 0)), (False, Prefill(2, 8, 0, 8))])
def test_kv_of_older_weights_is_stale_unless_the_cache_was_reset(reset: bool, prefill: Prefill) -> None:
    timed = make_timed()
    prompt = range(1000, 1010)
    timed.add(0, 1, prompt, 1, None)
    run_until(timed, 100)
    timed.flush(100)
    if reset:
        assert timed.reset_prefix_cache()
    assert timed.set_weight_version(1) == Stale(0, 0)
    timed.add(100, 2, prompt, 1, None)
    assert [burst.prefill for _, burst in run_until(timed, 1000)] == [prefill]


def test_what_a_preempted_request_computes_again_is_told_apart() -> None:
    timed = make_timed(num_gpu_blocks=7, enable_prefix_caching=False)
    for request in (1, 2):
        add(timed, 0, request, prompt_tokens=6, max_tokens=12)
    prefills = {burst.request: burst.prefill for _, burst in run_until(timed, 10_000)}
    assert prefills[1] == Prefill(6, 0, 0, 0)
    assert prefills[2].computed_tokens == 6
    assert prefills[2].recomputed_tokens > 6


def test_a_request_preempted_in_its_prefill_computes_only_again_what_it_had() -> None:
    timed = make_timed(num_gpu_blocks=9, long_prefill_token_threshold=2, max_model_len=32, enable_prefix_caching=False)
    add(timed, 0, 1, prompt_tokens=8, max_tokens=20)
    add(timed, 0, 2, prompt_tokens=24, max_tokens=1)
    prefills = {burst.request: burst.prefill for _, burst in run_until(timed, 10_000)}
    assert prefills[1] == Prefill(8, 0, 0, 0)
    assert prefills[2].computed_tokens == 24
    assert 0 < prefills[2].recomputed_tokens < 24


# Planning many steps changes nothing


class SteppedEngine(Engine):
    """Takes every step by itself."""

    def decode_steps(self, limit: int) -> tuple[int, bool]:
        del limit
        return 0, False


LATENCIES: list[Latency] = [
    Constant(7),
    Constant(7, 5),
    Fitted(Affine(10**7, 10**5, 333_333)),
    Roofline("H100-SXM", "Qwen2.5-0.5B", overhead_ns=3),
]


def life(seed: int, engine_class: type[Engine]) -> list[Any]:
    """Everything that a server hears of an engine with this seed's requests and interferences."""
    draw = random.Random(seed)
    latency = draw.choice(LATENCIES)
    config = EngineConfig(
        num_gpu_blocks=draw.choice([17, 24, 60]),
        block_size=4,
        max_num_seqs=draw.choice([2, 4, 8]),
        max_num_batched_tokens=draw.choice([16, 64]),
        max_model_len=60,
        enable_prefix_caching=draw.random() < 0.7,
        scheduling_policy=draw.choice(["fcfs", "fcfs", "priority"]),
        long_prefill_token_threshold=draw.choice([0, 0, 5]),
        watermark=draw.choice([0.0, 0.0, 0.1]),
    )
    timed = TimedEngine(engine_class(config), latency)
    usual_ns = latency.stretch(StepTotals(4, 0, 4, 60)).step_ns
    heard: list[Any] = []
    now_ns, requests = 0, 0
    live: list[int] = []

    def hear(bursts: list[Burst]) -> None:
        heard.extend((now_ns, burst) for burst in bursts)
        for burst in bursts:
            if burst.finish is not None and burst.request in live:
                live.remove(burst.request)

    def until(next_ns: int) -> None:
        nonlocal now_ns
        for _ in range(10_000):
            moment = timed.next_moment()
            if moment is None or moment.at_ns >= next_ns:
                break
            now_ns = max(now_ns, moment.at_ns)
            hear(timed.advance(now_ns))
            if moment.last:
                timed.start(now_ns)
        now_ns = max(now_ns, next_ns)

    for _ in range(draw.randint(1, 25)):
        until(now_ns + draw.choice([0, usual_ns, 3 * usual_ns, draw.randint(0, 40 * usual_ns)]))
        what = draw.random()
        if what < 0.5:
            own, num_tokens = 50_000 * (requests + 1), draw.choice([draw.randint(1, 20), 1, 59])
            num_shared = draw.choice([0, num_tokens, draw.randint(0, num_tokens)])
            prompt = TokenIds.counting_from(0, num_shared) + TokenIds.counting_from(own, num_tokens - num_shared)
            most = min(60 - num_tokens, draw.choice([draw.randint(1, 40), 0, 1, 60]))
            stop, base = draw.choice([None, draw.randint(1, 40)]), draw.choice([None, own + 1000])
            timed.add(now_ns, requests, prompt, most, stop, base)
            live.append(requests)
            requests += 1
        elif what < 0.65 and live:
            hear(timed.flush(now_ns))
            timed.watch(draw.choice([*live, 0]), draw.randint(1, 30))
        elif what < 0.8 and live:
            hear(timed.flush(now_ns))
            if live:
                left = timed.abort(live.pop(draw.randrange(len(live))))
                heard.append((now_ns, left))
        elif what < 0.9:
            hear(timed.flush(now_ns))
        else:
            end_ns = timed.step_end_ns(now_ns)
            heard.append((now_ns, end_ns))
            until(now_ns if end_ns is None else end_ns)
            hear(timed.flush(now_ns))
            if end_ns is not None:
                pauses = draw.random() < 0.6
                mode: Literal["wait", "keep"] = draw.choice(["wait", "keep"])
                if pauses:
                    timed.pause(now_ns, mode)
                    until(now_ns + draw.choice([0, usual_ns, draw.randint(0, 40 * usual_ns)]))
                if timed.step_end_ns(now_ns) is None:
                    hear(timed.flush(now_ns))
                    heard.append(timed.set_weight_version(len(heard)))
                    heard.append(timed.reset_prefix_cache(mode == "keep" and draw.random() < 0.5))
                if pauses and draw.random() < 0.9:  # else it stays paused for a while
                    timed.resume(now_ns)
    timed.resume(now_ns)
    until(10**15)
    return [*heard, timed.stuck]


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_planning_many_steps_at_once_changes_nothing(seed: int) -> None:
    assert life(seed, Engine) == life(seed, SteppedEngine)
