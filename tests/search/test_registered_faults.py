"""Faults that a project has registered are drawn by the names and types of their fields, and ours as ever."""

from typing import Annotated, Literal

import hypothesis
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from msgspec import Meta

from sim.case import dumps, loads
from sim.faults import FAULTS, Fault, register_fault
from sim.schema import CaseError, Index, Seconds
from sim.search.strategies import response_cases, routing_cases

QUICK = settings(
    max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
BOTH = pytest.mark.parametrize("strategy", [response_cases, routing_cases])


@pytest.fixture(autouse=True)
def _forgetful():
    with FAULTS.forgetting():
        yield


def kind(name, **fields):
    """A kind of fault with these fields, each a type or (type, default)."""
    pairs = [(key, *(of if isinstance(of, tuple) else (of,))) for key, of in fields.items()]
    acting = {"act": _act}
    return register_fault(
        msgspec.defstruct(f"Kind_{name}", pairs, bases=(Fault,), namespace=acting, frozen=True, tag=name, kw_only=True)
    )


async def _act(self, stage):
    return ""


def drawn(strategy, of, condition=lambda fault: True, *phases):
    """A fault of a kind with which a case is drawn."""
    case = find(
        strategy(),
        lambda case: any(isinstance(fault, of) and condition(fault) for fault in case.faults),
        settings=settings(QUICK, max_examples=3000, phases=phases or (Phase.generate,)),
    )
    return next(fault for fault in case.faults if isinstance(fault, of) and condition(fault))


def cases_of_a_seed(strategy):
    seen = []

    @hypothesis.seed(3)
    @settings(QUICK, derandomize=False, phases=(Phase.generate,), max_examples=20)
    @given(strategy())
    def look(case):
        seen.append(case)

    look()
    return seen


@BOTH
def test_sessions_and_replicas_are_some_that_there_are(strategy):
    both = kind("both", session=Index, replica=Index)
    seen = set()

    @settings(QUICK, max_examples=200)
    @given(strategy())
    def look(case):
        for fault in case.faults:
            if isinstance(fault, both):
                assert fault.session < case.num_sessions
                assert fault.replica < case.replicas
                seen.add((fault.session, fault.replica))
        assert loads(dumps(case)) == case

    look()
    assert len(seen) > 3


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (Seconds, {quarters / 4 for quarters in range(41)}),
        (Annotated[float, Meta(gt=0, le=0.5)], {0.25, 0.5}),
        (Annotated[float, Meta(ge=9.5, lt=10)], {9.5, 9.75}),
    ],
)
def test_what_ends_with_s_is_in_seconds(of, values):
    late = kind("late", pause_s=of)
    assert drawn(routing_cases, late).pause_s in values
    assert drawn(routing_cases, late, lambda fault: fault.pause_s == max(values))


@pytest.mark.parametrize(
    ("of", "least", "most"),
    [
        (int, 0, 7),
        (Annotated[int, Meta(ge=3, le=5)], 3, 5),
        (Annotated[int, Meta(gt=3, lt=6)], 4, 5),
        (Annotated[int, Meta(ge=1, multiple_of=4)], 4, 8),
        (bool, False, True),
        (Literal["a", "b"], "a", "b"),
    ],
)
def test_small_numbers_yes_or_no_and_one_of_some(of, least, most):
    some = kind("some", amount=of)
    for value in (least, most):
        assert drawn(routing_cases, some, lambda fault, value=value: fault.amount == value)


def test_the_simplest_is_the_default():
    for default in ("middle", "high"):
        with FAULTS.forgetting():
            some = kind("some", how=(Literal["high", "low", "middle"], default), more=(bool, True))
            fault = drawn(response_cases, some, lambda fault: True, Phase.generate, Phase.shrink)
            assert (fault.how, fault.more) == (default, True)


def test_what_nobody_knows_how_to_draw_keeps_its_default():
    odd = kind("odd", names=(tuple[str, ...], ("x",)), share=(float, 0.3), session=(Index | None, None))
    fault = drawn(routing_cases, odd)
    assert (fault.names, fault.share, fault.session) == (("x",), 0.3, None)


@pytest.mark.parametrize("of", [tuple[str, ...], float, str, Annotated[int, Meta(ge=5, le=4)]])
@BOTH
def test_a_kind_that_needs_it_is_not_drawn_and_changes_nothing(of, strategy):
    before = cases_of_a_seed(strategy)
    kind("needy", names=of)
    assert cases_of_a_seed(strategy) == before


def test_what_does_not_fit_a_case_is_left_out_of_it():
    class Picky(Fault, frozen=True, tag="picky"):
        act = _act

        def check(self, where, case):
            if case.replicas != 3:
                raise CaseError(f"{where}: it wants three replicas")

    register_fault(Picky)
    seen = set()

    @settings(QUICK, max_examples=200)
    @given(st.one_of(response_cases(), routing_cases()))
    def look(case):
        if any(isinstance(fault, Picky) for fault in case.faults):
            seen.add(case.replicas)

    look()
    assert seen == {3}
