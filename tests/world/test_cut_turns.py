"""A turn that is cut has no tool call: the agent loop ends there, as verl's ToolAgentLoop does."""

import pytest

from sim.case import Budget, Case, Limit, Session, Turn
from sim.faults import AfterTokens, WeightUpdate
from sim.invariants.judging import judge
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world

BUDGET = Budget(prompt_length=64, response_length=256)
TURNS = (Turn(200, tool_tokens=20, tool_time_s=1.0), Turn(50))
UPDATE = WeightUpdate(AfterTokens(0, 97))


@pytest.mark.parametrize(
    ("case", "turns"),
    [
        (Case(BUDGET, (Session(20, TURNS),), (UPDATE,), partial_rollout=False), 1),
        (Case(BUDGET, (Session(20, TURNS),), (UPDATE,)), 2),
        (Case(BUDGET, (Session(20, TURNS, limit=Limit("max_tokens", 50)),)), 1),
        (Case(BUDGET, (Session(20, TURNS, limit=Limit("max_tokens", 200)),)), 2),
        (Case(BUDGET, (Session(20, (Turn(None, 20), Turn(5)), limit=Limit("max_tokens", 50)),)), 1),
        (Case(BUDGET, (Session(20, (Turn(1, 20), Turn(5), Turn(5))),)), 3),
    ],
    ids=["aborted for good", "aborted and resumed", "cut by a limit", "ends at its limit", "never ends", "ends"],
)
def test_only_a_turn_that_the_model_ended_calls_a_tool(case, turns):
    trace = run_world(case, load_sut(CLEAN))
    assert len(trace.ledger.turns()) == turns
    assert judge(case, trace) == []
