"""What cannot be what it is registered as is refused: the message has the field, the value and what is allowed."""

import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from sim.dialects import DIALECTS, PLAIN_VLLM, Dialect, register_dialect
from sim.faults import FAULTS, Fault, Stage, register_fault
from sim.invariants.interface import Invariant
from sim.invariants.table import INVARIANTS, register_invariant
from sim.registry import RegistrationError
from sim.schema import Data, Index, Seconds
from sim.sut.framework import Framework, TrainerCalls
from sim.sut.frameworks import FRAMEWORKS, register_framework
from sim.transport.protocol import BalancerProtocol, RequestProtocol

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("forgetful")


def refused(register, thing):
    with pytest.raises(RegistrationError) as caught:
        register(thing)
    return str(caught.value)


# Dialects

WIDE = dataclasses.replace(PLAIN_VLLM, name="wide")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"limit_keys": "max_tokens"}, "limit_keys is 'max_tokens'; a value of type tuple[str, ...] is needed"),
        ({"limit_keys": ["max_tokens"]}, "limit_keys is ['max_tokens']; a value of type tuple[str, ...] is needed"),
        (
            {"pause_waits_for": "everything"},
            "pause_waits_for is 'everything'; 'nothing' or 'admitted' or 'first token' is needed",
        ),
        ({"least_grant": "1"}, "least_grant is '1'; a value of type int is needed"),
        ({"least_grant": -1}, "least_grant is -1; at least 0 is needed"),
        ({"has_gate": None}, "has_gate is None; a value of type bool is needed"),
        ({"default": None}, "default is None; an object with the methods terms, spelled is needed"),
        ({"stop_reasons": {"stop": "stop"}}, "stop_reasons lacks length, abort; stop, length, abort are needed"),
        ({"name": "light blue"}, "'light blue' is no name for a dialect"),
        ({"name": 3}, "name is 3; a value of type str is needed"),
    ],
)
def test_a_dialect_that_cannot_be(changed, told):
    assert told in refused(register_dialect, dataclasses.replace(WIDE, **changed))
    assert "wide" not in DIALECTS


def test_what_is_no_dialect():
    assert refused(register_dialect, None) == "dialect '?' is None; a Dialect is needed"


def test_a_dialect_that_is_right():
    assert register_dialect(WIDE) is DIALECTS["wide"]


# Frameworks


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"trainer": None}, "trainer is None; an object with the methods abort_all, pause, resume, set_weight_version"),
        ({"make_config": {}}, "make_config is {}; a function is needed"),
        ({"max_parked_s": "60"}, "max_parked_s is '60'; a value of type float is needed"),
        ({"suts": "nest"}, "suts is 'nest'; a value of type tuple[str, ...] is needed"),
        ({"suts": ("nest", "beehive")}, "suts has 'beehive'; nest or nest:VARIANT is needed"),
        ({"policies": {"budgets": "turn"}}, "there is no policy 'budgets'; did you mean budget?"),
        ({"balancer": None}, "balancer is None; a value of type BalancerProtocol is needed"),
    ],
)
def test_a_framework_that_cannot_be(changed, told, plugin):
    nest = dataclasses.replace(plugin("toy_framework").HIVE, name="nest", suts=("nest",))
    assert told in refused(register_framework, dataclasses.replace(nest, **changed))
    assert "nest" not in FRAMEWORKS


def test_a_framework_whose_balancer_or_server_is_not_spoken_to_as_it_is(plugin):
    hive = plugin("toy_framework").HIVE
    nest = dataclasses.replace(hive, name="nest", suts=("nest",))

    def having(roles):
        return dataclasses.replace(nest, balancer=dataclasses.replace(hive.balancer, roles=roles))

    assert "balancer.roles is {'lease': 'aquire'}" in refused(register_framework, having({"lease": "aquire"}))
    assert "no message for release" in refused(register_framework, having({"lease": "acquire"}))
    asks = dataclasses.replace(hive.requests, method="compleat")
    told = refused(register_framework, dataclasses.replace(nest, requests=asks))
    assert "requests.method is 'compleat'; make_face, Worker, has no such method" in told


# Faults


def test_a_fault_without_a_tag_of_its_own():
    class Stall(Fault, frozen=True):
        async def act(self, stage):
            return ""

    assert "fault Stall has no tag of its own" in refused(register_fault, Stall)
    assert "Stall" not in FAULTS


def test_a_fault_that_does_not_act():
    class Idle(Fault, frozen=True, tag="idle"):
        async def acts(self, stage):
            return ""

    class Sync(Fault, frozen=True, tag="sync"):
        def act(self, stage):
            return ""

    assert refused(register_fault, Idle) == "fault 'idle': class Idle has no act; async def act(self, stage) is needed"
    assert "fault 'sync': act of class Sync is no async def" in refused(register_fault, Sync)


class Pair(Data, frozen=True):
    first: int
    second: int


@pytest.mark.parametrize("kind", [complex, dict, dict[str, int], list[int], set, bytes, object, Any])
def test_a_fault_with_a_field_that_a_case_cannot_hold(kind):
    odd = type(Fault)("Odd", (Fault,), {"__annotations__": {"how": kind}, "act": _act}, frozen=True, tag="odd")
    assert "fault 'odd': field how is of type" in refused(register_fault, odd)


def test_a_fault_whose_default_does_not_fit():
    kind = type(Fault)(
        "Odd", (Fault,), {"__annotations__": {"how": int}, "how": "x", "act": _act}, frozen=True, tag="odd"
    )
    assert "fault 'odd': field how has the default 'x': Expected `int`, got `str`" in refused(register_fault, kind)


@pytest.mark.parametrize(
    "kind", [int, Index, Seconds, str, bool, float | None, tuple[int, ...], Pair, tuple[Pair, str]]
)
def test_a_fault_with_a_field_that_a_case_can_hold(kind):
    fine = type(Fault)("Fine", (Fault,), {"__annotations__": {"how": kind}, "act": _act}, frozen=True, tag="fine")
    assert register_fault(fine) is fine


async def _act(self, stage):
    return ""


# Invariants


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"number": 1}, "number is 1; a value of type str is needed"),
        ({"kind": "budgets"}, "kind is 'budgets'; 'budget' or 'alignment'"),
        ({"check": None}, "check is None; a function is needed"),
        ({"scope": "all"}, "scope is 'all'; 'sessions' or 'run' is needed"),
    ],
)
def test_an_invariant_that_cannot_be(changed, told):
    fine = Invariant("Z1", "lifecycle", "Fine.", lambda _: [])
    assert told in refused(register_invariant, dataclasses.replace(fine, **changed))
    assert "Z1" not in INVARIANTS


# What is written of them


@pytest.mark.parametrize(
    "record", [Dialect, Framework, Invariant, RequestProtocol, BalancerProtocol, Fault, Stage, TrainerCalls]
)
def test_each_field_and_method_is_named_in_the_architecture(record):
    section = (ROOT / "ARCHITECTURE.md").read_text().partition("## What the records hold")[2]
    lacking = [
        name for name in (*get_type_hints(record), *vars(record)) if name[0] != "_" and f"`{name}" not in section
    ]
    methods_of_a_dialect = {"take_grant", "room_tokens", "ends", "default_tokens", "spelled_default"}
    assert set(lacking) <= methods_of_a_dialect | {"call", "broken_in"}
