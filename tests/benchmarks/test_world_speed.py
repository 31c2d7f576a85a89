"""Worlds a second with all invariants on, and as a ratio to plain asyncio in the same run; goals in design §10.

The unit of the ratio is a step of a plain asyncio ring of `sleep(0)`: how many of them a world takes as long as.
"""

import asyncio
import statistics
import time
from typing import Any

import pytest

from sim.case import Budget, Case, Schedule, Session
from sim.faults import AfterTokens, WeightUpdate
from sim.invariants.judging import judge
from sim.sut.registry import CLEAN, SutError, load_sut
from sim.world import run_world
from tests.benchmarks.test_clock_speed import SLEEPS, TASKS, seconds_for

ROUNDS = 15
WORLDS = 40

MOST_RING_STEPS = {CLEAN: 3500, "verl": 4500}
"""What a world may cost: wide of the figures that are reached, since a loaded machine slows worlds more than rings."""


def eight_sessions(schedule: Schedule) -> Case:
    """8 sessions on 3 replicas, single turns of up to 64 tokens, and one weight update that aborts some of them."""
    return Case(
        budget=Budget(prompt_length=16, response_length=64),
        sessions=tuple(Session(prompt_tokens=4 + index, arrival_s=index / 10) for index in range(8)),
        faults=(WeightUpdate(at=AfterTokens(session=0, tokens=20)),),
        replicas=3,
        schedule=schedule,
    )


@pytest.mark.parametrize("schedule", [Schedule(), Schedule("random", seed=1)], ids=["fifo", "random"])
@pytest.mark.parametrize("name", [CLEAN, "verl"])
def test_worlds_a_second(benchmark: Any, name: str, schedule: Schedule) -> None:
    """The median over rounds; rings and worlds alternate, so that a slow moment hits both."""
    try:
        sut = load_sut(name)
    except SutError as error:
        pytest.skip(str(error))
    case = eight_sessions(schedule)
    assert judge(case, run_world(case, sut)) == []
    rounds: list[tuple[float, float]] = []

    def alternate() -> None:
        step_s = seconds_for(asyncio.new_event_loop) / (TASKS * SLEEPS)
        start_s = time.perf_counter()
        for _ in range(WORLDS):
            judge(case, run_world(case, sut))
        rounds.append((step_s, (time.perf_counter() - start_s) / WORLDS))

    benchmark.pedantic(alternate, rounds=ROUNDS, warmup_rounds=1)
    ring_steps = statistics.median(world_s / step_s for step_s, world_s in rounds)
    worlds_per_s = 1 / statistics.median(world_s for _, world_s in rounds)
    steps_per_s = 1 / statistics.median(step_s for step_s, _ in rounds)
    benchmark.extra_info |= {
        "worlds_per_s": round(worlds_per_s),
        "plain_steps_per_s": round(steps_per_s),
        "plain_steps_per_world": round(ring_steps),
    }
    print(
        f"\n{sut.key}, {schedule.policy}: {worlds_per_s:,.0f} worlds/s, each as long as {ring_steps:,.0f} steps of a "
        f"plain ring ({steps_per_s:,.0f}/s)"
    )
    assert ring_steps <= MOST_RING_STEPS[name]
