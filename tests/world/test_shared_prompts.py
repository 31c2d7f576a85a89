"""Sessions that share a prompt find each other's KV, and nothing beyond it."""

import pytest

from sim.case import Budget, Case, EngineSettings, ServerSettings, Session, Turn
from sim.events import Prefilled
from sim.faults import AbortAll, AfterTokens
from sim.invariants.judging import judge
from sim.schema import CaseError
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world

BUDGET = Budget(prompt_length=64, response_length=40, max_model_len=256)


def group(*others, **settings):
    return Case(
        BUDGET, (Session(50), *(Session(arrival_s=1.0 + i, **each) for i, each in enumerate(others))), **settings
    )


def prefills(case):
    trace = run_world(case, load_sut(CLEAN))
    assert judge(case, trace) == []
    return [(event.computed_tokens, event.cached_tokens) for event in trace.events if isinstance(event, Prefilled)]


ALIKE = {"prompt_tokens": 50, "shares_prompt_with": 0}


def test_whole_blocks_of_the_prompt_are_found():
    assert prefills(group(ALIKE, ALIKE)) == [(50, 0), (2, 48), (2, 48)]
    assert prefills(group({"prompt_tokens": 50})) == [(50, 0), (50, 0)], "no sharing: nothing is alike"


def test_a_longer_and_a_shorter_prompt_share_as_far_as_both_go():
    longer, shorter = ({"prompt_tokens": tokens, "shares_prompt_with": 0} for tokens in (64, 20))
    assert prefills(group(longer, shorter)) == [(50, 0), (16, 48), (4, 16)]


def test_without_prefix_caching_nothing_is_found():
    server = ServerSettings(engine=EngineSettings(enable_prefix_caching=False))
    assert prefills(group(ALIKE, server=server)) == [(50, 0), (50, 0)]


def test_the_answers_are_each_ones_own():
    """Both resume over the same positions: the second finds the prompt, and its own tokens, and no others."""
    faults = (AbortAll(AfterTokens(1, 30), 0, reset_prefix_cache=False),)
    case = group(ALIKE, faults=faults)
    assert prefills(case) == [(50, 0), (2, 48), (16, 64)], (
        "of 80 tokens 79 are in the KV, and 4 blocks of them are full"
    )
    later = group(ALIKE, faults=(AbortAll(AfterTokens(1, 30), 0),))
    assert prefills(later) == [(50, 0), (2, 48), (80, 0)]


def test_a_second_turn_finds_the_first():
    case = Case(BUDGET, (Session(50), Session(50, (Turn(20, 5), Turn(3)), arrival_s=1.0, shares_prompt_with=0)))
    assert prefills(case) == [(50, 0), (2, 48), (11, 64)]


@pytest.mark.parametrize(
    ("sessions", "says"),
    [
        (
            (Session(3, shares_prompt_with=0),),
            r"sessions\[0\].shares_prompt_with is 0: it must name an earlier session",
        ),
        (
            (Session(3), Session(3, shares_prompt_with=0), Session(3, shares_prompt_with=1)),
            r"sessions\[2\].shares_prompt_with is 1, which itself shares",
        ),
    ],
)
def test_whose_prompt_can_be_shared(sessions, says):
    with pytest.raises(CaseError, match=says):
        Case(BUDGET, sessions)
