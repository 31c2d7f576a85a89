"""A search of a package's client goes from near to far; of anybody else's all is alike."""

import dataclasses

from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from sim.case import Budget, Case, Session
from sim.reach import FEATURES, has_stock_callers, reach_of
from sim.search.campaign import Bounds
from sim.search.classics import classic_cases
from sim.search.nearest_first import nearest_first
from sim.search.strategies import response_cases
from sim.sut.registry import CLEAN, load_sut

CALLERS = dict.fromkeys([feature.name for feature in FEATURES], False)
REFERENCE = load_sut(CLEAN)
PACKAGE = dataclasses.replace(
    REFERENCE, key="package==1.0", framework=dataclasses.replace(REFERENCE.framework, callers=CALLERS)
)
CLASSICS = classic_cases(["budget"])
DRAWN = settings(database=None, max_examples=1000, phases=(Phase.generate,))


def parts(sut, bounds):
    return list(nearest_first(sut, bounds, response_cases(), CLASSICS, is_all=not has_stock_callers(sut)))


def is_far(case):
    return reach_of(case, CALLERS).reach != "stock"


def test_what_nobody_knows_the_callers_of_is_searched_in_one():
    assert [(bounds, classics) for bounds, _, classics in parts(REFERENCE, Bounds(worlds=10))] == [
        (Bounds(worlds=10), CLASSICS)
    ]


def test_most_of_the_worlds_are_near_and_the_rest_are_any():
    (near, first, stock), (far, then, rest) = parts(PACKAGE, Bounds(worlds=10))
    assert (near.worlds, far.worlds) == (8, 2)
    assert not any(map(is_far, stock))
    assert rest
    assert all(map(is_far, rest))
    assert find(first, lambda case: True, settings=DRAWN)
    assert is_far(find(then, is_far, settings=DRAWN))


@settings(max_examples=150, database=None, deadline=None)
@given(st.data())
def test_what_is_near_stays_so(data):
    (_, first, _), _ = parts(PACKAGE, Bounds(seconds=8.0))
    assert not is_far(data.draw(first))


def test_time_is_shared_out_as_worlds_are():
    assert [bounds.seconds for bounds, _, _ in parts(PACKAGE, Bounds(seconds=8.0))] == [6.0, 2.0]


def test_a_case_without_a_feature_is_stock():
    assert not is_far(Case(Budget(4, 10), (Session(4),)))
