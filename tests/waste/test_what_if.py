"""Worlds of a load on engines: updates until the end, shared prompts, and how late an update was."""

import msgspec
import numpy as np
import pytest

from sim.case import Budget, Case, EngineSettings, ServerSettings, Session
from sim.events import FaultFired, Paused, VersionChanged
from sim.faults import AfterTokens, WeightUpdate
from sim.sut.registry import load_sut
from sim.waste.ledger import mean_update_wait_s
from sim.waste.lengths import Lengths
from sim.waste.variants import parse
from sim.waste.what_if import Conditions, arrivals_ns, case_of, pace_of, simulated
from sim.world import run_world

BUDGET = Budget(100, 400, 600)


def conditions(*, submission_gate=True, **engine):
    server = ServerSettings(submission_gate=submission_gate, engine=EngineSettings(**engine))
    return Conditions(budget=BUDGET, with_engine=True, server=server)


def load(count, group=1):
    return Lengths(np.full(count, 50), np.full((count, 1), 300), group=group)


def test_responses_that_queue_have_updates_to_their_end():
    """One at a time they take far longer than updates were foreseen for at a constant rate."""
    variant, queued = parse("cache-kept"), conditions(submission_gate=False, max_num_seqs=1)
    beside = msgspec.structs.replace(queued, with_engine=False)
    foreseen = case_of(beside, load(12), parse("pinned"), 200, np.arange(12))
    _, trace = simulated(queued, load(12), variant, 200, np.arange(12))
    updates_ns = [event.t_ns for event in trace.events if isinstance(event, VersionChanged)]
    assert len(updates_ns) > len(foreseen.faults)
    assert trace.events[-1].t_ns - updates_ns[-1] <= pace_of(queued, 200).update_ns


@pytest.mark.parametrize("name", ["pinned", "keep", "wait"])
def test_updates_on_engines_come_an_interval_after_the_last_pause_began(name):
    _, trace = simulated(conditions(), load(12), parse(name), 200, np.arange(12))
    paused_ns = [event.t_ns for event in trace.events if isinstance(event, Paused)]
    asked_ns = [event.t_ns for event in trace.events if isinstance(event, FaultFired)]
    interval_ns = pace_of(conditions(), 200).update_ns
    assert [asked - paused for paused, asked in zip(paused_ns, asked_ns[1:], strict=False)] == [interval_ns] * (
        len(asked_ns) - 1
    )


def test_a_group_arrives_at_once_and_shares_its_prompt():
    grouped = load(8, group=4)
    assert len(set(arrivals_ns(conditions(), grouped, None).tolist())) == 2
    case = case_of(conditions(), grouped, parse("pinned"), None, np.arange(8))
    assert [session.shares_prompt_with for session in case.sessions] == [None, 0, 0, 0, None, 4, 4, 4]
    some = case_of(conditions(), grouped, parse("pinned"), None, np.array([1, 3, 6]))
    assert [session.shares_prompt_with for session in some.sessions] == [None, 0, None]


def waited_s(mode, pause_s=1.0):
    case = Case(BUDGET, (Session(50),), (WeightUpdate(AfterTokens(0, 100), pause_s, pause_mode=mode),))
    return mean_update_wait_s(case, run_world(case, load_sut("reference:pinned")))


def test_how_late_an_update_was():
    assert waited_s("abort") == waited_s("keep") == 0
    assert waited_s("wait") == waited_s("wait", 7.0) == 3.0, "300 tokens were left"
    case = Case(BUDGET, (Session(50),))
    assert mean_update_wait_s(case, run_world(case, load_sut("reference:pinned"))) == 0
