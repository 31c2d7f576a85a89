"""Orders of ready callbacks, and replay of a schedule from its deviations."""

from contextlib import closing
from typing import Any

import pytest

from sim.clock import Deviation, Fifo, FifoExcept, RandomOrder, VirtualLoop
from tests.clock.runs import Log, race_under


def test_the_recorded_deviations_replay_the_schedule_exactly() -> None:
    schedules = set()
    for seed in range(20):
        log, deviations = race_under(RandomOrder(seed))
        assert deviations
        assert race_under(FifoExcept(deviations)) == (log, deviations)
        schedules.add(repr(log))
    assert len(schedules) == 20


def test_no_deviations_is_fifo() -> None:
    log, deviations = race_under(Fifo())
    assert deviations == ()
    assert race_under(FifoExcept(())) == (log, ())
    assert race_under(FifoExcept((Deviation(10**9, 1),))) == (log, ())  # the chooser's path, never deviating


def test_the_same_seed_gives_the_same_schedule() -> None:
    order = RandomOrder(7)  # the order holds no state of a run, so it can be used again
    assert race_under(order) == race_under(order)


def test_a_deviation_says_which_ready_entry_runs() -> None:
    def first_three(*deviations: Deviation) -> str:
        log: list[str] = []
        with closing(VirtualLoop(order=FifoExcept(deviations))) as loop:
            for name in "abc":
                loop.call_soon(log.append, name)
            loop.run_until_idle()
        return "".join(log)

    assert first_three() == "abc"
    assert first_three(Deviation(0, 2)) == "cab"  # the others keep their order
    assert first_three(Deviation(1, 1)) == "acb"
    assert first_three(Deviation(0, 1), Deviation(1, 1)) == "bca"
    assert first_three(Deviation(0, 99)) == "cab"  # beyond the end: the last in line


def test_deviations_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match=r"must not be negative, got Deviation\(step=3, pick=-1\)"):
        FifoExcept((Deviation(3, -1),))


def test_an_order_of_ones_own_needs_one_method() -> None:
    class Lifo:
        def chooser(self) -> Any:
            return lambda _step, ready: len(ready) - 1

    log: Log = []
    with closing(VirtualLoop(order=Lifo())) as loop:
        for n in range(3):
            loop.call_soon(log.append, n)
        loop.run_until_idle()
    assert log == [2, 1, 0]
