"""Worlds of the size of a training run: client, transport, trace, engines, weight updates, resumes and invariants.

Lengths are those of load GRPO, repeated, with eight responses to a prompt; prefix caching is on. Each world runs in a
process of its own, so that its memory can be told. ROLLCAGE_LARGE=1 goes on to a million requests on 64 replicas, which
takes some minutes. Figures a second are printed and kept in extra_info; what is asserted are ratios within one run.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.benchmarks.large_worlds import Cost, Size

SIZES = [Size(requests=1_000), Size(requests=4_000, replicas=4), Size(requests=16_000, replicas=16)]
if os.environ.get("ROLLCAGE_LARGE"):
    SIZES += [Size(requests=100_000, replicas=64), Size(requests=1_000_000, replicas=64)]
GOAL_TOKENS_PER_S = 20_000_000
"""Of the whole world with a weight update every 500 steps (design §10). Where each update aborts what runs, an attempt
is at most 500 tokens long, and would have to cost 25 µs in all: see the README for what is reached."""


def run(size: Size) -> Cost:
    program = [sys.executable, "-m", "tests.benchmarks.large_worlds", msgspec.json.encode(size).decode()]
    done = subprocess.run(program, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    return msgspec.json.decode(done.stdout, type=Cost)


def measure(benchmark: Any, sizes: list[Size]) -> list[Cost]:
    costs: list[Cost] = []
    benchmark.pedantic(lambda: costs.extend(map(run, sizes)), rounds=1)
    for size, cost in zip(sizes, costs, strict=True):
        cpu_us = 1e6 * cost.cpu_s
        figures = (
            f"{size.requests:,} requests on {size.replicas}: {cost.cpu_s:.2f} CPU s, {cpu_us / size.requests:.0f} µs "
            f"a request, {cpu_us / cost.requests:.0f} µs an attempt, {cost.decoded_tokens / cpu_us:.1f}M decode "
            f"tokens/s, {cost.most_memory_mb:.0f} MB"
        )
        benchmark.extra_info[f"{size.requests} on {size.replicas}"] = figures
        print(f"\n    {figures}")
    return costs


def test_a_request_costs_the_same_in_worlds_of_all_sizes(benchmark: Any) -> None:
    costs = measure(benchmark, SIZES)
    assert not sum(cost.violations for cost in costs)
    per_request_s = [cost.cpu_s / size.requests for size, cost in zip(SIZES, costs, strict=True)]
    assert max(per_request_s) <= 2 * min(per_request_s)


def test_memory_goes_by_the_requests_that_live(benchmark: Any) -> None:
    few, many = measure(benchmark, [Size(requests=2_000, replicas=2), Size(requests=16_000, replicas=2)])
    assert many.most_memory_mb <= 1.25 * few.most_memory_mb
    assert many.most_live <= 1.25 * few.most_live


@pytest.mark.parametrize("pause_mode", [None, "abort", "keep"])
@pytest.mark.parametrize("times_longer", [1, 8])
def test_tokens_a_second_with_an_update_every_500_steps(benchmark: Any, times_longer: int, pause_mode: Any) -> None:
    update = {} if pause_mode is None else {"update_every_steps": 500, "pause_mode": pause_mode}
    (cost,) = measure(benchmark, [Size(requests=1_000, times_longer=times_longer, **update)])
    benchmark.extra_info["share_of_the_goal"] = round(cost.decoded_tokens / cost.cpu_s / GOAL_TOKENS_PER_S, 2)
    assert not cost.violations
    assert (cost.requests > 1_000) == (pause_mode == "abort")
