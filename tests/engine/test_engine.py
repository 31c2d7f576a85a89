"""The interface: what may be asked for, and what comes back."""

from typing import Any

import pytest

from sim.engine import Engine, EngineConfig, EngineRequest, StepTotals, TokenRun
from tests.engine.make import add, add_all, make_engine

REQUIRED = {"num_gpu_blocks": 20, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 24, "max_model_len": 48}


class TestConfig:
    def test_defaults_are_those_of_vllm(self) -> None:
        config = EngineConfig(**REQUIRED)
        assert config.enable_chunked_prefill
        assert config.enable_prefix_caching
        assert config.scheduler_reserve_full_isl
        assert not config.async_scheduling
        assert (config.scheduling_policy, config.long_prefill_token_threshold, config.watermark) == ("fcfs", 0, 0.0)

    @pytest.mark.parametrize(
        ("field", "value", "allowed"),
        [
            ("num_gpu_blocks", 1, "an int of at least 2"),
            ("block_size", 0, "an int of at least 1"),
            ("max_num_seqs", 0, "an int of at least 1"),
            ("max_num_batched_tokens", 2.5, "an int of at least 1"),
            ("max_model_len", True, "an int of at least 2"),
            ("long_prefill_token_threshold", -1, "an int of at least 0"),
            ("enable_chunked_prefill", 1, "True or False"),
            ("async_scheduling", None, "True or False"),
            ("scheduling_policy", "lifo", "one of fcfs, priority"),
            ("watermark", 1.0, r"a number in \[0, 1\)"),
            ("vllm_version", "0.23", "one of 0.24, 0.25"),
        ],
    )
    def test_a_refusal_names_the_field_the_value_and_what_is_allowed(
        self, field: str, value: Any, allowed: str
    ) -> None:
        with pytest.raises(ValueError, match=f"{field}={value!r} is not possible: it must be {allowed}"):
            EngineConfig(**{**REQUIRED, field: value})

    def test_a_patch_level_makes_no_difference(self) -> None:
        assert EngineConfig(**REQUIRED, vllm_version="0.30.1").version_rules.caps_lone_prefill


