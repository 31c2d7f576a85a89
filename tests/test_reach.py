"""Who can meet a case: each feature, with a case that has it and the same without."""

import pytest
from msgspec.structs import replace

from sim.case import Budget, Case, ClientView, EngineSettings, Limit, ServerSettings, Session, Transport
from sim.faults import AddReplica, AfterSent, AtTime, CancelClient, RemoveReplica, WeightUpdate
from sim.reach import FEATURES, REACHES, Reached, as_stock, reach_of
from sim.sut.frameworks import FRAMEWORKS

STOCK = Case(Budget(4, 10), (Session(4),), (RemoveReplica(AtTime(1.0), 0), AddReplica(AtTime(2.0), 0)), replicas=2)
CALLERS = dict.fromkeys([feature.name for feature in FEATURES], False)

WITH = {
    "a first prompt beyond prompt_length": replace(STOCK, sessions=(Session(5),)),
    "a limit of the caller's own": replace(STOCK, sessions=(Session(4, limit=Limit("max_tokens", 0)),)),
    "priorities of requests": replace(STOCK, sessions=(Session(4, priority=-1),)),
    "a replica added that may be there": replace(STOCK, faults=(AddReplica(AtTime(2.0), 0),)),
    "a call that is cancelled": replace(STOCK, faults=(CancelClient(AtTime(1.0), 0),)),
    "a config that lacks, or misspells, response_length": replace(
        STOCK, budget=Budget(4, 10, client_view=ClientView())
    ),
    "a context shorter than prompt_length + response_length": replace(STOCK, budget=Budget(4, 10, 13)),
    "a pause that does not abort": replace(STOCK, faults=(WeightUpdate(AtTime(1.0), pause_mode="keep"),)),
    "a prefix cache that is kept over an update": replace(
        STOCK, faults=(WeightUpdate(AtTime(1.0), reset_prefix_cache=False),)
    ),
    "objects that are shared, not copied": replace(STOCK, transport=Transport("shared")),
}


def test_nothing_of_all_that_is_stock():
    assert reach_of(STOCK, CALLERS) == Reached("stock")
    assert as_stock(STOCK, CALLERS) == STOCK


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_each_decides_and_can_be_taken_away(feature):
    case = WITH[feature.name]
    assert reach_of(case, CALLERS) == Reached(feature.reach, feature.name)
    assert reach_of(case, {**CALLERS, feature.name: True}) == Reached("stock")
    assert not feature.has(as_stock(case, CALLERS))


@pytest.mark.parametrize(
    "faults",
    [
        (RemoveReplica(AtTime(3.0), 0),),  # it leaves afterwards
        (RemoveReplica(AtTime(2.0), 0),),
        (RemoveReplica(AtTime(1.0), 1),),
        (RemoveReplica(AfterSent(0, 1), 0),),
        (RemoveReplica(AtTime(0.5), 0), AddReplica(AtTime(1.0), 0)),
        (RemoveReplica(AtTime(0.5), 0), AddReplica(AfterSent(0, 1), 0)),
    ],
)
def test_only_times_tell_that_a_replica_is_away(faults):
    case = replace(STOCK, faults=(AddReplica(AtTime(2.0), 0), *faults), replicas=2)
    assert reach_of(case, CALLERS).reach == "custom callers"
    assert reach_of(as_stock(case, CALLERS), CALLERS).reach == "stock"


@pytest.mark.parametrize(
    ("replicas", "others"),
    [(1, ()), (2, (RemoveReplica(AtTime(0.5), 1),)), (2, (WeightUpdate(AtTime(0.5), 1.0, (1,)),))],
)
def test_the_last_replica_never_leaves(replicas, others):
    """To remove it is skipped, so that to add it again is to add one that is there."""
    case = replace(STOCK, faults=(*others, *STOCK.faults), replicas=replicas)
    assert reach_of(case, CALLERS).feature == "a replica added that may be there"
    assert reach_of(as_stock(case, CALLERS), CALLERS).reach == "stock"


def test_the_farthest_decides():
    case = replace(WITH["objects that are shared, not copied"], sessions=(Session(5),))
    assert reach_of(case, CALLERS).reach == "shared objects"
    order = [REACHES.index(feature.reach) for feature in FEATURES]
    assert order == sorted(order)


def test_a_framework_speaks_of_features_that_there_are():
    for framework in FRAMEWORKS.values():
        assert set(framework.callers) <= set(CALLERS)


def test_a_longer_context_has_a_pool_that_it_fits_in():
    engine = EngineSettings(num_gpu_blocks=2, max_num_batched_tokens=7, enable_chunked_prefill=False)
    case = replace(STOCK, budget=Budget(4, 40, 7), server=ServerSettings(engine=engine))
    stock = as_stock(case, CALLERS)
    assert (stock.budget.context_tokens, stock.server.engine.num_gpu_blocks) == (44, 4)
    assert stock.server.engine.max_num_batched_tokens == 44
