"""Runs in another process: hash order is found by D1, and a client that warns once a process is not accused."""

import subprocess
import sys

import pytest

from sim import elsewhere
from sim.case import Budget, Case, ClientView, Session
from sim.registry import load_plugin
from sim.search.afar import Afar
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.testing import search
from sim.verdicts import judged

BUDGET = Budget(4, 10)
SPREAD = Case(BUDGET, tuple(Session(2) for _ in range(3)), replicas=3)
ODD = Case(Budget(4, 10, client_view=ClientView()), (Session(2),))

MODULE = """
import logging
import warnings

from sim.sut.reference.client import PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer


class PicksFromASet(LeastLoadedBalancer):
    def __init__(self, servers):
        super().__init__(servers)

    def choose(self):
        least = min(self.loads.values())
        return next(iter({name for name, load in self.loads.items() if load == least}))


def from_a_set(context):
    return PinnedClient(context.config, context.make_balancer(PicksFromASet))


said = set()


class WarnsOnce(PinnedClient):
    def report_fallback(self, configured):
        if not said:
            said.add("once")
            logging.getLogger("mine").warning("response_length is %r and is not used", configured)


def warns_once(context):
    return WarnsOnce(context.config, context.balancer)


warns_once.rollcage_policies = {"budget": "turn"}


class WarnsOfNull(PinnedClient):
    def report_fallback(self, configured):
        if configured is None:
            warnings.warn("response_length is null and is not used", stacklevel=1)


def silent_of_others(context):
    return WarnsOfNull(context.config, context.balancer)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The module above, as a user's own in the working directory."""
    (tmp_path / "mine_elsewhere.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    elsewhere.end()
    yield lambda name: load_sut(f"mine_elsewhere:{name}")
    elsewhere.end()
    sys.modules.pop("mine_elsewhere", None)


def numbers(case, sut):
    return {violation.invariant for violation in judged(case, sut).violations}


def test_a_balancer_that_picks_from_a_set_of_names_breaks_d1(mine):
    (found,) = [each for each in judged(SPREAD, mine("from_a_set")).violations if each.invariant == "D1"]
    assert "in two processes with other hashes of strings, differ from event" in found.message


def test_and_is_found_by_a_search(mine):
    campaign = search(mine("from_a_set"), "harness", worlds=50)
    assert [find.invariant for find in campaign.finds] == ["D1"]
    assert len(campaign.finds[0].case.sessions) <= 2


def test_the_known_good_client_is_the_same_in_both():
    sut = load_sut(CLEAN)
    for case in (SPREAD, ODD):
        assert elsewhere.run(sut, case) is not None
        assert numbers(case, sut) == set()


def test_a_client_that_warns_once_a_process_is_not_accused(mine):
    sut = mine("warns_once")
    for _ in range(3):
        for odd in (None, 0, "many"):
            view = ClientView(response_length=odd)
            assert numbers(Case(Budget(4, 10, client_view=view), (Session(2),)), sut) == set()
    for kind in ("budget", "harness"):
        assert search(sut, kind, worlds=150).finds == []


def test_one_that_is_silent_of_some_values_is_accused_whatever_it_said_of_others(mine):
    sut = mine("silent_of_others")
    assert numbers(Case(Budget(4, 10, client_view=ClientView(response_length=None)), (Session(2),)), sut) == set()
    zero = Case(Budget(4, 10, client_view=ClientView(response_length=0)), (Session(2),))
    assert numbers(zero, sut) == {"B8"}


def test_only_what_a_name_stands_for_is_asked_for():
    sut = load_sut(CLEAN)
    assert elsewhere.can_run(sut, SPREAD)
    assert not elsewhere.can_run(sut_of(CLEAN, sut.factory), SPREAD)


def test_a_process_that_dies_is_given_up(mine, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert elsewhere.run(load_sut(CLEAN), SPREAD) is None
    assert not elsewhere.can_run(load_sut(CLEAN), SPREAD)


def test_few_of_many_worlds_are_run_there():
    afar, sut = Afar(), load_sut(CLEAN)
    assert sum([afar.is_due(sut, None, waits=True) for _ in range(10_000)]) < 30


def test_nobody_who_has_but_seconds_waits_for_it_to_start():
    elsewhere.end()
    assert not Afar().is_due(load_sut(CLEAN), None, waits=False)


def test_what_hashes_alike_here_hashes_otherwise_there():
    """For CPython, whose sets order by hashes."""
    order = "print(next(iter({'replica-0', 'replica-1'})))"
    for first, seed in elsewhere._SEEDS.items():
        there = subprocess.run(
            [sys.executable, "-c", order], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        assert there.stdout.strip() != first


def test_a_plugin_that_is_gone_by_then_does_not_take_the_process_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone_plugin.py").write_text("")
    load_plugin("gone_plugin")
    (tmp_path / "gone_plugin.py").unlink()
    elsewhere.end()
    try:
        assert elsewhere.run(load_sut(CLEAN), SPREAD) is not None
    finally:
        elsewhere.end()
