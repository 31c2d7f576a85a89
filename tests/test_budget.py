"""The budget of a turn: whose limit holds, and what is charged to it."""

import pytest

from sim.budget import (
    Allowance,
    allowance,
    charged_tokens,
    generated_before_tokens,
    odd_config,
    returned_tokens,
    turn_budget_tokens,
    usable,
)
from sim.case import Budget, Case, ClientView, Limit, Session
from sim.events import Decoded, Sent, TurnEnded, TurnStarted
from sim.ledger import Ledger
from sim.policies import Policies

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
    assert turn_budget_tokens(Case(Budget(8, 10, 64, client_view=view), (session,)), 0, Policies()) == tokens


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


@pytest.mark.parametrize(("explicit_limit", "tokens"), [("as given", 12), ("capped", 10)])
def test_a_limit_above_response_length_holds_or_is_capped(explicit_limit, tokens):
    case = Case(Budget(8, 10, 64), (Session(2, limit=Limit("max_tokens", 12)),))
    assert turn_budget_tokens(case, 0, Policies(explicit_limit=explicit_limit)) == tokens


@pytest.mark.parametrize(
    ("policy", "limit", "allowed"),
    [
        ("turn", None, Allowance(10, 0)),
        ("trajectory", None, Allowance(10, 6)),
        ("trajectory-assistant", None, Allowance(10, 5)),
        ("turn+trajectory", None, Allowance(10, 6)),
        ("turn+trajectory", 3, Allowance(3, 0)),
        ("turn+trajectory", 5, Allowance(10, 6)),
    ],
)
def test_what_a_later_turn_may_use(policy, limit, allowed):
    session = Session(2, limit=None if limit is None else Limit("max_tokens", limit))
    case, ledger = Case(Budget(8, 10, 64), (session,)), Ledger([0], TWO_TURNS)
    policies = Policies(budget=policy)
    first, second = ledger.sessions[0].turns
    assert allowance(case, ledger, 0, first, policies) == Allowance(limit or 10, 0)
    assert allowance(case, ledger, 0, second, policies) == allowed


@pytest.mark.parametrize(
    ("policies", "charged"),
    [(Policies(), 9), (Policies(hedged="yes"), 7), (Policies(after_abort="restart"), 7), (Policies(sticky="no"), 9)],
)
def test_of_several_answers_the_longest_is_charged(policies, charged):
    decoded = (Decoded(0, 0, 8, 2, 0), Decoded(0, 1, 11, 4, 0), Decoded(0, 0, 10, 3, 0))
    turn = Ledger([0], (*TWO_TURNS, *decoded)).sessions[0].turns[1]
    assert charged_tokens(turn, policies) == charged


def test_what_a_turn_returned_and_what_an_attempt_finds():
    first, second = Ledger([0], TWO_TURNS).sessions[0].turns
    assert (returned_tokens(first), returned_tokens(second)) == (5, 0)
    assert [generated_before_tokens(second, attempt) for attempt in second.attempts] == [0, 3]
