"""Priorities of sessions: those of their requests, which an engine with the priority policy goes by."""

import pytest

from sim.case import Budget, Case, EngineSettings, ServerSettings, Session, from_builtins
from sim.events import Ended, Prefilled, Sent
from sim.schema import CaseError
from sim.sut.registry import CLEAN, load_sut
from sim.verdicts import judged
from sim.world import run_world

BUDGET = Budget(4, 20, 32)


def ends(policy, *priorities, **engine):
    """The sessions of one replica in the order in which they end."""
    sessions = tuple(Session(4, arrival_s=index / 1000, priority=each) for index, each in enumerate(priorities))
    server = ServerSettings(engine=EngineSettings(scheduling_policy=policy, **engine))
    case = Case(BUDGET, sessions, server=server)
    trace = run_world(case, load_sut(CLEAN))
    assert judged(case, load_sut(CLEAN)).violations == []
    sent = {event.request: event.session for event in trace.events if isinstance(event, Sent)}
    recomputed = sum(event.recomputed_tokens for event in trace.events if isinstance(event, Prefilled))
    return [sent[event.request] for event in trace.events if isinstance(event, Ended)], recomputed


@pytest.mark.parametrize(
    ("policy", "priorities", "order"),
    [
        ("priority", (0, 5, -5), [0, 2, 1]),  # the first is at work when the others come
        ("priority", (0, 0, 0), [0, 1, 2]),
        ("fcfs", (0, 5, -5), [0, 1, 2]),
    ],
)
def test_of_those_that_wait_the_lowest_comes_first(policy, priorities, order):
    assert ends(policy, *priorities, max_num_seqs=1)[0] == order


def test_where_blocks_are_short_the_highest_is_preempted():
    order, recomputed = ends("priority", 5, 0, num_gpu_blocks=9, block_size=4)
    assert order == [1, 0]
    assert recomputed > 0


def test_a_priority_is_within_what_fits():
    session = {"prompt_tokens": 1, "priority": 2**40}
    with pytest.raises(CaseError, match=r"`int` <= 2147483647 - at `\$.sessions\[0\].priority`"):
        from_builtins({"budget": {"prompt_length": 4, "response_length": 4}, "sessions": [session]})
