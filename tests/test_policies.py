"""Policies: who says what, what is allowed, and what a run is judged by."""

import dataclasses

import pytest

from sim.case import Budget, Case, Router, Session, Turn
from sim.policies import MEANINGS, Policies, PolicyError, checked, in_force, parsed
from sim.sut.interface import SutError
from sim.sut.reference.client import PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.verdicts import clearing_policies, judged
from sim.world import run_world

TWO_TURNS = Case(Budget(4, 8, 64), (Session(4, (Turn(6, 1), Turn())),))
"""Six tokens, one of a tool, and eight more: 15, of which a loop keeps 8."""


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ((), {}),
        (("trajectory",), {"budget": "trajectory"}),
        (("turn+trajectory", "sticky=fail-over"), {"budget": "turn+trajectory", "sticky": "fail-over"}),
        (("removal=at once", "removal=at once"), {"removal": "at once"}),
    ],
)
def test_flags(texts, found):
    assert parsed(texts) == found


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("stiky=no",), "there is no policy 'stiky'; did you mean sticky? (allowed are budget,"),
        (("sticky=maybe",), "policy sticky is 'maybe' (allowed are yes, no, fail-over)"),
        (("weather",), "KEY=VALUE is needed"),
        (("turn", "budget=trajectory"), "budget is given as 'turn' and as 'trajectory'"),
    ],
)
def test_a_flag_that_is_none_is_told_with_what_is_allowed(texts, message):
    with pytest.raises(PolicyError) as caught:
        parsed(texts)
    assert message in str(caught.value)


@pytest.mark.parametrize("declared", [["turn"], {"budget": None}, {"budget": ["turn"]}, {3: "turn"}])
def test_what_is_declared_is_text(declared):
    with pytest.raises(PolicyError, match=r"allowed are|a dict"):
        checked(declared, "the client")


def test_a_policy_is_what_is_declared_else_what_the_case_says_else_the_default():
    case = Case(Budget(4, 8, policy="trajectory"), (Session(4),), router=Router(sticky=False), partial_rollout=False)
    said = in_force(case.policies, {})
    assert (said.budget, said.sticky, said.after_abort, said.routing) == ("trajectory", "no", "drop", "least-loaded")
    assert said.declared == frozenset()
    declared = in_force(case.policies, {"budget": "turn", "sticky": "yes", "after_abort": "raise"})
    assert (declared.budget, declared.sticky, declared.after_abort) == ("turn", "yes", "raise")
    assert in_force(case.policies, {"after_abort": "resume"}).after_abort == "drop", "the config turns it off"
    assert in_force({}, {"routing": "none"}).sticky == "no"


def test_the_alternatives_differ_in_one_key():
    policies = Policies()
    alternatives = dict(policies.alternatives())
    assert len(alternatives) == sum(len(values) - 1 for values in MEANINGS.values())
    for spelled, other in alternatives.items():
        key, _, value = spelled.partition("=")
        assert other == dataclasses.replace(policies, **{key: value, "declared": frozenset({key})})


def declaring(factory=None, client=None, balancer=None):
    """A factory whose parts declare these budgets."""

    class Client(PinnedClient):
        rollcage_policies = {"budget": client} if client else {}

    class Balancer(LeastLoadedBalancer):
        rollcage_policies = {"budget": balancer} if balancer else {}

    def build(context):
        return Client(context.config, context.make_balancer(Balancer))

    if factory:
        build.rollcage_policies = {"budget": factory}
    return build


@pytest.mark.parametrize(
    ("declared", "flags", "budget"),
    [
        ({}, {}, "turn"),
        ({"balancer": "trajectory"}, {}, "trajectory"),
        ({"balancer": "trajectory", "client": "turn+trajectory"}, {}, "turn+trajectory"),
        ({"client": "turn+trajectory", "factory": "trajectory-assistant"}, {}, "trajectory-assistant"),
        ({"factory": "trajectory-assistant"}, {"budget": "trajectory"}, "trajectory"),
    ],
)
def test_factory_client_and_balancer_declare_and_a_flag_has_the_last_word(declared, flags, budget):
    sut = dataclasses.replace(sut_of("mine", declaring(**declared)), flags=flags)
    run = judged(TWO_TURNS, sut)
    assert run.policies.budget == budget
    assert run.policies.declared == ({"budget"} if declared or flags else frozenset())


@pytest.mark.parametrize("part", ["factory", "client", "balancer"])
def test_a_policy_that_is_none_cannot_be_used(part):
    with pytest.raises(SutError, match=rf"the {part} of SUT 'mine': policy budget is 'all' \(allowed are turn"):
        judged(TWO_TURNS, sut_of("mine", declaring(**{part: "all"})))


# B7


def seven(sut):
    return [violation.message for violation in judged(TWO_TURNS, sut, ["B7"]).violations]


@pytest.mark.parametrize(
    ("budget", "told"),
    [(None, True), ("turn", False), ("trajectory", True), ("turn+trajectory", True), ("trajectory-assistant", False)],
)
def test_what_the_loop_slices_away_is_told_unless_a_cap_that_explains_it_is_declared(budget, told):
    found = seven(sut_of("mine", declaring(client=budget)))
    message = (
        "session 0 came to 15 tokens (6 + 8 decoded, 1 of its tools): its loop keeps 8 (response_length), and 7 were "
        "decoded to be sliced away"
    )
    assert found == [message] * told


def test_the_cases_own_policy_explains_nothing_and_the_reference_declares_its_own():
    assert seven(load_sut(CLEAN)) == []
    assert len(seven(load_sut(CLEAN, parsed(["trajectory"])))) == 1
    turn = Case(Budget(4, 8, 64, policy="turn"), TWO_TURNS.sessions)
    assert judged(turn, sut_of("mine", declaring()), ["B7"]).violations


def test_what_one_turn_decoded_beyond_its_own_budget_is_b1s_to_tell():
    deferred = load_sut("reference:deferred", parsed(["trajectory"]))
    case = Case(Budget(8, 8, 64), (Session(2),), seed=1)
    assert not judged(case, deferred, ["B7"]).violations


# Which policy decides


def test_a_report_can_say_which_policy_would_clear_it():
    run = judged(TWO_TURNS, sut_of("mine", declaring()))
    assert clearing_policies(run, "B7") == ["budget=trajectory-assistant"]
    strict = judged(TWO_TURNS, sut_of("mine", declaring(client="trajectory")))
    assert "budget=turn" in clearing_policies(strict, "B1")
    assert clearing_policies(run, "D1") == []


@pytest.mark.parametrize(
    ("sut", "sticky"),
    [("reference:pinned", "no"), ("reference:favourite", "yes"), ("reference:routes-anywhere", "yes")],
)
def test_the_routers_setting_speaks_for_the_built_in_balancer_alone(sut, sticky):
    case = Case(Budget(4, 8), (Session(4),), router=Router(sticky=False))
    assert in_force(case.policies, run_world(case, load_sut(sut)).declared).sticky == sticky
