"""Does the search find what it should, from another seed than the properties use? Apart from whether it is correct.

The figures are generous: a strategy that grows blind to a bug fails here first.
"""

import pytest

from sim.invariants import INVARIANTS
from sim.search import campaign as campaign_module
from sim.search import shrink as shrink_module
from sim.search.strategies import STRATEGIES
from sim.sut.planted import PLANTED
from sim.sut.registry import load_sut
from sim.testing import search

MOST_WORLDS = 3000
"""Of one kind of world; a gate searches 600, `hunt` some thousands in its 10 seconds."""


def find(name, seed):
    number = PLANTED[name].invariant
    campaign = search(
        load_sut(f"reference:{name}"), INVARIANTS[number].kind, worlds=MOST_WORLDS, seed=seed, numbers=(number,)
    )
    print(f"{name}, seed {seed}: {campaign.worlds} worlds to find {number}, {campaign.shrink_worlds} to shrink it")
    assert campaign.finds, f"{number} not found in {campaign.worlds} worlds"
    return campaign.finds[0]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found_from_another_seed_too(name, monkeypatch):
    monkeypatch.setattr(campaign_module, "MOST_SHRINK_WORLDS", 0)
    monkeypatch.setattr(shrink_module, "MOST_RUNS", 0)
    find(name, seed=2)


def test_every_kind_has_a_planted_bug_to_be_found():
    assert {INVARIANTS[planted.invariant].kind for planted in PLANTED.values()} == set(STRATEGIES)
