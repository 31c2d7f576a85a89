"""The budget of a turn: whose limit holds, and what is charged to it."""

import pytest

from sim.budget import (
    generated_before_tokens,
    odd_config,
    returned_tokens,
    turn_budget_tokens,
    usable,
    used_before_tokens,
)
from sim.case import Budget, Case, ClientView, Limit, Session
from sim.events import Sent, TurnEnded, TurnStarted
from sim.ledger import Ledger

CASE = Case(Budget(8, 10, 64), (Session(2),))


@pytest.mark.parametrize(
    ("limit", "view", "tokens"),
    [
        (None, None, 10),
        (3, None, 3),
        (0, None, None),  # B6's to judge
        (3, ClientView(None), 3),
        *[(None, ClientView(value), None) for value in (None, 0, -1, "10", 10.0, True)],
        (None, ClientView(), None),
        (None, ClientView(7), 7),
    ],
)
def test_only_a_positive_integer_is_a_budget(limit, view, tokens):
    session = Session(2, limit=None if limit is None else Limit("max_tokens", limit))
    assert turn_budget_tokens(Case(Budget(8, 10, 64, client_view=view), (session,)), 0) == tokens


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (None, ""),
        (ClientView(7), ""),
        (ClientView(), "this world's config lacks response_length, on purpose"),
        (ClientView(None), "this world's config has response_length None, on purpose"),
        (ClientView(True), "this world's config has response_length True, on purpose"),
    ],
)
def test_an_odd_config_is_named(view, told):
    case = Case(Budget(8, 10, 64, client_view=view), (Session(2),))
    assert odd_config(case) == told
    assert usable(case.budget.client_response_length) == (told == "")


TWO_TURNS = (
    TurnStarted(0, 0, 0, 2),
    TurnEnded(0, 0, 0, "ok", ((9, 4), (20, 1)), None, 0, 0, None),
    TurnStarted(0, 0, 1, 8),
    Sent(0, 0, 0, 1, 0, 0, 8, {}),
    Sent(0, 1, 0, 1, 1, 0, 11, {}),
)


@pytest.mark.parametrize(("policy", "used"), [("turn", 0), ("trajectory", 6)])
def test_a_trajectory_is_charged_with_all_since_its_prompt(policy, used):
    case, ledger = Case(Budget(8, 10, 64, policy=policy), (Session(2),)), Ledger([0], TWO_TURNS)
    first, second = ledger.sessions[0].turns
    assert used_before_tokens(case, ledger, 0, first) == 0
    assert used_before_tokens(case, ledger, 0, second) == used


def test_what_a_turn_returned_and_what_an_attempt_finds():
    first, second = Ledger([0], TWO_TURNS).sessions[0].turns
    assert (returned_tokens(first), returned_tokens(second)) == (5, 0)
    assert [generated_before_tokens(second, attempt) for attempt in second.attempts] == [0, 3]
