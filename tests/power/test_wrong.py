"""The set that the search is measured with: what it is made of is right."""

import pytest

from sim.invariants.table import INVARIANTS, numbers_of
from sim.search.strategies import STRATEGIES
from sim.sut.registry import sut_of
from sim.testing import search
from tests.power.wrong import ALL, KINDS, base

BASES = {"client": base.client(base.Client), "balancer": base.balancer(base.LeastLoadedBalancer)}


@pytest.mark.parametrize("kind", ["budget", "routing"])
@pytest.mark.parametrize("name", BASES)
def test_without_its_fault_each_is_clean(name, kind):
    campaign = search(sut_of(name, BASES[name].build), kind, worlds=100, numbers=numbers_of(list(STRATEGIES)), seed=5)
    assert [(find.invariant, find.message) for find in campaign.finds] == []


def test_each_can_be_told_by_something():
    assert {number for wrong in ALL.values() for number in wrong.told_by} <= set(INVARIANTS)
    assert len(ALL) == sum(map(len, KINDS.values())) >= 60, "no two of a name"
    assert len(KINDS["races"]) >= 20
