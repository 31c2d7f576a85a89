"""Does the search find what it should in drawn worlds alone, and shrink it? Apart from whether it is correct.

Another seed than that of the properties, whose classic worlds catch most of this at once. The figures are generous: a
strategy that grows blind to a bug fails here first.
"""

import pytest

from sim.case import dumps
from sim.invariants.table import INVARIANTS
from sim.search import campaign as campaign_module
from sim.search import shrink as shrink_module
from sim.search.shrink import shrink_schedule, shrink_world
from sim.search.strategies import STRATEGIES
from sim.sut.planted import PLANTED
from sim.sut.registry import load_sut
from sim.testing import search
from sim.verdicts import judged

MOST_WORLDS = 3000
"""Of one kind of world; a gate searches 600, `hunt` some thousands in its 10 seconds."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found_in_a_drawn_world_which_shrinks_by_its_parts(name, monkeypatch):
    """Without Hypothesis's shrinking, which tests/search/ holds to more: what is taken apart must do by itself."""
    monkeypatch.setattr(campaign_module, "MOST_SHRINK_WORLDS", 0)
    monkeypatch.setattr(campaign_module, "MOST_RACE_WORLDS", 0)
    monkeypatch.setattr(shrink_module, "MOST_RUNS", 150)
    planted, sut = PLANTED[name], load_sut(f"reference:{name}")
    number = planted.invariant
    kind = INVARIANTS[number].kind
    campaign = search(sut, kind, worlds=MOST_WORLDS, seed=7, numbers=(number,), classics=False)
    print(f"{name}: {campaign.worlds} worlds to find {number}")
    assert campaign.finds, f"{number} not found in {campaign.worlds} worlds"

    def fails(case):
        run = judged(case, sut, [number])
        return bool(run.violations or run.warnings)

    case = shrink_world(shrink_schedule(campaign.finds[0].case, sut, fails), fails)
    assert len(case.sessions) <= planted.most_sessions, dumps(case)
    assert len(case.faults) <= 2, dumps(case)
    assert len(case.schedule.deviations) <= 3, dumps(case)


def test_every_kind_has_a_planted_bug_to_be_found():
    assert {INVARIANTS[planted.invariant].kind for planted in PLANTED.values()} == set(STRATEGIES)
