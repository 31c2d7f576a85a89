"""Every step of every recorded schedule, and that a wrong engine would be noticed."""

from typing import Any

import pytest

from sim.engine.prefix_cache import PrefixCache
from sim.engine.request import Request
from tests.conformance.loads import LOADS, engine_with_load
from tests.conformance.replay import first_difference, read_schedules

SCENARIOS = read_schedules("recorded_scenarios")


@pytest.mark.parametrize("name", ["recorded_scenarios", "recorded_stuck", "own", "drift"])
def test_every_step_equals_the_recorded_one(name: str) -> None:
    assert [d for schedule in read_schedules(name) if (d := first_difference(schedule)) is not None] == []


@pytest.mark.parametrize("name", LOADS)
def test_loads_come_out_as_recorded(name: str) -> None:
    load = LOADS[name]
    run = engine_with_load(load).run()
    assert run.stuck is None
    assert run.steps == load["steps"]
    assert run.preemptions == load["preemptions"]
    assert run.scheduled_tokens == load["scheduled_tokens"]
    assert run.finish_step == {f"q{i}": step for i, step in enumerate(load["finish_step"])}


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("num_gpu_blocks", lambda engine: engine["num_gpu_blocks"] + 1),
        ("max_num_batched_tokens", lambda engine: engine["max_num_batched_tokens"] + 1),
        ("max_num_seqs", lambda engine: engine["max_num_seqs"] + 1),
        ("watermark", lambda _: 0.0),
        ("scheduler_reserve_full_isl", lambda _: False),
    ],
)
def test_a_wrong_setting_is_noticed(setting: str, wrong: Any) -> None:
    differences = (first_difference(s, **{setting: wrong(s["engine"])}) for s in SCENARIOS)
    # One more block is seen in free_blocks at once; one more setting only where it binds.
    assert sum(d is not None for d in differences) >= (len(SCENARIOS) if setting == "num_gpu_blocks" else 5)


def test_a_wrong_eviction_order_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    release = PrefixCache.release

    def release_first_block_first(self: PrefixCache, request: Request) -> int:
        self.held[request].reverse()
        return release(self, request)

    monkeypatch.setattr(PrefixCache, "release", release_first_block_first)
    assert sum(first_difference(s) is not None for s in SCENARIOS) >= 5


def test_each_version_differs_from_the_next_where_the_table_says_so() -> None:
    next_version = {"0.24.0": "0.25", "0.28.0": "0.29", "0.30.0": "0.31"}
    drift = read_schedules("drift")
    assert {schedule["vllm"] for schedule in drift} == set(next_version)
    for schedule in drift:
        assert first_difference(schedule, vllm_version=next_version[schedule["vllm"]]) is not None
