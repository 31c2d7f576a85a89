"""The installed verl, driven unmodified: the figures known for each release, and what its balancers do.

Skipped where verl cannot be imported. The figures are for the releases 0.8.0, 0.9.0 and 0.9.1; another version runs
the tests that hold for all of them.
"""

import pytest

from sim.case import Budget, Case, ClientView, Limit, Schedule, Session, Transport, Turn
from sim.faults import AbortAll, AddReplica, AfterTokens, AtTime, CancelClient, DelayReleases
from sim.invariants.judging import judge
from sim.sut.interface import SutError
from sim.sut.registry import load_sut
from sim.sut.verl import classes
from sim.world import run_world

try:
    VERL = load_sut("verl")
except SutError as error:
    pytest.skip(f"real verl is driven where it is installed: {error}", allow_module_level=True)

PLAIN = load_sut("verl:plain")
RELEASES = ("0.8.0", "0.9.0", "0.9.1")
RELEASE = VERL.key.removeprefix("verl==")

for_known_releases = pytest.mark.skipif(RELEASE not in RELEASES, reason=f"no figures for verl {RELEASE}")


def budget(max_model_len=32_768, **more):
    return Budget(prompt_length=2048, response_length=8192, max_model_len=max_model_len, **more)


def session(*turns, limit=None):
    return Session(136, turns, limit=limit)


EVERY_2000 = tuple(AbortAll(AfterTokens(0, 2000 * number), 0) for number in range(1, 7))
TOOL_LOOP = (Turn(8000, tool_tokens=100), Turn())

FIGURES = [
    ("async client", VERL, Case(budget(), (session(*TOOL_LOOP),)), (10104, 16292, 16292)),
    ("async client, context 10240", VERL, Case(budget(10_240), (session(*TOOL_LOOP),)), (10104, 10104, 10104)),
    ("plain client", PLAIN, Case(budget(), (session(*TOOL_LOOP),)), (10104, 10104, 10104)),
    (
        "async, explicit max_tokens 8192",
        VERL,
        Case(budget(), (session(*TOOL_LOOP, limit=Limit("max_tokens", 8192)),)),
        (8292, 16292, 16292),
    ),
    (
        "async, turns 2000/2000/2000/never",
        VERL,
        Case(budget(), (session(*[Turn(2000, tool_tokens=100)] * 3, Turn()),)),
        (10104, 14492, 14492),
    ),
    ("single turn, aborts about every 2000", VERL, Case(budget(), (session(Turn()),), EVERY_2000), (10104, 8192, 8192)),
]
"""Response tokens before the slice, tool tokens included, in each release."""


@for_known_releases
@pytest.mark.parametrize(("sut", "case", "figures"), [row[1:] for row in FIGURES], ids=[row[0] for row in FIGURES])
@pytest.mark.parametrize("objects", ["copies", "shared"])
def test_response_tokens_before_the_slice(sut, case, figures, objects):
    case = Case(case.budget, case.sessions, case.faults, transport=Transport(objects))
    ended = run_world(case, sut).ledger.sessions[0].ended

    assert ended.outcome == "ok"
    assert ended.response_tokens == dict(zip(RELEASES, figures, strict=True))[RELEASE]
    assert ended.kept_tokens == 8192


def numbers(case, sut=VERL):
    return {violation.invariant for violation in judge(case, run_world(case, sut))}


@for_known_releases
def test_the_overrun_of_a_single_turn_was_fixed_in_0_9_0():
    assert numbers(Case(budget(), (session(Turn()),), EVERY_2000)) == ({"B1", "B6"} if RELEASE == "0.8.0" else set())


@for_known_releases
def test_0_8_0_writes_into_the_callers_params():
    case = Case(budget(), (session(Turn(100), limit=Limit("max_tokens", 200)),))
    assert numbers(case) == ({"B4"} if RELEASE == "0.8.0" else set())


@pytest.mark.parametrize("shown", [None, 0, -1, "8192", 8192.0, True], ids=repr)
def test_a_config_without_a_usable_budget_leaves_the_limit_to_the_server_without_a_word(shown):
    """All but True, which 0.9.0 and 0.9.1 take for 1."""
    case = Case(budget(client_view=ClientView(shown)), (session(Turn()),), EVERY_2000)
    ended = run_world(case, VERL).ledger.sessions[0].ended
    counts_true_as_1 = shown is True and RELEASE != "0.8.0"
    assert ended.response_tokens == (1 if counts_true_as_1 else 10104)
    assert "B8" in numbers(case)


# Balancers

SMALL = Budget(4, 10, 64)


@for_known_releases
def test_a_replica_that_is_added_twice_counts_from_zero():
    """Later sessions all go to it, and its count no longer matches the truth."""
    sessions = tuple(Session(4, arrival_s=0.001 * number) for number in range(8))
    case = Case(SMALL, sessions, (AddReplica(AtTime(0.02), 0),), replicas=2)
    assert "R3" in numbers(case)


@for_known_releases
def test_equals_have_a_favourite_before_0_9_1():
    """The first of equals, always."""
    case = Case(SMALL, tuple(Session(4, arrival_s=float(number)) for number in range(60)), replicas=4)
    assert numbers(case) == (set() if RELEASE == "0.9.1" else {"R4"})


@pytest.mark.parametrize("seed", range(5))
def test_late_releases_alone_are_no_fault_of_the_balancer(seed):
    case = Case(
        SMALL,
        tuple(Session(4, (Turn(3, 1), Turn(2)), arrival_s=0.02 * number) for number in range(20)),
        (DelayReleases(AtTime(0.0), 0.7),),
        replicas=3,
        transport=Transport(balancer_delay_s=0.01),
        schedule=Schedule("random", seed),
    )
    assert numbers(case) <= ({"R4"} if RELEASE != "0.9.1" else set())


def test_a_client_cancelled_while_it_decodes_gives_its_slot_back():
    assert numbers(Case(SMALL, (Session(4),), (CancelClient(AfterTokens(0, 3), 0),))) == set()


def test_a_client_cancelled_while_it_acquires_keeps_its_slot():
    """It is counted when the balancer's answer finds nobody; nothing releases it.

    The first session only makes sure that 0.9.1's client has asked which fields its balancer wants.
    """
    case = Case(
        SMALL,
        (Session(4), Session(4, arrival_s=5.0)),
        (CancelClient(AtTime(5.3), 1),),
        transport=Transport(balancer_delay_s=0.5),
    )
    assert numbers(case) == {"R7"}


# What cannot be driven says what is missing


def test_a_client_of_another_shape_is_refused_with_what_is_missing(monkeypatch):
    monkeypatch.setitem(classes._CLIENTS, "verl", "NoSuchClient")
    with pytest.raises(SutError, match="cannot be driven: no NoSuchClient in verl"):
        load_sut("verl")


def test_a_balancer_of_another_shape_is_refused_with_what_is_missing(monkeypatch):
    monkeypatch.setattr(classes, "_BALANCER_METHODS", ("acquire_server", "steer"))
    with pytest.raises(SutError, match="GlobalRequestLoadBalancer has no method 'steer'"):
        load_sut("verl")
