"""A simulation is led through points in their order, and to their times."""

import asyncio

import pytest

from gpu_checks.points import Leader, Name, Point, Points, Recorder
from sim.clock import Deadlock, VirtualLoop


def observed(*points: tuple[str, int]) -> Points:
    recorder = Recorder(lambda: 0)
    for kind, _ in points:
        recorder.note(kind, 0)
    order = [Point(point.name, t_ns) for point, (_, t_ns) in zip(recorder.points.order, points, strict=True)]
    return Points(order)


def test_points_come_in_their_order_whoever_arrives_first() -> None:
    loop = VirtualLoop()
    leader = Leader(observed(("b", 0), ("a", 0), ("b", 0)), loop)
    done: list[str] = []
    for kind in ("a", "b", "b"):
        leader.when(lambda kind=kind: done.append(kind), kind, 0)  # type: ignore[misc]
    loop.run_until_idle()
    assert done == ["b", "a", "b"]
    assert leader.missed is None
    loop.close()


def test_what_a_point_sets_off_comes_before_the_next_point() -> None:
    loop = VirtualLoop()
    leader = Leader(observed(("a", 0), ("b", 0)), loop)
    done: list[str] = []

    async def arrive() -> None:
        await leader.turn("a", 0)
        done.append("after a")

    task = loop.create_task(arrive())
    leader.when(lambda: done.append("b"), "b", 0)
    loop.run_until_complete(asyncio.wait_for(task, 1))
    loop.run_until_idle()
    assert done == ["after a", "b"]
    loop.close()


def test_a_point_waits_for_its_time() -> None:
    loop = VirtualLoop()
    leader = Leader(
        observed(
            ("a", 5_000),
        ),
        loop,
    )
    seen: list[int] = []
    leader.when(lambda: seen.append(loop.now_ns), "a", 0)
    loop.run_until_idle()
    assert seen == [5_000]
    loop.close()


def test_what_was_never_observed_is_not_held_back() -> None:
    loop = VirtualLoop()
    leader = Leader(observed(("a", 0)), loop)
    done: list[str] = []
    leader.when(lambda: done.append("new"), "new", 0)
    assert done == ["new"]
    assert leader.missed == Name("a", (0,), 0)
    loop.close()


def test_waiting_for_a_point_behind_one_that_never_comes_is_a_deadlock() -> None:
    loop = VirtualLoop()
    leader = Leader(observed(("never", 0), ("a", 0)), loop)
    with pytest.raises(Deadlock):
        loop.run_until_complete(leader.turn("a", 0))
    assert str(leader.missed) == "never 0"
    loop.close()
