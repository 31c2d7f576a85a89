"""Worlds in which sessions have to do with one another: they begin alike, wait for one another, are more urgent than
others, or come again. In a share of the worlds, so that all others stay as they are."""

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

from sim.case import Router, Session, Transport

Arrange = Callable[[tuple[Session, ...], Transport], dict[str, Any]]
"""Gives the fields of a Case that say how its sessions live together, themselves included."""

ONE_IN = 4
"""Worlds that have any of it."""

_PRIORITIES = (0, 1, -1, 7)
_MOST_LIVE = (None, None, 1, 2, 3)
_TIMES = (*[1] * 8, 2, 3)
_ROUTERS = (Router(), Router(), Router("first"), Router("random", sticky=False))
_MOST_REPEATED = 8
"""Sessions of a Case that is run again: more of them tell nothing new, and take long."""


def _crowd(drawn: tuple[Any, ...]) -> Arrange:
    sharing, urgent, most_live, times, router = drawn

    def arrange(sessions: tuple[Session, ...], transport: Transport) -> dict[str, Any]:
        made = []
        for index, session in enumerate(sessions):
            owner = 0 if index and sharing >> (index - 1) % 4 & 1 else None
            priority = _PRIORITIES[urgent >> 2 * (index % 3) & 3]
            made.append(msgspec.structs.replace(session, shares_prompt_with=owner, priority=priority))
        params_in_common = transport.objects == "shared" and any(each.shares_params_with is not None for each in made)
        return {
            "sessions": tuple(made),
            "router": router,
            "max_concurrent_sessions": most_live,
            "repeat": 1 if params_in_common or len(made) > _MOST_REPEATED else times,
        }

    return arrange


_crowds = st.tuples(
    st.integers(0, 15),
    st.integers(0, 63),
    st.sampled_from(_MOST_LIVE),
    st.sampled_from(_TIMES),
    st.sampled_from(_ROUTERS),
).map(_crowd)

CROWDS: st.SearchStrategy[Arrange | None] = st.one_of(*[st.none()] * (ONE_IN - 1), _crowds)
"""None: each session is on its own."""
