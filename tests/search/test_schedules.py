"""Which schedules a world is run under: FIFO first, then random orders that follow from the case's own seed."""

from sim.case import Budget, Case, Schedule, Session
from sim.search.schedules import SCHEDULES_PER_WORLD, under_schedules


def case(seed: int) -> Case:
    return Case(Budget(4, 10, 64), (Session(4),), seed=seed)


def test_fifo_comes_first_and_the_rest_is_random():
    policies = [each.schedule.policy for each in under_schedules(case(0))]
    assert policies == ["fifo"] + ["random"] * (SCHEDULES_PER_WORLD - 1)


def test_only_the_schedule_differs_and_nothing_is_left_to_chance():
    assert under_schedules(case(7)) == under_schedules(case(7))
    first = under_schedules(case(7))[0]
    for each in under_schedules(case(7)):
        assert (each.seed, each.sessions, each.budget) == (first.seed, first.sessions, first.budget)


def test_worlds_of_other_seeds_run_under_other_orders():
    seeds = [each.schedule.seed for seed in range(8) for each in under_schedules(case(seed))[1:]]
    assert len(set(seeds)) == len(seeds)
    assert Schedule() not in [each.schedule for each in under_schedules(case(1))[1:]]


def test_a_race_is_looked_for_under_more_orders_the_first_ones_being_the_same():
    few, many = under_schedules(case(3)), under_schedules(case(3), more=16)
    assert many[: len(few)] == few
    assert len({each.schedule.seed for each in many[1:]}) == len(few) - 1 + 16
