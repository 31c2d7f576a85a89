"""An old client against a new one: the first attempt in which they differ."""

import pytest

from sim.case import Budget, Case, Limit, Session
from sim.faults import AfterTokens, WeightUpdate
from sim.search.campaign import Bounds, run_campaign
from sim.search.compare import DIFFERS, against
from sim.search.strategies import response_cases
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world

CASE = Case(Budget(4, 10, 64), (Session(2),), (WeightUpdate(AfterTokens(0, 3)),))
DEFERRED, PINNED = load_sut("reference:deferred"), load_sut(CLEAN)


def test_the_first_attempt_that_differs_is_named_with_both_sides():
    (found,) = against(PINNED)(CASE, run_world(CASE, DEFERRED))
    assert found.invariant == DIFFERS
    assert found.message == (
        "session 0, request 1: turn 0, prompt 5, granted 9, decoded 9; "
        "on reference:pinned: turn 0, prompt 5, granted 7, decoded 7"
    )


@pytest.mark.parametrize("sut", [DEFERRED, PINNED])
def test_a_client_does_not_differ_from_itself(sut):
    assert against(sut)(CASE, run_world(CASE, sut)) == []


def test_a_request_that_only_one_of_them_makes_is_a_difference():
    case = Case(Budget(4, 3, 64), (Session(2, limit=Limit("max_tokens", 0)),))
    asks = load_sut("reference:asks-for-nothing")
    (found,) = against(PINNED)(case, run_world(case, asks))
    assert found.message.endswith("on reference:pinned: no request")


def test_a_search_shrinks_the_difference():
    """No abort is needed: a prompt longer than prompt_length is granted less by the server than by the budget."""
    campaign = run_campaign(DEFERRED, response_cases(), (DIFFERS,), 9, Bounds(worlds=600), compare=against(PINNED))
    (find,) = campaign.finds
    assert (len(find.case.sessions), len(find.case.faults)) == (1, 0)
