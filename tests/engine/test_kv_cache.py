"""Blocks: what is found in the prefix cache, what is evicted first, and what a reset does."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine import Engine, EngineRequest
from sim.engine.prefix_cache import name_chains
from sim.engine.request import Request
from sim.tokens import TokenIds
from tests.engine.make import add, make_engine


class TestPrefixCache:
    @pytest.mark.parametrize(("num_tokens", "num_cached_tokens"), [(8, 4), (9, 8), (10, 8), (11, 8), (12, 8), (13, 12)])
    def test_full_blocks_are_found_but_never_the_last_token(self, num_tokens: int, num_cached_tokens: int) -> None:
        engine = make_engine()
        for request_id in ("a", "b"):
            add(engine, request_id, 0, prompt_token_ids=range(num_tokens))
        # A block counts as cached once it is scheduled: b finds what a gets in the same step.
        assert engine.step().cached == {"a": 0, "b": num_cached_tokens}

    def test_a_block_is_found_only_behind_the_same_blocks(self) -> None:
        engine = make_engine()
        add(engine, "a", 0, prompt_token_ids=[1, 2, 3, 4, 5, 6, 7, 8, 9])
        add(engine, "b", 0, prompt_token_ids=[0, 2, 3, 4, 5, 6, 7, 8, 9])
        assert engine.step().cached == {"a": 0, "b": 0}

    def test_a_prompt_that_extends_a_running_output_finds_it(self) -> None:
        engine = make_engine()
        add(engine, "a", 0, max_tokens=20, prompt_token_ids=range(6), output_base=500)
        engine.advance(until_step=7)  # 6 + 6 tokens computed, three blocks full
        add(engine, "b", 0, prompt_token_ids=[*range(6), *range(500, 507)])
        assert engine.step().cached == {"b": 12}

    def test_a_resumed_request_computes_only_what_is_not_cached(self) -> None:
        engine = make_engine()
        add(engine, "a", 0, max_tokens=20, prompt_token_ids=range(6), output_base=500)
        engine.advance(until_step=8)
        engine.abort("a")
        resumed = {"prompt_token_ids": [*range(6), *range(500, 508)], "output_base": 508}
        add(engine, "a", 0, **resumed)
        assert engine.step().scheduled == {"a": 2}
        engine.abort("a")
        assert engine.reset_prefix_cache()
        add(engine, "a", 0, **resumed)
        assert engine.step().scheduled == {"a": 14}

    def test_ranges_lists_and_outputs_of_the_same_tokens_have_the_same_name(self) -> None:
        def names(prompt: Sequence[int], output_base: int = 900) -> list[tuple[int, int]]:
            request = EngineRequest(request_id="a", prompt_token_ids=prompt, output_base=output_base)
            return name_chains(Request.from_engine_request(request, 8, "length"), block_size=4)

        counting_up = names(range(500, 509))
        assert [first_block for first_block, _ in counting_up] == [0, 2]
        assert names(list(range(500, 509))) == counting_up
        assert names(range(500, 504), output_base=504) == counting_up[:1]  # the output counts on from the prompt
        assert names([*range(500, 509), 900, 901, 902, 903], output_base=904) == counting_up
        other = names([500, 502, 501, 503, *range(504, 509)])
        assert [first_block for first_block, _ in other] == [0, 2]
        assert not set(other) & set(counting_up)
        assert names(range(500, 518, 2)) == names(list(range(500, 518, 2)))

    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=5), st.integers(0, 40))
    def test_so_have_runs(self, runs: list[tuple[int, int]], output_base: int) -> None:
        def names(prompt: Sequence[int]) -> list[tuple[int, int]]:
            request = EngineRequest(request_id="a", prompt_token_ids=prompt, output_base=output_base)
            return name_chains(Request.from_engine_request(request, 8, "length"), block_size=4)

        prompt = TokenIds(tuple(runs))
        assert names(prompt) == names(list(prompt))

    def test_off_means_off(self) -> None:
        engine = make_engine(enable_prefix_caching=False)
        for request_id in ("a", "b"):
            add(engine, request_id, 0, prompt_token_ids=range(9))
        assert engine.step().cached == {"a": 0, "b": 0}


class TestEviction:
    """A pool of 5 blocks. p leaves two cached blocks behind, q one more, and both a nameless one that goes first."""

    def left_behind(self) -> Engine:
        engine = make_engine(num_gpu_blocks=6)
        add(engine, "p", 0, max_tokens=1, prompt_token_ids=range(100, 109))
        add(engine, "q", 0, max_tokens=1, prompt_token_ids=range(200, 205))
        engine.step()
        return engine

    @pytest.mark.parametrize(
        ("num_prompt_tokens", "p_cached_tokens", "q_cached_tokens"),
        [
            (8, 8, 4),  # takes the two nameless blocks
            (12, 4, 4),  # and the end of p, which was freed first
            (16, 0, 4),  # and the start of p
            (20, 0, 0),  # and q
        ],
    )
    def test_nameless_blocks_go_first_then_the_longest_unused_and_of_a_prefix_its_end(
        self, num_prompt_tokens: int, p_cached_tokens: int, q_cached_tokens: int
    ) -> None:
        for prompt, num_cached_tokens in ((range(100, 109), p_cached_tokens), (range(200, 205), q_cached_tokens)):
            engine = self.left_behind()
            add(engine, "new", num_prompt_tokens, max_tokens=1)
            engine.step()
            add(engine, "again", 0, prompt_token_ids=prompt)
            assert engine.step().cached == {"again": num_cached_tokens}

    def test_a_hit_is_young_again(self) -> None:
        engine = self.left_behind()
        add(engine, "p again", 0, max_tokens=1, prompt_token_ids=range(100, 109))
        engine.step()
        add(engine, "new", 12, max_tokens=1)
        engine.step()
        add(engine, "q again", 0, prompt_token_ids=range(200, 205))
        assert engine.step().cached == {"q again": 0}

    def test_a_block_that_is_in_use_cannot_be_evicted(self) -> None:
        engine = make_engine(num_gpu_blocks=6)
        add(engine, "p", 0, prompt_token_ids=range(100, 109))
        engine.step()
        add(engine, "new", 9, max_tokens=1)
        assert engine.step().waiting == ["new"]


class TestReset:
    def test_is_refused_while_anything_is_held(self) -> None:
        engine = make_engine()
        add(engine, "a", 5, max_tokens=2)
        engine.step()
        assert not engine.reset_prefix_cache()
        engine.step()
        assert engine.reset_prefix_cache()

    def test_can_preempt_all_that_run_and_then_they_compute_everything_again(self) -> None:
        engine = make_engine()
        add(engine, "a", 5)
        add(engine, "b", 9)
        engine.advance(until_step=3)
        assert engine.reset_prefix_cache(reset_running_requests=True)
        step = engine.step()
        assert step.preempted == ["a", "b"]
        assert step.scheduled == {"a": 8, "b": 12}
        assert engine.preemptions == 2


class TestWeightVersions:
    """A schedule never depends on them; they are there to say which KV outlived the weights it was computed with."""

    def test_reuse_of_older_kv_is_reported(self) -> None:
        engine = make_engine()
        add(engine, "a", 0, max_tokens=1, prompt_token_ids=range(9))
        assert engine.step().stale_cached_tokens == {}
        engine.weight_version = 1
        add(engine, "b", 0, max_tokens=1, prompt_token_ids=range(9))
        assert engine.step().stale_cached_tokens == {"b": 8}
        assert engine.stale_cached_tokens == {"b": 8}

    def test_a_reset_leaves_nothing_old(self) -> None:
        engine = make_engine()
        add(engine, "a", 0, max_tokens=1, prompt_token_ids=range(9))
        engine.step()
        engine.weight_version = 1
        engine.reset_prefix_cache()
        add(engine, "b", 0, max_tokens=1, prompt_token_ids=range(9))
        assert engine.step().stale_cached_tokens == {}

    def test_a_request_that_runs_on_over_an_update_holds_old_kv_until_it_is_preempted(self) -> None:
        engine = make_engine()
        add(engine, "a", 5)
        engine.step()
        engine.weight_version = 1
        engine.step()
        assert engine.stale_requests() == {"a": 0}
        engine.reset_prefix_cache(reset_running_requests=True)
        engine.step()
        assert engine.stale_requests() == {}

    def test_a_block_is_as_old_as_its_oldest_token(self) -> None:
        engine = make_engine()
        add(engine, "a", 0, max_tokens=8, prompt_token_ids=range(6), output_base=500)
        engine.step()
        engine.weight_version = 1  # in the middle of the second block
        engine.advance(until_step=8)  # the second and the third block full
        add(engine, "b", 0, max_tokens=1, prompt_token_ids=[*range(6), *range(500, 507)])
        step = engine.step()
        assert step.cached == {"b": 12}
        assert step.stale_cached_tokens == {"b": 8}