class TestAdd:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"prompt_token_ids": []}, "a prompt of 0 tokens is not possible: it must be 1 to 63"),
            ({"prompt_token_ids": range(64)}, "a prompt of 64 tokens is not possible: it must be 1 to 63"),
            ({"max_tokens": 0}, "max_tokens=0 is not possible: it must be at least 1"),
            ({"stop_at": -1}, "stop_at=-1 is not possible"),
            ({"min_tokens": 9}, "min_tokens=9 is not possible: it must be 0 to max_tokens, which is 8"),
        ],
    )
    def test_what_vllm_refuses_is_refused(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            add(make_engine(), "a", 3, **fields)

    def test_a_live_id_is_refused_and_one_that_finished_is_not(self) -> None:
        engine = make_engine()
        add(engine, "a", 3, max_tokens=1)
        with pytest.raises(ValueError, match="request_id='a' is live"):
            add(engine, "a", 3)
        engine.step()
        add(engine, "a", 3)

    def test_any_sequence_of_ints_is_a_prompt(self) -> None:
        engine = make_engine()
        for request_id, prompt in (("a", range(9)), ("b", list(range(9))), ("c", tuple(range(9)))):
            add(engine, request_id, 0, prompt_token_ids=prompt)
        assert engine.step().cached == {"a": 0, "b": 8, "c": 8}


def test_a_prompt_that_is_changed_afterwards_is_not() -> None:
    engine, prompt = make_engine(), list(range(9))
    add(engine, "a", 0, prompt_token_ids=prompt)
    prompt[0] = 77
    add(engine, "b", 0, prompt_token_ids=range(9))
    assert engine.step().cached == {"a": 0, "b": 8}


class TestAdvance:
    def test_delivers_one_run_a_request_those_that_finished_first(self) -> None:
        engine = make_engine()
        add(engine, "a", 3, max_tokens=10)
        add(engine, "b", 3, max_tokens=8, stop_at=2)
        assert engine.advance(until_step=2) == [TokenRun("a", 0, 2, None), TokenRun("b", 0, 2, None)]
        assert engine.advance(until_step=6) == [TokenRun("b", 2, 1, "stop"), TokenRun("a", 2, 4, None)]
        assert engine.steps_done == 6

    def test_stops_early_when_there_is_nothing_to_do(self) -> None:
        engine = make_engine()
        add(engine, "a", 3, max_tokens=2)
        engine.advance(until_step=100)
        assert engine.steps_done == 2

    def test_can_stop_after_a_finish(self) -> None:
        engine = make_engine()
        add(engine, "a", 3, max_tokens=2)
        add(engine, "b", 3, max_tokens=5)
        assert len(engine.advance(until_step=100, stop_after_finish=True)) == 2
        assert engine.steps_done == 2

    def test_does_not_deliver_again_what_a_step_did(self) -> None:
        engine = make_engine()
        add(engine, "a", 3)
        engine.step()
        assert engine.advance(until_step=2) == [TokenRun("a", 1, 1, None)]

    def test_delivers_to_those_that_were_preempted_meanwhile(self) -> None:
        engine = make_engine(num_gpu_blocks=7)
        add_all(engine, {"a": 6, "b": 6, "c": 6})
        assert engine.advance(until_step=4)[-1] == TokenRun("c", 0, 3, None)


def test_a_run_tells_what_came_of_all() -> None:
    engine = make_engine(num_gpu_blocks=7)
    add_all(engine, {"a": 6, "b": 6, "c": 6})
    engine.advance(until_step=5)
    run = engine.run()
    assert (run.steps, run.preemptions, run.stuck) == (14, 2, None)
    # Each computes 6 + 7 tokens once. On their return b computes 4 again and c, evicted meanwhile, all its 8.
    assert run.scheduled_tokens == 3 * (6 + 7) + 4 + 8
    assert run.finish_step == {"a": 8, "b": 9, "c": 14}


def test_an_engine_that_keeps_no_finish_steps_cannot_tell_them() -> None:
    with pytest.raises(ValueError, match="keep_finish_steps=False"):
        Engine(EngineConfig(**REQUIRED), keep_finish_steps=False).run()


def test_totals_of_a_step_are_what_its_time_depends_on() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    add_all(engine, {"a": 5, "b": 6})
    engine.step()
    assert engine.step_totals == StepTotals(
        num_scheduled_tokens=8, num_prefill_tokens=8, num_decodes=0, num_kv_tokens=8
    )
    assert engine.step().totals == StepTotals(
        num_scheduled_tokens=4, num_prefill_tokens=3, num_decodes=1, num_kv_tokens=12
    )
    engine.advance(until_step=3)
    assert engine.step_totals == StepTotals(
        num_scheduled_tokens=2, num_prefill_tokens=0, num_decodes=2, num_kv_tokens=14
    )


def test_a_step_of_an_idle_engine_does_nothing() -> None:
    engine = make_engine()
    step = engine.step()
    assert (step.scheduled, step.running, step.waiting, step.emitted, step.finished) == ({}, [], [], {}, {})
    assert (step.free_blocks, engine.steps_done, engine.stuck) == (100, 1, None)


class TestVersions:
    """Where vLLM 0.24 to 0.32 differ. tests/data/schedules/drift.jsonl.xz has schedules of the versions themselves."""

    @pytest.mark.parametrize(("vllm_version", "num_tokens"), [("0.30", 4), ("0.31", 10), ("0.32", 10)])
    def test_a_lone_prefill_is_cut_up_to_0_30(self, vllm_version: str, num_tokens: int) -> None:
        engine = make_engine(long_prefill_token_threshold=4, vllm_version=vllm_version)
        add(engine, "a", 10)
        assert engine.step().scheduled == {"a": num_tokens}

    @pytest.mark.parametrize(("vllm_version", "num_tokens", "reason"), [("0.28", 5, "length"), ("0.29", 2, "stop")])
    def test_min_tokens_hold_back_a_stop_up_to_0_28(self, vllm_version: str, num_tokens: int, reason: str) -> None:
        engine = make_engine(vllm_version=vllm_version)
        add(engine, "a", 3, max_tokens=5, min_tokens=3, stop_at=1)
        assert engine.advance(until_step=9) == [TokenRun("a", 0, num_tokens, reason)]

    def test_min_tokens_that_would_never_end_are_refused_up_to_0_28(self) -> None:
        with pytest.raises(
            ValueError, match=r"min_tokens=5 is not possible: it must be at most 4, or vLLM 0\.28 never"
        ):
            add(make_engine(vllm_version="0.28"), "a", 60, min_tokens=5)
        add(make_engine(vllm_version="0.29"), "a", 60, min_tokens=5)

    @pytest.mark.parametrize(("vllm_version", "preempted"), [("0.24", []), ("0.25", ["a"]), ("0.32", ["a"])])
    def test_0_24_does_not_name_those_that_a_reset_preempted(self, vllm_version: str, preempted: list[str]) -> None:
        engine = make_engine(vllm_version=vllm_version)
        add(engine, "a", 3)
        engine.step()
        engine.reset_prefix_cache(reset_running_requests=True)
        assert engine.step().preempted == preempted
        assert engine.preemptions == 1


def test_a_request_needs_no_more_than_an_id_and_a_prompt() -> None:
    request = EngineRequest(request_id="a", prompt_token_ids=[1, 2, 3])
    assert (request.max_tokens, request.stop_at) == (16, None)
