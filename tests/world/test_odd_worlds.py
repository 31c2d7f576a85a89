"""Odd worlds: anything that a Case can say, small, with edges of times, lengths and triggers more often than not."""

import gc
import random

import pytest

from sim.case import (
    Budget,
    Case,
    Limit,
    Router,
    Schedule,
    ServerSettings,
    Session,
    Transport,
    Turn,
    dumps,
    loads,
)
from sim.events import Logged
from sim.faults import (
    AbortAll,
    AbortRequest,
    AddReplica,
    AfterSent,
    AfterTokens,
    AtTime,
    CancelClient,
    ClearSticky,
    DelayReleases,
    RemoveReplica,
    WeightUpdate,
)
from sim.invariants.judging import judge
from sim.invariants.table import INVARIANTS
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world
from tests.world.worlds import BUDGET, events


def odd_case(seed):
    draw = random.Random(seed)
    token_time_s = draw.choice([0.01, 0.01, 0.0, 1.0])
    budget = Budget(draw.randint(1, 12), draw.randint(1, 20), draw.choice([None, draw.randint(2, 40), 40]))
    replicas, count = draw.choice([1, 2, 3]), draw.choice([1, 2, 3, 5])

    def seconds():
        return draw.choice([0.0, 0.0, 1.0, token_time_s * draw.randint(0, 20), draw.random()])

    def session(index):
        turns = tuple(
            Turn(draw.choice([None, draw.randint(1, 20)]), draw.choice([0, draw.randint(0, 5)]), seconds())
            for _ in range(draw.randint(1, 3))
        )
        limit = Limit(draw.choice(["max_tokens", "max_new_tokens", "both"]), draw.choice([0, 1, 5, 10**7]))
        shares = index > 0 and draw.random() < 0.2
        return Session(
            min(budget.context_tokens, draw.randint(1, 15)),
            turns,
            seconds(),
            limit if draw.random() < 0.3 and not shares else None,
            0 if shares else None,
        )

    def when():
        session, number = draw.randrange(count), draw.randint(1, 12)
        return draw.choice([AtTime(seconds()), AfterTokens(session, number), AfterSent(session, 1 + number % 3)])

    def fault():
        replica, session = draw.randrange(replicas), draw.randrange(count)
        return draw.choice(
            [
                WeightUpdate(when(), seconds(), tuple(draw.sample(range(replicas), draw.randrange(replicas)))),
                AbortAll(when(), replica, seconds()),
                AbortRequest(when(), session),
                CancelClient(when(), session),
                RemoveReplica(when(), replica),
                AddReplica(when(), replica),
                ClearSticky(when()),
                DelayReleases(when(), seconds(), draw.choice([seconds(), 1e7])),
            ]
        )

    return Case(
        budget,
        tuple(session(index) for index in range(count)),
        tuple(fault() for _ in range(draw.choice([0, 1, 2, 4, 8]))),
        replicas,
        ServerSettings(draw.choice(["vllm", "sglang"]), draw.random() < 0.7, token_time_s, seconds(), seconds()),
        Router(sticky=draw.random() < 0.8),
        Transport(draw.choice(["copies", "shared"]), seconds(), seconds()),
        draw.random() < 0.8,
        seed,
        draw.choice([Schedule(), Schedule("random", seed)]),
    )


@pytest.mark.parametrize("hundred", range(5))
def test_the_known_good_client_breaks_nothing_in_odd_worlds(hundred, capfd):
    for seed in range(100 * hundred, 100 * hundred + 100):
        case = odd_case(seed)
        trace = run_world(case, load_sut(CLEAN))
        assert judge(case, trace) == [], f"seed {seed}: {dumps(case)}"
        assert not events(trace, Logged), f"seed {seed}: {events(trace, Logged)}"
        assert loads(dumps(case)) == case
    gc.collect()
    assert capfd.readouterr() == ("", "")


def test_what_trtllms_server_does_to_a_limit_is_found():
    """It overwrites whatever limit the client sent: a pinned budget has no effect there."""
    faults = tuple(AbortAll(AfterTokens(0, tokens), 0) for tokens in (4, 8, 12))
    case = Case(Budget(8, 10, 64), (Session(2),), faults, server=ServerSettings("trtllm"))
    assert {violation.invariant for violation in judge(case, run_world(case, load_sut(CLEAN)))} == {"B1", "B10"}


def test_pinning_each_turn_overruns_a_trajectory():
    """What response_length limits is a policy: the same client is right by the turn, wrong by the whole."""
    for policy, found in (("turn", set()), ("trajectory", {"B1", "B7"})):
        case, sut = Case(Budget(4, 10, 64), (Session(4, (Turn(8, 1), Turn())),)), load_sut(CLEAN, {"budget": policy})
        assert {violation.invariant for violation in judge(case, run_world(case, sut))} == found


def test_known_good_is_good_in_a_large_world():
    sessions = tuple(Session(4, (Turn(3, 1), Turn()), arrival_s=0.01 * (index % 7)) for index in range(200))
    faults = (WeightUpdate(AtTime(0.05), 1.0, tuple(range(40))), WeightUpdate(AtTime(0.06), 0.0, (63,)))
    case = Case(BUDGET, sessions, faults, replicas=64)
    trace = run_world(case, load_sut(CLEAN))
    assert judge(case, trace) == []
    assert trace.is_done
    gc.collect()


def test_every_invariant_has_a_number_a_kind_and_a_sentence():
    assert len(INVARIANTS) == 30
    assert all(invariant.statement.endswith(".") for invariant in INVARIANTS.values())
