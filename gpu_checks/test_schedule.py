"""The real engine's schedule, step by step, against sim.engine."""

import random
from collections.abc import Iterator

import pytest

from gpu_checks.engines import prepare_environment, tiny_model
from gpu_checks.schedules import SETTINGS, Load, RealCore, compare, fixed_loads, random_load, real_core

FIXED = {load.name: load for load in fixed_loads()}

RANDOM_LOADS = 6


@pytest.fixture(scope="module")
def core() -> Iterator[RealCore]:
    prepare_environment()
    with tiny_model() as folder, real_core(folder) as made:
        yield made


@pytest.mark.parametrize("name", FIXED)
def test_schedule_is_equal(name: str, core: RealCore) -> None:
    result = compare(FIXED[name], core)
    assert result.difference is None
    assert result.steps > 0


def test_loads_do_what_they_are_called(core: RealCore) -> None:
    assert compare(FIXED["preemption"], core).preemptions > 0
    assert compare(FIXED["shared prefix"], core).cached_tokens > 0
    stops = compare(FIXED["stops: first token, last token, beyond"], core)
    assert set(stops.finished.values()) == {"stop", "length"}
    assert compare(FIXED["more requests than seats"], core).most_running == SETTINGS["max_num_seqs"]


def test_random_schedules_are_equal(core: RealCore) -> None:
    """Fresh seeds each time; a failure names its seed."""
    first = random.SystemRandom().randrange(2**31)
    loads: list[Load] = [random_load(first + number) for number in range(RANDOM_LOADS)]
    differences = {load.name: compare(load, core).difference for load in loads}
    assert not {name: difference for name, difference in differences.items() if difference}
