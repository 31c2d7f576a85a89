"""What counts of a hunt: what the framework's own callers can meet, unless all is asked for."""

import dataclasses

import pytest

from sim.case import Budget, Case, ClientView, Session
from sim.cli.hunt_outcome import Outcome, as_json, told
from sim.reach import FEATURES
from sim.search.campaign import Campaign
from sim.search.find import Find
from sim.sut.registry import load_sut

NEAR = Case(Budget(4, 10), (Session(4),))
FAR = Case(Budget(4, 10, client_view=ClientView()), (Session(4),))
CALLERS = dict.fromkeys([feature.name for feature in FEATURES], False)


@pytest.fixture
def campaign():
    sut = load_sut("reference:silent-fallback")
    sut = dataclasses.replace(sut, framework=dataclasses.replace(sut.framework, callers=CALLERS))
    finds = [Find("B1", "near", NEAR), Find("B8", "far", FAR), Find("W1", "lost", NEAR)]
    return Campaign(sut, 1, worlds=5, finds=finds)


def numbers(finds):
    return [each.find.invariant for each in finds]


def test_near_finds_count_and_far_ones_and_warnings_are_told_apart(campaign):
    outcome = Outcome.of(campaign, None, runs_again=True, is_all=False)
    assert (numbers(outcome.near), numbers(outcome.far)) == (["B1"], ["B8", "W1"])
    text = "\n".join(told([outcome], None, demonstration=False))
    assert text.startswith("reference:silent-fallback: B1  (5 worlds")
    near, far = text.split("Beyond what reference's own callers do, or only warned of (no exit code):")
    assert "reach: stock" in near
    assert "reach: odd config (a config that lacks, or misspells, response_length)" in far


def test_all_count_where_all_are_asked_for_but_what_only_warns(campaign):
    outcome = Outcome.of(campaign, None, runs_again=False, is_all=True)
    assert (numbers(outcome.near), numbers(outcome.far)) == (["B1", "B8"], ["W1"])


def test_as_data_each_says_its_reach(campaign):
    outcome = Outcome.of(campaign, None, runs_again=False, is_all=False)
    ((_, data),) = as_json([outcome], 1)["suts"].items()
    assert [(each["invariant"], each["reach"]) for each in data["violations"]] == [
        ("B1", "stock"),
        ("B8", "odd config"),
        ("W1", "stock"),
    ]
