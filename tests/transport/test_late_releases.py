"""A release is as late as its fault says, however often that comes again."""

import pytest

from sim.case import Budget, Case, Session, Turn
from sim.clock import to_ns
from sim.events import Ended, Message
from sim.faults import AtTime, DelayReleases, Every
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world

MANY = Session(2, tuple(Turn(2, tool_time_s=1.0) for _ in range(4)))


@pytest.mark.parametrize(
    ("faults", "late_s"),
    [
        ((DelayReleases(Every(0.25), 0.5),), 0.5),
        ((DelayReleases(Every(0.25), 0.5, duration_s=0.3),), 0.5),
        ((DelayReleases(AtTime(0.0), 0.5), DelayReleases(AtTime(0.0), 2.0)), 2.0),
        ((DelayReleases(AtTime(0.0), 0.5), DelayReleases(AtTime(0.0), 2.0, duration_s=0.0)), 0.5),
    ],
    ids=["every", "every, for a while", "two at once", "one that is over"],
)
def test_late_by_what_is_promised(faults, late_s):
    trace = run_world(Case(Budget(4, 40), (MANY,), faults), load_sut(CLEAN))
    ended = [event.t_ns for event in trace.events if isinstance(event, Ended)]
    released = [event.t_ns for event in trace.events if isinstance(event, Message) and event.kind == "release_server"]
    after_first = slice(1, None)  # the first may come before the fault does
    late = [there - here for here, there in zip(ended, released, strict=True)][after_first]
    assert set(late) == {to_ns(late_s)}
