"""The rules of a step, one by one, each with the smallest example that shows it.

Whether the rules are vLLM's is not judged here but in test_conformance.py and tests/conformance/test_live.py.
"""

import pytest

from tests.engine.make import add, add_all, make_engine, scheduled


class TestTokenBudget:
    def test_requests_share_the_budget_and_only_a_finished_prefill_samples(self) -> None:
        engine = make_engine(max_num_batched_tokens=8)
        add_all(engine, {"a": 5, "b": 6, "c": 3})
        first = engine.step()
        assert first.scheduled == {"a": 5, "b": 3}
        assert first.emitted == {"a": 1}
        assert scheduled(engine, 2) == [{"a": 1, "b": 3, "c": 3}, {"a": 1, "b": 1, "c": 1}]

    def test_without_chunked_prefill_the_first_that_does_not_fit_stops_the_scan(self) -> None:
        engine = make_engine(max_num_batched_tokens=16, enable_chunked_prefill=False)
        add_all(engine, {"a": 9, "b": 9, "c": 3})
        # c would fit beside a, but is not pulled ahead of b.
        assert scheduled(engine, 2) == [{"a": 9}, {"a": 1, "b": 9, "c": 3}]

    def test_a_long_prefill_is_cut_while_there_is_anyone_else(self) -> None:
        engine = make_engine(long_prefill_token_threshold=4)
        add_all(engine, {"a": 10, "b": 3}, max_tokens=2)
        assert scheduled(engine, 3) == [{"a": 4, "b": 3}, {"a": 4, "b": 1}, {"a": 2}]

    def test_a_long_prefill_that_is_alone_is_not_cut(self) -> None:
        engine = make_engine(long_prefill_token_threshold=4)
        add(engine, "a", 10)
        assert scheduled(engine, 1) == [{"a": 10}]

    def test_the_threshold_cuts_even_with_chunked_prefill_off(self) -> None:
        engine = make_engine(long_prefill_token_threshold=4, enable_chunked_prefill=False)
        add_all(engine, {"a": 10, "b": 3})
        assert scheduled(engine, 1) == [{"a": 4, "b": 3}]

    def test_a_budget_smaller_than_the_batch_goes_to_those_in_front(self) -> None:
        engine = make_engine(max_num_batched_tokens=2, max_num_seqs=3)
        add_all(engine, {"a": 1, "b": 1, "c": 1}, max_tokens=3)
        # vLLM refuses such settings at start-up; its scheduler lets c wait until a slot in the budget is free.
        assert scheduled(engine, 5) == [{"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"c": 1}, {"c": 1}]


class TestAdmission:
    def test_a_slot_that_gets_free_is_filled_in_the_next_step(self) -> None:
        engine = make_engine(max_num_seqs=1)
        add(engine, "a", 3, max_tokens=2)
        add(engine, "b", 3)
        assert scheduled(engine, 3) == [{"a": 3}, {"a": 1}, {"b": 3}]

    def test_the_whole_prompt_must_fit_not_just_its_first_chunk(self) -> None:
        engine = make_engine(num_gpu_blocks=7, max_num_batched_tokens=8)
        add_all(engine, {"a": 12, "b": 16})
        assert scheduled(engine, 2) == [{"a": 8}, {"a": 4}]

    def test_or_just_its_first_chunk_if_so_set(self) -> None:
        engine = make_engine(num_gpu_blocks=7, max_num_batched_tokens=8, scheduler_reserve_full_isl=False)
        add_all(engine, {"a": 12, "b": 16})
        assert scheduled(engine, 2) == [{"a": 8}, {"a": 4, "b": 4}]

    def test_the_head_of_the_queue_holds_back_those_that_would_fit(self) -> None:
        engine = make_engine(num_gpu_blocks=7)
        add_all(engine, {"a": 12, "b": 16, "c": 4}, max_tokens=2)
        assert engine.step().waiting == ["b", "c"]

    def test_the_watermark_is_left_free_while_anything_runs(self) -> None:
        engine = make_engine(num_gpu_blocks=12, watermark=0.25)  # int(0.25 * 12) = 3 of 11 blocks
        add_all(engine, {"a": 24, "b": 12})
        assert engine.step().running == ["a"]  # 6 + 3 + 3 > 11

    def test_the_watermark_does_not_keep_out_the_first(self) -> None:
        engine = make_engine(num_gpu_blocks=12, watermark=0.25)
        add(engine, "a", 40)
        assert engine.step().running == ["a"]


class TestPreemption:
    def make_short_of_blocks(self, **settings: object) -> list[dict[str, int]]:
        engine = make_engine(num_gpu_blocks=7, **settings)
        add_all(engine, {"a": 6, "b": 6, "c": 6})
        steps = [engine.step() for _ in range(9)]
        assert [step.preempted for step in steps[:8]] == [[], [], [], ["c"], [], [], [], ["b"]]
        assert steps[7].waiting == ["b", "c"]  # to the front
        return [step.scheduled for step in steps]

    def test_the_last_to_come_goes_and_what_it_computed_is_found_in_the_cache(self) -> None:
        assert self.make_short_of_blocks()[3:9] == [{"a": 1, "b": 1}] * 4 + [{"a": 1}, {"b": 5}]

    def test_without_a_cache_it_is_computed_again(self) -> None:
        assert self.make_short_of_blocks(enable_prefix_caching=False)[8] == {"b": 13}

    def test_nobody_is_admitted_in_a_step_that_preempted(self) -> None:
        engine = make_engine(num_gpu_blocks=5)
        add_all(engine, {"a": 7, "b": 8})
        engine.step()
        add(engine, "c", 1)
        step = engine.step()
        assert (step.preempted, step.waiting, step.free_blocks) == (["b"], ["b", "c"], 2)

    def test_priority_chooses_the_lowest_and_of_equals_the_latest(self) -> None:
        engine = make_engine(num_gpu_blocks=7, scheduling_policy="priority")
        for request_id, priority, arrival_time in (("a", 1, 2.0), ("b", 0, 1.0), ("c", 1, 3.0)):
            add(engine, request_id, 6, priority=priority, arrival_time=arrival_time)
        assert engine.step().running == ["b", "a", "c"]
        assert [engine.step().preempted for _ in range(3)] == [[], [], ["c"]]

    def test_a_victim_that_was_served_already_gives_its_tokens_back(self) -> None:
        engine = make_engine(num_gpu_blocks=5, scheduling_policy="priority")
        add(engine, "low", 7, priority=5)
        engine.step()
        add(engine, "high", 7, priority=0)
        engine.step()
        step = engine.step()  # both need a third block, low comes first and gets none
        assert step.preempted == ["low"]
        assert step.scheduled == {}  # and high, behind it, gets nothing in this step either
        assert engine.step().scheduled == {"high": 1}

    def test_a_newcomer_preempts_nobody_while_blocks_are_free(self) -> None:
        engine = make_engine(num_gpu_blocks=5, scheduling_policy="priority")
        add(engine, "low", 8, priority=5)
        engine.step()
        add(engine, "high", 12, priority=0)
        assert engine.step().running == ["low"]


class TestFinish:
    @pytest.mark.parametrize(
        ("fields", "num_tokens", "reason"),
        [
            ({"max_tokens": 3}, 3, "length"),
            ({"max_tokens": 3, "stop_at": 1}, 2, "stop"),
            ({"max_tokens": 3, "stop_at": 2}, 3, "stop"),  # the stop is looked at first
            ({"max_tokens": 3, "stop_at": 3}, 3, "length"),
            ({"max_tokens": 100}, 4, "length"),  # 60 + 4 = max_model_len
        ],
    )
    def test_a_stop_is_looked_at_before_a_length(self, fields: dict[str, int], num_tokens: int, reason: str) -> None:
        engine = make_engine()
        add(engine, "a", 60, **fields)
        steps = [engine.step() for _ in range(num_tokens)]
        assert [step.finished for step in steps] == [{}] * (num_tokens - 1) + [{"a": reason}]
        assert steps[-1].free_blocks == 100  # in the same step


class TestAbort:
    def test_blocks_are_free_at_once(self) -> None:
        engine = make_engine()
        add(engine, "a", 10)
        engine.step()
        assert engine.abort("a")
        step = engine.step()
        assert (step.scheduled, step.free_blocks) == ({}, 100)

    def test_in_every_state(self) -> None:
        engine = make_engine(num_gpu_blocks=7, max_num_seqs=3)
        add_all(engine, {"a": 6, "b": 6, "c": 6, "d": 6})
        engine.advance(until_step=4)
        assert engine.step().waiting == ["c", "d"]
        for request_id in ("c", "d", "b", "a"):  # preempted, waiting, running, running
            assert engine.abort(request_id)
            assert not engine.abort(request_id)
        assert not engine.has_work
        assert engine.step().free_blocks == 6

    def test_of_an_unknown_id_is_ignored(self) -> None:
        assert not make_engine().abort("nobody")


class TestPause:
    def test_abort_ends_all_and_lets_new_ones_wait(self) -> None:
        engine = make_engine()
        add_all(engine, {"a": 3, "b": 3})
        engine.step()
        assert engine.pause("abort") == ["a", "b"]
        add(engine, "c", 3)
        assert engine.step().scheduled == {}
        assert not engine.has_work
        engine.resume()
        assert engine.step().scheduled == {"c": 3}

    def test_wait_lets_those_that_run_come_to_their_end(self) -> None:
        engine = make_engine(max_num_seqs=1)
        add_all(engine, {"a": 3, "b": 3}, max_tokens=3)
        engine.step()
        assert engine.pause("wait") == []
        assert [run.finish_reason for run in engine.advance(until_step=100)] == ["length"]
        assert (engine.steps_done, engine.stuck) == (3, None)
        engine.resume()
        assert engine.step().scheduled == {"b": 3}

    def test_keep_freezes_them(self) -> None:
        engine = make_engine()
        add(engine, "a", 3)
        engine.step()
        engine.pause("keep")
        step = engine.step()
        assert (step.scheduled, step.emitted, step.running) == ({}, {}, ["a"])
        assert engine.advance(until_step=100) == []
        engine.resume()
        assert engine.step().scheduled == {"a": 1}

    def test_an_unknown_mode_is_refused(self) -> None:
        with pytest.raises(ValueError, match="mode='stop' is not possible: it must be one of abort, wait, keep"):
            make_engine().pause("stop")  # type: ignore[arg-type]


class TestAsyncScheduling:
    """Depth 2: a step is scheduled before the tokens of the one before are known. Not confirmed on a GPU."""

    def test_tokens_come_a_step_later(self) -> None:
        engine = make_engine(async_scheduling=True)
        add(engine, "a", 3, max_tokens=2)
        steps = [engine.step() for _ in range(3)]
        assert [step.scheduled for step in steps] == [{"a": 3}, {"a": 1}, {}]
        assert [step.emitted for step in steps] == [{}, {"a": 1}, {"a": 1}]
        assert steps[2].finished == {"a": "length"}  # a length end is foreseen, and nothing is computed beyond it

    def test_a_stop_costs_one_token_that_is_dropped(self) -> None:
        engine = make_engine(async_scheduling=True)
        add(engine, "a", 3, max_tokens=8, stop_at=1)
        steps = [engine.step() for _ in range(4)]
        assert [step.scheduled for step in steps] == [{"a": 3}, {"a": 1}, {"a": 1}, {}]
        assert [step.emitted for step in steps] == [{}, {"a": 1}, {"a": 1}, {}]

    def test_a_block_is_taken_for_a_token_that_has_not_come_yet(self) -> None:
        engine = make_engine(async_scheduling=True)
        add(engine, "a", 4)
        assert engine.step().free_blocks == 99
        step = engine.step()
        assert (step.emitted, step.free_blocks) == ({"a": 1}, 98)  # without async it has come in step 1

    def test_an_abort_drops_what_is_in_flight(self) -> None:
        engine = make_engine(async_scheduling=True)
        add(engine, "a", 3)
        engine.step()
        engine.abort("a")
        assert engine.step().emitted == {}

    def test_a_preempted_request_still_gets_what_is_in_flight(self) -> None:
        engine = make_engine(num_gpu_blocks=5, async_scheduling=True)
        add(engine, "a", 7)
        add(engine, "b", 7)
        steps = [engine.step() for _ in range(3)]
        assert steps[2].preempted == ["b"]
        assert steps[2].emitted == {"a": 1, "b": 1}

    def test_but_not_if_a_cache_reset_preempted_it(self) -> None:
        engine = make_engine(async_scheduling=True)
        add(engine, "a", 3)
        engine.step()
        assert engine.reset_prefix_cache(reset_running_requests=True)
        step = engine.step()
        assert (step.preempted, step.scheduled, step.emitted) == (["a"], {"a": 3}, {})
