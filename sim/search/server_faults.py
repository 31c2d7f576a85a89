"""Worlds in which servers fail: one more fault in a share of the worlds, so that all others stay as they are."""

from collections.abc import Callable
from typing import get_args

from hypothesis import strategies as st

from sim.faults import (
    AfterTokens,
    AtTime,
    CrashReplica,
    DelayAnswer,
    FailControl,
    FailRequest,
    Fault,
    LoseAnswer,
    RollingUpdate,
    WeightUpdate,
    When,
)
from sim.faults.stage import ControlCall

MakeTrouble = Callable[[When, int, int], tuple[Fault, ...]]
"""Makes it for a time, so many sessions and so many replicas; a control call fails everywhere, with an update."""

ONE_IN = 4
"""Worlds that have any."""

SERVER_FAULTS = (FailRequest, DelayAnswer, LoseAnswer, CrashReplica, FailControl, RollingUpdate)

_CALLS = get_args(ControlCall)


def _trouble(drawn: tuple[int, int, int]) -> MakeTrouble:
    kind, index, variant = drawn

    def make(when: When, sessions: int, replicas: int) -> tuple[Fault, ...]:
        session, replica = index % sessions, index % replicas
        match kind:
            case 0:
                # At another's time there seldom is a request of the session.
                return (FailRequest(AfterTokens(session, 1 + index) if variant else when, session),)
            case 1:
                return (DelayAnswer(when, session, 1.0 if variant else 90.0),)
            case 2:
                return (LoseAnswer(when, session, 30.0 if variant == 3 else 1.0),)
            case 3:
                return (CrashReplica(when, replica, 3.0 if variant // 2 else 1.0, variant % 2),)
            case 4:
                if variant % 2:  # the versions differ from the first token on
                    return (RollingUpdate(AtTime(0.0), 0.0, 30.0),)
                return (RollingUpdate(when, 1.0, 30.0 if variant // 2 else 3.0),)
        call, is_done = _CALLS[kind - 5], variant == 3
        everywhere = [FailControl(when, each, call, 1 + (variant == 2), is_done) for each in range(replicas)]
        # In this order, at the same time; a long pause would outlast what is at work.
        return *everywhere, WeightUpdate(when, 0.0 if variant < 3 else 1.0)

    return make


TROUBLES: st.SearchStrategy[MakeTrouble] = st.tuples(
    st.integers(0, 4 + len(_CALLS)), st.integers(0, 7), st.integers(0, 3)
).map(_trouble)
