"""Right designs that differ from the reference are never accused under their own policies; wrong ones are caught."""

import pytest

from sim.invariants.table import numbers_of
from sim.search import campaign as campaign_module
from sim.search.strategies import STRATEGIES
from sim.sut.registry import sut_of
from sim.testing import search
from tests.designs.designs import DESIGNS

WORLDS = 100
"""Of each of the two kinds of worlds; a script runs thousands."""


@pytest.mark.parametrize("kind", ["budget", "routing"])
@pytest.mark.parametrize("name", DESIGNS)
def test_a_right_design_is_clean_under_its_policies(name, kind):
    sut = sut_of(name, DESIGNS[name].right)
    campaign = search(sut, kind, worlds=WORLDS, numbers=numbers_of(list(STRATEGIES)), seed=7)
    assert [(find.invariant, find.message) for find in campaign.finds] == []


@pytest.mark.parametrize("name", DESIGNS)
def test_its_wrong_variant_is_caught(name, monkeypatch):
    monkeypatch.setattr(campaign_module, "MOST_SHRINK_WORLDS", 0)
    monkeypatch.setattr(campaign_module, "MOST_RACE_WORLDS", 0)
    design = DESIGNS[name]
    campaign = search(sut_of(name, design.wrong), design.kind, worlds=1500, numbers=(design.caught_by,), seed=7)
    assert [find.invariant for find in campaign.finds] == [design.caught_by]
