"""The whole Case is drawn: each of its fields, and of its faults', takes at least two values."""

from collections import defaultdict
from contextlib import suppress

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from msgspec import inspect

from sim.case import layout
from sim.search.draws import from_the_seed_alone
from sim.search.schedules import under_schedules
from sim.search.strategies import response_cases, routing_cases

DRAWS = 2000

SET_OTHERWISE = {
    "Case.format": "always the one that is written",
    "Schedule.deviations": "shrinking finds them: a seed stands for all orders",
    "Budget.policy": "hunt --policy",
    "ServerSettings.dialect": "hunt --dialect",
    "ServerSettings.max_parked_s": "the framework's adapter",
    "ServerSettings.face": "hunt --face",
}


def structs_in(kind, found):
    """All structs that a value of this type may have in it, by name."""
    match kind:
        case inspect.StructType():
            if kind.cls.__name__ not in found:
                found[kind.cls.__name__] = kind
                for field in kind.fields:
                    structs_in(field.type, found)
        case inspect.UnionType():
            for each in kind.types:
                structs_in(each, found)
        case inspect.VarTupleType():
            structs_in(kind.item_type, found)
        case inspect.TupleType():
            for each in kind.item_types:
                structs_in(each, found)
    return found


FIELDS = {
    f"{name}.{field.name}"
    for name, kind in structs_in(inspect.type_info(layout()), {}).items()
    for field in kind.fields
}


def note(value, seen):
    if isinstance(value, tuple):
        for each in value:
            note(each, seen)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            inside = getattr(value, name)
            values = seen[f"{type(value).__name__}.{name}"]
            if len(values) < 2:
                values.add(repr(inside))
            note(inside, seen)


class Enough(Exception):
    """Each field has taken two values."""


@pytest.fixture(scope="module")
def values():
    """Of each field, two of the values that it takes, if there are."""
    seen = defaultdict(set)

    @seed(3)
    @settings(
        max_examples=DRAWS,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(response_cases(), routing_cases()))
    def draw(case):
        for scheduled in under_schedules(case)[:2]:
            note(scheduled, seen)
        if all(len(seen[field]) >= 2 for field in FIELDS - SET_OTHERWISE.keys()):
            raise Enough

    with from_the_seed_alone(), suppress(Enough):
        draw()
    return seen


def test_every_field_takes_two_values(values):
    assert {field for field in FIELDS - SET_OTHERWISE.keys() if len(values[field]) < 2} == set()


@pytest.mark.parametrize("field", SET_OTHERWISE)
def test_what_is_set_otherwise_is_a_field_and_is_never_drawn(field, values):
    assert field in FIELDS
    assert len(values[field]) == 1


def test_a_field_that_is_forgotten_is_noticed():
    class Session(msgspec.Struct):
        drawn: int
        forgotten: int = 0

    seen = defaultdict(set)
    note((Session(1), Session(2)), seen)
    assert {field: len(found) for field, found in seen.items()} == {"Session.drawn": 2, "Session.forgotten": 1}
    assert "Case.sessions" in FIELDS
    assert "FailControl.call" in FIELDS
