"""Reducing a world by whole parts: sessions, faults, turns, replicas, settings.

Hypothesis shrinks what it drew, and drew sessions and faults apart from each other: without a session the indexes that
faults name point elsewhere, so such a step rarely keeps a violation. Here a part goes with all that names it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from sim.case import AtTime, Case, CaseError, Fault, Router, ServerSettings, Session, Transport

Fails = Callable[[Case], bool]

MOST_STEPS = 200
"""Parts taken away at the most."""


def reduce_world(case: Case, fails: Fails) -> Case:
    """The case without every part that `fails` does not need: no single step of `smaller` keeps it failing."""
    for _ in range(MOST_STEPS):
        smaller_case = next((each for each in smaller(case) if fails(each)), None)
        if smaller_case is None:
            return case
        case = smaller_case
    return case


def smaller(case: Case) -> Iterator[Case]:
    """The cases that are one part smaller, large parts first; each is possible in itself."""
    for change in _changes(case):
        try:
            yield msgspec.structs.replace(case, **change)
        except CaseError:
            continue


def _changes(case: Case) -> Iterator[dict[str, Any]]:
    sessions, faults = case.sessions, case.faults
    if len(sessions) > 1:
        for index in range(len(sessions)):
            yield {
                "sessions": tuple(_renumbered(s, index) for i, s in enumerate(sessions) if i != index),
                "faults": tuple(left for fault in faults if (left := _without_session(fault, index)) is not None),
            }
    for index in range(len(faults)):
        yield {"faults": faults[:index] + faults[index + 1 :]}
    for index, session in enumerate(sessions):
        for simpler in _simpler_sessions(session):
            yield {"sessions": (*sessions[:index], simpler, *sessions[index + 1 :])}
    if case.replicas > 1:
        yield {"replicas": case.replicas - 1}
    for name, default in (
        ("transport", Transport()),
        ("router", Router()),
        ("server", ServerSettings(case.server.dialect)),
        ("partial_rollout", True),
        ("seed", 0),
    ):
        if getattr(case, name) != default:
            yield {name: default}
    if case.budget.client_view is not None:
        yield {"budget": msgspec.structs.replace(case.budget, client_view=None)}
    if case.budget.max_model_len is not UNSET:
        yield {"budget": msgspec.structs.replace(case.budget, max_model_len=UNSET)}


def _simpler_sessions(session: Session) -> Iterator[Session]:
    replace = msgspec.structs.replace
    if len(session.turns) > 1:
        yield replace(session, turns=session.turns[:-1])
    if session.limit is not None:
        yield replace(session, limit=None)
    if session.shares_params_with is not None:
        yield replace(session, shares_params_with=None)
    if session.arrival_s:
        yield replace(session, arrival_s=0.0)
    for index, turn in enumerate(session.turns):
        if turn.response_tokens is not None:
            freed = replace(turn, response_tokens=None)
            yield replace(session, turns=(*session.turns[:index], freed, *session.turns[index + 1 :]))


def _renumbered(session: Session, gone: int) -> Session:
    lender = session.shares_params_with
    if lender is None or lender < gone:
        return session
    return msgspec.structs.replace(session, shares_params_with=None if lender == gone else lender - 1)


def _without_session(fault: Fault, gone: int) -> Fault | None:
    """The fault in a world without that session; None where it was about it."""
    named = [getattr(fault, "session", None), None if isinstance(fault.at, AtTime) else fault.at.session]
    if gone in named:
        return None
    change: dict[str, Any] = {}
    if named[0] is not None and named[0] > gone:
        change["session"] = named[0] - 1
    if named[1] is not None and named[1] > gone:
        change["at"] = msgspec.structs.replace(fault.at, session=named[1] - 1)
    return msgspec.structs.replace(fault, **change)
