"""Classic worlds: what goes wrong most often, written by hand. A search runs them before it draws any.

Each is small enough to read, and all that is in it is meant: chance meets a world like it only now and then.
"""

from collections.abc import Collection
from typing import Any

import msgspec

from sim.case import Budget, Case, ClientView, EngineSettings, Limit, Router, ServerSettings, Session, Transport, Turn
from sim.faults import (
    AbortAll,
    AbortRequest,
    AddReplica,
    AfterSent,
    AfterTokens,
    AtTime,
    CancelClient,
    CrashReplica,
    DelayAnswer,
    DelayReleases,
    FailControl,
    FailRequest,
    LoseAnswer,
    RemoveReplica,
    RollingUpdate,
    WeightUpdate,
)
from sim.invariants.table import INVARIANTS
from sim.policies import BudgetPolicy
from sim.settings import MAX_PARKED_S, Face


class Classic(msgspec.Struct, frozen=True):
    """A world and the invariants that it is there for, by number; a search for others of their kinds runs it too."""

    name: str
    meant_for: tuple[str, ...]
    case: Case


_BUDGET = Budget(4, 10)
_ROUTING_BUDGET = Budget(8, 8)
_TALK = (Turn(2, 1, 1.0), Turn(2, 1, 1.0), Turn(2))

