"""Reach: who can meet a find. The least reachable feature of its case decides, by what a framework says of its callers.

From the nearest to the farthest: what the framework's own callers do (stock), what callers of one's own may do, what an
odd config brings, and objects that are shared, which no Ray actor does.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from sim.case import Case, Session
from sim.faults import AddReplica, AtTime, CancelClient, Fault, RemoveReplica, WeightUpdate
from sim.sut.framework import Sut

Reach = Literal["stock", "custom callers", "odd config", "shared objects"]
REACHES: tuple[Reach, ...] = get_args(Reach)


class Feature(NamedTuple):
    """Something that a Case may have and a framework's own callers may never bring about.

    `name`: in `Framework.callers`, where true means that they do it. `has`: whether a case has it; `without`: the case
    with as little change as it takes to have it no more.
    """

    name: str
    reach: Reach
    has: Callable[[Case], bool]
    without: Callable[[Case], Case]


def _changed(case: Case, **fields: Any) -> Case:
    return msgspec.structs.replace(case, **fields)


def _sessions(case: Case, change: Callable[[Session], Session]) -> Case:
    return _changed(case, sessions=tuple([change(session) for session in case.sessions]))


def _has_long_prompt(case: Case) -> bool:
    return any(session.prompt_tokens > case.budget.prompt_length for session in case.sessions)


def _with_short_prompts(case: Case) -> Case:
    most = case.budget.prompt_length
    return _sessions(case, lambda each: msgspec.structs.replace(each, prompt_tokens=min(each.prompt_tokens, most)))


def _context_of_both(case: Case) -> int:
    """As long as it may be, where it has to be shorter than both."""
    return min(case.budget.prompt_length + case.budget.response_length, case.budget.max_position_embeddings)


def _with_context(case: Case, tokens: int) -> Case:
    """With an engine that vLLM would start with at that context."""
    budget, server, engine = msgspec.structs.replace(case.budget, max_model_len=tokens), case.server, case.server.engine
    if engine is not None:
        server = msgspec.structs.replace(server, engine=engine.fitted(tokens))
    return _changed(case, budget=budget, server=server)


def _may_leave(replica: int, case: Case) -> bool:
    """Whether some other replica stays."""
    leave = {fault.replica for fault in case.faults if isinstance(fault, RemoveReplica)}
    leave.update(*[fault.leaving for fault in case.faults if isinstance(fault, WeightUpdate)])
    return bool(set(range(case.replicas)) - leave - {replica})


def _adds_live(fault: Fault, case: Case) -> bool:
    """Whether a replica is added that may be there: only times tell for sure that it left before, and is away still.
    The last replica never leaves, so that another has to be there for good."""
    if not isinstance(fault, AddReplica):
        return False
    if not isinstance(fault.at, AtTime) or not _may_leave(fault.replica, case):
        return True
    before, left = -1.0, False
    for other in case.faults:
        if other is fault or not isinstance(other, AddReplica | RemoveReplica) or other.replica != fault.replica:
            continue
        if not isinstance(other.at, AtTime):
            if isinstance(other, AddReplica):
                return True
        elif other.at.time_s == fault.at.time_s:
            return True
        elif before <= other.at.time_s < fault.at.time_s:
            before, left = other.at.time_s, isinstance(other, RemoveReplica) and other.at.time_s != before
    return not left


def _only_pauses(fault: Fault) -> bool:
    return getattr(fault, "pause_mode", "abort") != "abort"


def _aborting(fault: Fault) -> Fault:
    return msgspec.structs.replace(fault, pause_mode="abort") if _only_pauses(fault) else fault


def _keeps_cache(fault: Fault) -> bool:
    return getattr(fault, "reset_prefix_cache", True) is False


def _with_cache_reset(fault: Fault) -> Fault:
    return msgspec.structs.replace(fault, reset_prefix_cache=True) if _keeps_cache(fault) else fault


FEATURES: tuple[Feature, ...] = (
    Feature("a first prompt beyond prompt_length", "custom callers", _has_long_prompt, _with_short_prompts),
    Feature(
        "a limit of the caller's own",
        "custom callers",
        lambda case: any(session.limit is not None for session in case.sessions),
        lambda case: _sessions(case, lambda each: msgspec.structs.replace(each, limit=None)),
    ),
    Feature(
        "priorities of requests",
        "custom callers",
        lambda case: any(session.priority for session in case.sessions),
        lambda case: _sessions(case, lambda each: msgspec.structs.replace(each, priority=0)),
    ),
    Feature(
        "a replica added that may be there",
        "custom callers",
        lambda case: any(_adds_live(fault, case) for fault in case.faults),
        lambda case: _changed(case, faults=tuple([each for each in case.faults if not _adds_live(each, case)])),
    ),
    Feature(
        "a call that is cancelled",
        "custom callers",
        lambda case: any(isinstance(fault, CancelClient) for fault in case.faults),
        lambda case: _changed(case, faults=tuple([f for f in case.faults if not isinstance(f, CancelClient)])),
    ),
    Feature(
        "a config that lacks, or misspells, response_length",
        "odd config",
        lambda case: case.budget.client_view is not None,
        lambda case: _changed(case, budget=msgspec.structs.replace(case.budget, client_view=None)),
    ),
    Feature(
        "a context shorter than prompt_length + response_length",
        "odd config",
        lambda case: case.budget.context_tokens < case.budget.prompt_length + case.budget.response_length,
        lambda case: _with_context(case, _context_of_both(case)),
    ),
    Feature(
        "a pause that does not abort",
        "odd config",
        lambda case: any(_only_pauses(fault) for fault in case.faults),
        lambda case: _changed(case, faults=tuple([_aborting(fault) for fault in case.faults])),
    ),
    Feature(
        "a prefix cache that is kept over an update",
        "odd config",
        lambda case: any(_keeps_cache(fault) for fault in case.faults),
        lambda case: _changed(case, faults=tuple([_with_cache_reset(fault) for fault in case.faults])),
    ),
    Feature(
        "objects that are shared, not copied",
        "shared objects",
        lambda case: case.transport.objects == "shared",
        lambda case: _changed(case, transport=msgspec.structs.replace(case.transport, objects="copies")),
    ),
)
"""The farther ones last."""


class Reached(NamedTuple):
    """Who can meet a case, and the feature that decides it; none for what is stock."""

    reach: Reach
    feature: str = ""


def reach_of(case: Case, callers: Mapping[str, bool]) -> Reached:
    """By what a framework says of its own callers (`Framework.callers`)."""
    farthest = Reached("stock")
    for feature in FEATURES:
        if not callers.get(feature.name, False) and feature.has(case):
            farthest = Reached(feature.reach, feature.name)
    return farthest


def is_farther(reach: Reach, other: Reach) -> bool:
    """Whether fewer meet the one than the other."""
    return REACHES.index(reach) > REACHES.index(other)


def as_stock(case: Case, callers: Mapping[str, bool]) -> Case:
    """The case without what the framework's own callers never bring about."""
    for feature in FEATURES:
        if not callers.get(feature.name, False) and feature.has(case):
            case = feature.without(case)
    return case


def has_stock_callers(sut: Sut) -> bool:
    """Whether it is known what its own callers do: those of a package are the framework's."""
    return "==" in sut.key and bool(sut.framework.callers)
