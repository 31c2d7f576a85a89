"""The real engine's schedule, step by step, against sim.engine."""

import random
from collections.abc import Callable

import pytest

from gpu_checks.schedules import SETTINGS, Load, Schedule, first_difference, fixed_loads, random_load

FIXED = {load.name: load for load in fixed_loads()}

RANDOM_LOADS = 6

Schedules = Callable[[Load], Schedule]


@pytest.mark.parametrize("name", FIXED)
def test_schedule_is_equal(name: str, schedules: Schedules) -> None:
    assert first_difference(schedules(FIXED[name])) is None


def test_loads_do_what_they_are_called(schedules: Schedules) -> None:
    assert schedules(FIXED["preemption"]).preemptions > 0
    assert schedules(FIXED["shared prefix"]).cached_tokens > 0
    assert schedules(FIXED["more requests than seats"]).most_running == SETTINGS["max_num_seqs"]
    assert schedules(FIXED["stops: first token, last token, beyond"]).finish_reasons == {"stop", "length"}
    answers = [
        answer
        for *_, kind, _, answer in schedules(FIXED["cache reset under running requests"]).happened
        if kind == "reset"
    ]
    assert answers == [False, True]


def test_random_schedules_are_equal(schedules: Schedules) -> None:
    """Fresh seeds each time; a failure names its seed."""
    first = random.SystemRandom().randrange(2**31)
    loads = [random_load(first + number) for number in range(RANDOM_LOADS)]
    differences = {load.name: first_difference(schedules(load)) for load in loads}
    assert not {name: difference for name, difference in differences.items() if difference}