CLASSICS = (
    # Responses that are cut and resumed
    Classic(
        "one session, one abort",
        ("B1", "B2", "L1", "L3", "A1", "A2", "A9", "V1"),
        Case(_BUDGET, (Session(2),), (AbortAll(AfterTokens(0, 6), 0),)),
    ),
    Classic("a natural end", ("A10",), Case(_BUDGET, (Session(2, (Turn(3),)),))),
    Classic(
        "an abort that is not resumed",
        ("A10",),
        Case(_BUDGET, (Session(2),), (AbortAll(AfterTokens(0, 6), 0),), partial_rollout=False),
    ),
    Classic(
        "an abort before the first token",
        ("A5",),
        Case(_BUDGET, (Session(2),), (AbortRequest(AtTime(1.0), 0),), server=ServerSettings(prefill_s=2.0)),
    ),
    Classic(
        "a limit of the caller's, and an abort",
        ("B4", "B10"),
        Case(_BUDGET, (Session(2, limit=Limit("max_tokens", 5)),), (AbortAll(AfterTokens(0, 3), 0),)),
    ),
    # The server's default charges what goes beyond the prompt's allowance to the response.
    Classic("a prompt beyond prompt_length", ("B2",), Case(_BUDGET, (Session(6),))),
    Classic("a limit of 0", ("B6",), Case(_BUDGET, (Session(2, limit=Limit("max_tokens", 0)),))),
    Classic(
        "a config without response_length",
        ("B8", "A9"),
        Case(Budget(4, 10, client_view=ClientView()), (Session(2),)),
    ),
    Classic("turns that fill a trajectory", ("B7",), Case(_BUDGET, (Session(2, (Turn(6, 1), Turn())),))),
    Classic(
        "two replicas and a weight update",
        ("B1", "S1", "S2"),
        Case(Budget(40, 20), (Session(36), Session(36)), (WeightUpdate(AfterTokens(0, 8)),), replicas=2),
    ),
    Classic(
        # Both grow until the pool of 12 blocks is short at 24 tokens each: the later one goes, and waits.
        "an abort while preempted",
        ("B1", "A1", "A2", "A9"),
        Case(
            Budget(8, 40, 48),
            (Session(4), Session(4)),
            (AbortAll(AfterTokens(0, 30), 0),),
            server=ServerSettings(engine=EngineSettings(num_gpu_blocks=13, block_size=4)),
        ),
    ),
    # Servers that fail
    Classic(
        "a request that fails beside another",
        ("B5",),
        Case(_BUDGET, (Session(2), Session(2, arrival_s=1.0)), (FailRequest(AfterTokens(0, 3), 0),)),
    ),
    Classic("an answer that is late", ("B2", "W2"), Case(_BUDGET, (Session(2),), (DelayAnswer(AtTime(0.0), 0, 90.0),))),
    Classic("an answer that is lost", ("B2",), Case(_BUDGET, (Session(2),), (LoseAnswer(AtTime(0.0), 0),))),
    Classic("a replica that dies", ("V1",), Case(_BUDGET, (Session(2),), (CrashReplica(AfterTokens(0, 3), 0),))),
    Classic(
        "an abort that fails",
        ("A4",),
        Case(_BUDGET, (Session(2),), (FailControl(AtTime(0.0), 0), WeightUpdate(AfterTokens(0, 3), 0.0))),
    ),
    Classic(
        "a resume that fails",
        ("A3",),
        Case(_BUDGET, (Session(2),), (FailControl(AtTime(0.0), 0, "resume"), WeightUpdate(AfterTokens(0, 3)))),
    ),
    Classic(
        # The first is answered with new weights at 3 s, the second with old ones at 4 s.
        "an update that has come to one of two replicas",
        ("A2",),
        Case(
            _ROUTING_BUDGET,
            (Session(1), Session(1, arrival_s=2.0)),
            (RollingUpdate(AtTime(0.6), 0.0, 4.0),),
            replicas=2,
            server=ServerSettings(token_time_s=0.25),
            router=Router("first"),
        ),
    ),
    Classic(
        "a config with a response_length that is no integer",
        ("A8",),
        Case(Budget(4, 10, client_view=ClientView(10.0)), (Session(2),)),
    ),
    # Sessions and the replicas that they are sent to
    Classic("a choice of two", ("D1",), Case(_ROUTING_BUDGET, (Session(1),), replicas=2)),
    Classic("a crowd", ("R1",), Case(_ROUTING_BUDGET, (Session(1),) * 8, replicas=3)),
    Classic(
        "a row",  # with this many replicas a dozen choices tell favour from chance
        ("R4",),
        Case(_ROUTING_BUDGET, tuple(Session(1, (Turn(1),), float(second)) for second in range(12)), replicas=8),
    ),
    Classic("talks with tools", ("R2",), Case(_ROUTING_BUDGET, (Session(1, _TALK),) * 4, replicas=2)),
    Classic(
        "cancelled while it acquires",
        ("R7",),
        Case(
            _ROUTING_BUDGET,
            (Session(1),),
            (CancelClient(AtTime(0.1), 0),),
            replicas=2,
            transport=Transport(balancer_delay_s=0.25),
        ),
    ),
    Classic(
        "cancelled while it generates",
        ("R7",),
        Case(_ROUTING_BUDGET, (Session(1),), (CancelClient(AfterTokens(0, 4), 0),), replicas=2),
    ),
    Classic(
        # What is released twice for the first is taken from the second, which is at work.
        "one of two cancelled while it decodes",
        ("R3", "W1"),
        Case(_ROUTING_BUDGET, (Session(1), Session(1)), (CancelClient(AfterTokens(0, 4), 0),)),
    ),
    Classic(
        "an answer that takes longer than a client may wait",
        ("R3",),
        Case(_ROUTING_BUDGET, (Session(1), Session(1)), replicas=2, server=ServerSettings(prefill_s=900.0)),
    ),
    Classic(
        "added while it is there",
        ("R3",),
        Case(_ROUTING_BUDGET, (Session(1),), (AddReplica(AfterSent(0, 1), 0),)),
    ),
    Classic(
        "removed between two turns",
        ("R5",),
        Case(
            _ROUTING_BUDGET,
            (Session(1, _TALK), Session(1, _TALK)),
            (RemoveReplica(AtTime(0.5), 0),),
            replicas=2,
        ),
    ),
    Classic(
        "a release lost until its replica is back",
        ("R3",),
        Case(
            _ROUTING_BUDGET,
            # Released at 2 s, heard of at 11 s, when the two later ones are at work.
            (Session(1), Session(1), Session(1, arrival_s=10.0), Session(1, arrival_s=10.0)),
            (DelayReleases(AtTime(0.0), 9.0, 4.0), RemoveReplica(AtTime(3.0), 0), AddReplica(AtTime(4.0), 0)),
            replicas=2,
            server=ServerSettings(token_time_s=0.25),
        ),
    ),
)


def classic_cases(
    kinds: Collection[str],
    dialect: str = "vllm",
    policy: BudgetPolicy = "turn",
    most_turns: int = 3,
    max_parked_s: float = MAX_PARKED_S,
    face: Face | None = None,
) -> tuple[Case, ...]:
    """The classics for invariants of these kinds, fitted to what a search varies."""
    return tuple(
        _fitted(classic.case, policy, most_turns, dialect=dialect, max_parked_s=max_parked_s, face=face)
        for classic in CLASSICS
        if any(INVARIANTS[number].kind in kinds for number in classic.meant_for)
    )


def _fitted(case: Case, policy: BudgetPolicy, most_turns: int, **server: Any) -> Case:
    replace = msgspec.structs.replace
    sessions = tuple(replace(session, turns=session.turns[:most_turns]) for session in case.sessions)
    budget = replace(case.budget, policy=policy)
    return replace(case, budget=budget, sessions=sessions, server=replace(case.server, **server))
