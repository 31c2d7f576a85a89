"""Worlds of the size of a training run: client, transport, trace, engines, weight updates, resumes and invariants.

Lengths are those of load GRPO, repeated, with eight responses to a prompt; prefix caching is on. Each world runs in a
process of its own, so that its memory can be told. ROLLCAGE_LARGE=1 goes on to a million requests on 64 replicas, which
takes some minutes. Figures a second are printed and kept in extra_info; what is asserted are ratios within one run.
"""

import asyncio
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sim.sut.reference.client import PinnedClient
from sim.sut.verl.config import Config
from sim.sut.verl.servers import TokenOutput
from sim.tokens import LogProbs, TokenIds
from tests.benchmarks.large_worlds import Cost, Size

SIZES = [Size(requests=1_000), Size(requests=4_000, replicas=4), Size(requests=16_000, replicas=16)]
if os.environ.get("ROLLCAGE_LARGE"):
    SIZES += [Size(requests=100_000, replicas=64), Size(requests=1_000_000, replicas=64)]
GOAL_TOKENS_PER_S = 20_000_000
"""Of the whole world with a weight update every 500 steps (design §10). Where each update aborts what runs, an attempt
is at most 500 tokens long and would have to cost 25 µs in all, which is what the client alone takes."""


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
    assert not any(cost.violations for cost in costs)
    per_request_s = [cost.cpu_s / size.requests for size, cost in zip(SIZES, costs, strict=True)]
    assert max(per_request_s) <= 2 * min(per_request_s)


def test_memory_goes_by_the_requests_that_live(benchmark: Any) -> None:
    few, many = measure(benchmark, [Size(requests=2_000, replicas=2), Size(requests=16_000, replicas=2)])
    assert many.most_memory_mb <= 1.25 * few.most_memory_mb
    assert many.most_live <= 1.25 * few.most_live


UPDATES: dict[str, dict[str, Any]] = {
    "never": {},
    "abort": {"update_every_steps": 500},
    "keep": {"update_every_steps": 500, "pause_mode": "keep"},
    "keep, cache kept": {"update_every_steps": 500, "pause_mode": "keep", "reset_prefix_cache": False},
}


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("times_longer", [1, 8])
def test_tokens_a_second_with_an_update_every_500_steps(benchmark: Any, times_longer: int, update: str) -> None:
    """Where updates abort, a response of load GRPO takes 5 attempts, and one that is 8 times longer 42."""
    (cost,) = measure(benchmark, [Size(requests=1_000, times_longer=times_longer, **UPDATES[update])])
    benchmark.extra_info["share_of_the_goal"] = round(cost.decoded_tokens / cost.cpu_s / GOAL_TOKENS_PER_S, 2)
    assert set(cost.violations) == ({"S2"} if update == "keep, cache kept" else set())
    assert (cost.requests > 1_000) == (update == "abort")


def test_what_the_client_alone_costs(benchmark: Any) -> None:
    """The reference client on plain asyncio, resumed every 500 tokens by a server that answers at once: what no
    simulator can go below, and with that the most tokens a second of a world in which updates abort."""
    attempts = SESSIONS * ATTEMPTS
    rounds: list[float] = []

    def run() -> None:
        start_s = time.process_time()
        asyncio.run(resumed_by_nobody_in_particular())
        rounds.append(time.process_time() - start_s)

    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    attempt_us = 1e6 * median(rounds) / attempts
    figures = f"{attempt_us:.0f} µs an attempt: {500 / attempt_us:.1f}M decode tokens/s at most"
    benchmark.extra_info["the client alone"] = figures
    print(f"\n    {figures}")


SESSIONS, ATTEMPTS = 256, 16


class AtOnce:
    """Handles of a server and of a balancer: what they are asked is answered in the next turn of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=partial(self._answer, name))

    def _answer(self, name: str, **arguments: Any) -> "asyncio.Future[Any]":
        future = self._loop.create_future()
        result: Any = ("s0", self) if name == "acquire_server" else None
        if name == "generate":
            first = arguments["prompt_ids"][-1] + 1
            result = TokenOutput(TokenIds(((first, 500),)), LogProbs(((first, 500, 0),)), "aborted")
        self._loop.call_soon(future.set_result, result)
        return future


async def resumed_by_nobody_in_particular() -> None:
    config = Config(
        actor_rollout_ref=Config(rollout=Config(response_length=500 * ATTEMPTS, max_model_len=1 << 20)),
        async_training=Config(partial_rollout=True),
    )
    client = PinnedClient(config, AtOnce())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.sut.reference.client.RESUME_WAIT_S", 0)
        prompt = TokenIds(((1000, 512),))
        calls = [
            client.generate(f"session-{i}", prompt_ids=prompt, sampling_params={"logprobs": True})
            for i in range(SESSIONS)
        ]
        assert {len(output.token_ids) for output in await asyncio.gather(*calls)} == {500 * ATTEMPTS}
