"""Stuck: no step will do anything unless something happens from outside. It is said at once, with the reason."""

import pytest

from tests.conformance.replay import happen, read_schedules
from tests.engine.make import add, add_all, make_engine


def test_the_head_of_the_queue_does_not_fit() -> None:
    engine = make_engine(num_gpu_blocks=7)
    add_all(engine, {"a": 3, "b": 25, "c": 3}, max_tokens=2)
    run = engine.run()
    assert run.stuck == "request 'b' at the head of the queue needs 7 blocks and the pool has 6"
    assert run.finish_step == {"a": 2}  # c would fit, but b is in front of it
    assert run.steps == 3


def test_the_first_chunk_of_the_head_does_not_fit() -> None:
    engine = make_engine(num_gpu_blocks=3, scheduler_reserve_full_isl=False)
    add(engine, "a", 25)
    assert engine.run().stuck == "request 'a' at the head of the queue needs 7 blocks and the pool has 2"


def test_a_prompt_over_the_budget_without_chunked_prefill() -> None:
    engine = make_engine(enable_chunked_prefill=False, max_num_batched_tokens=16)
    add(engine, "a", 20)
    assert engine.run().stuck == (
        "request 'a' at the head of the queue needs 20 tokens in one step, as chunked prefill is off,"
        " and the budget is 16"
    )


def test_a_request_outgrows_the_pool() -> None:
    engine = make_engine(num_gpu_blocks=4)
    add(engine, "a", 10, max_tokens=20)
    run = engine.run()
    assert run.stuck == "request 'a' outgrew the pool: its 13 tokens need 4 blocks and the pool has 3"
    assert run.steps == 5  # 10, 1, 1, preempted, refused


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
@pytest.mark.parametrize("num_prompt_tokens", [10, 30])
def test_a_request_that_would_start_over_for_ever(enable_prefix_caching: bool, num_prompt_tokens: int) -> None:
    engine = make_engine(
        num_gpu_blocks=4,
        max_num_batched_tokens=4,
        scheduler_reserve_full_isl=False,
        enable_prefix_caching=enable_prefix_caching,
    )
    add(engine, "a", num_prompt_tokens, max_tokens=20)
    run = engine.run()
    assert run.stuck is not None
    assert "request 'a' outgrew the pool" in run.stuck or "request 'a' at the head of the queue" in run.stuck
    assert run.steps < 20


def test_those_beside_it_get_their_tokens_first() -> None:
    engine = make_engine(
        num_gpu_blocks=4, max_num_batched_tokens=6, scheduler_reserve_full_isl=False, enable_prefix_caching=False
    )
    add(engine, "outgrows", 5, max_tokens=20)
    add(engine, "b", 1, max_tokens=3)
    run = engine.run()
    assert run.stuck is not None
    assert set(run.finish_step) == {"b"}


def test_equals_under_the_priority_policy_can_preempt_one_another_for_ever() -> None:
    # Each would fit by itself. vLLM does the same: of equals it preempts the first in the running list, and admits the
    # first by id.
    engine = make_engine(
        num_gpu_blocks=5,
        scheduling_policy="priority",
        scheduler_reserve_full_isl=False,
        enable_prefix_caching=False,
        long_prefill_token_threshold=4,
    )
    add_all(engine, {"b": 13, "a": 9})
    run = engine.run()
    assert run.stuck == "requests 'b', 'a' preempt one another for ever and none gets a token"
    assert run.steps < 20
    assert not any(engine.step().emitted for _ in range(100))


def test_help_from_outside_is_noticed() -> None:
    engine = make_engine(num_gpu_blocks=7)
    add_all(engine, {"a": 25, "b": 3}, max_tokens=2)
    assert engine.run().stuck is not None
    assert engine.advance(until_step=100) == []
    engine.abort("a")
    assert engine.stuck is None
    assert engine.run().stuck is None


def test_a_pause_is_not_stuck() -> None:
    engine = make_engine()
    engine.pause("wait")
    add(engine, "a", 3)
    assert engine.run().stuck is None
    assert engine.step().scheduled == {}
    assert engine.stuck is None


def test_every_recorded_stuck_scenario_is_recognised() -> None:
    for schedule in read_schedules("recorded_stuck"):
        engine = make_engine(**schedule["engine"])
        for event in schedule["events"]:
            engine.advance(until_step=event["before_step"] - 1)
            happen(engine, event)
        run = engine.run()
        assert run.stuck is not None
        assert run.steps <= len(schedule["steps"])


def test_no_recorded_scenario_that_finishes_is_called_stuck() -> None:
    for schedule in read_schedules("recorded_scenarios"):
        engine = make_engine(**schedule["engine"])
        for event in schedule["events"]:
            for _ in range(event["before_step"] - 1 - engine.steps_done):
                engine.step()
                assert engine.stuck is None
            happen(engine, event)
        assert engine.run().stuck is None
