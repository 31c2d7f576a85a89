"""Hypothesis strategies for Cases, one for each kind of invariant.

They shrink towards one session, no faults, small lengths and whole seconds. A strategy never looks at a system under
test. A draw is dear beside a small world, so each strategy is one static tree, built once: what must fit together
(an index, a length within the context) is fitted afterwards, and the schedule is left to a seed.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import UNSET

from sim.case import Budget, Case, ClientView, Limit, ServerSettings, Session, Transport, Turn
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
    Fault,
    RemoveReplica,
    WeightUpdate,
    When,
)
from sim.policies import BudgetPolicy

MakeFault = Callable[[int, int, int], Fault]
"""Makes a fault that fits a number of sessions, of replicas, and the response_length."""

MOST_TOKENS = 64
"""Lengths are drawn up to this: the arithmetic is the same at any scale, and small worlds are fast."""

MOST_SESSIONS_IN_A_ROW = 48
"""Enough choices among equals for R4 to tell chance from favour."""

_lengths = st.integers(1, MOST_TOKENS)
_indexes = st.integers(0, 7)
_seconds = st.integers(0, 40).map(lambda quarters: quarters / 4)

_ODD_RESPONSE_LENGTHS: list[Any] = [UNSET, None, 0, -1, "8", 8.0, True, False]
_views = st.integers(0, 63).map(
    lambda n: ClientView(_ODD_RESPONSE_LENGTHS[n - 56]) if n >= 64 - len(_ODD_RESPONSE_LENGTHS) else None
)
_TRANSPORTS = [Transport()] * 3 + [
    Transport(objects, server_delay_s, balancer_delay_s)
    for objects in ("copies", "shared")
    for server_delay_s in (0.0, 0.25)
    for balancer_delay_s in (0.0, 0.25)
]
_transports = st.sampled_from(_TRANSPORTS)
_SERVERS = [ServerSettings()] * 6 + [
    ServerSettings(submission_gate=gate, prefill_s=prefill_s, admission_s=admission_s)
    for gate in (True, False)
    for prefill_s in (0.0, 0.25)
    for admission_s in (0.0, 0.25)
]
_servers = st.sampled_from(_SERVERS)

# Sessions

_stops = st.integers(-2 * MOST_TOKENS, MOST_TOKENS).map(lambda tokens: tokens if tokens > 0 else None)
_turn = st.tuples(_stops, st.integers(0, 8), _seconds)
_limits = st.integers(-6 * MOST_TOKENS, 2 * MOST_TOKENS + 1).map(
    lambda n: None if n < 0 else Limit("max_tokens" if n % 2 else "max_new_tokens", n // 2)
)
_session = st.tuples(
    _lengths, st.lists(_turn, min_size=1, max_size=3), _seconds, _limits, st.integers(0, 7).map(lambda n: n == 7)
)


def _fitted_sessions(drawn: list[Any], budget: Budget, most_turns: int) -> tuple[Session, ...]:
    longest = max(1, min(budget.prompt_length, budget.context_tokens - 1))
    sessions: list[Session] = []
    for prompt_tokens, drawn_turns, arrival_s, limit, wants_sharing in drawn:
        turns = [Turn(stop, tokens, time_s) for stop, tokens, time_s in drawn_turns[:most_turns]]
        turns[-1] = Turn(turns[-1].response_tokens)
        shares = wants_sharing and len(sessions) > 0
        lender, own_limit = (0, None) if shares else (None, limit)
        sessions.append(Session(min(prompt_tokens, longest), tuple(turns), arrival_s, own_limit, lender))
    return tuple(sessions)


# Faults


def _fitted_when(drawn: tuple[int, int, int, float], sessions: int, response_length: int) -> When:
    how, session, amount, time_s = drawn
    session %= sessions
    if how < 4:
        return AfterTokens(session, 1 + (amount - 1) % response_length)
    return AfterSent(session, 1 + amount % 3) if how == 4 else AtTime(time_s)


_when = st.tuples(st.integers(0, 5), _indexes, _lengths, _seconds)


def _abort_fault(drawn: tuple[tuple[int, int, int, float], int, int, float]) -> MakeFault:
    drawn_when, kind, index, pause_s = drawn

    def make(sessions: int, replicas: int, response_length: int) -> Fault:
        when = _fitted_when(drawn_when, sessions, response_length)
        if kind == 3:
            return AbortRequest(when, index % sessions)
        if kind == 2:
            return AbortAll(when, index % replicas, pause_s)
        leaving = (index % replicas,) if kind == 1 and replicas > 1 else ()
        return WeightUpdate(when, pause_s, leaving)

    return make


def _cancel_fault(drawn: tuple[tuple[int, int, int, float], int]) -> MakeFault:
    drawn_when, index = drawn

    def make(sessions: int, replicas: int, response_length: int) -> Fault:
        del replicas
        return CancelClient(_fitted_when(drawn_when, sessions, response_length), index % sessions)

    return make


def _membership_fault(drawn: tuple[int, bool, int, int, float]) -> MakeFault:
    kind, by_event, session, replica, time_s = drawn

    def make(sessions: int, replicas: int, response_length: int) -> Fault:
        del response_length
        when: When = AfterSent(session % sessions, 1) if by_event else AtTime(time_s)
        if kind == 0:
            return AddReplica(when, replica % replicas)
        if kind == 1:
            return RemoveReplica(when, replica % replicas)
        if kind == 2:
            return DelayReleases(when, 1.0 + time_s)
        return ClearSticky(when)

    return make


_abort_faults = st.tuples(_when, st.integers(0, 3), _indexes, st.sampled_from([1.0, 0.0, 3.0])).map(_abort_fault)
_cancel_faults = st.tuples(_when, _indexes).map(_cancel_fault)
_membership_faults = st.tuples(st.integers(0, 3), st.booleans(), _indexes, _indexes, _seconds).map(_membership_fault)
_response_faults = st.lists(
    st.one_of(_abort_faults, _abort_faults, _abort_faults, _cancel_faults), min_size=1, max_size=4
)
_routing_faults = st.lists(st.one_of(_membership_faults, _membership_faults, _cancel_faults, _abort_faults), max_size=4)


def _with_dialect(server: ServerSettings, dialect: str) -> ServerSettings:
    return msgspec.structs.replace(server, dialect=dialect)


# Cases


def response_cases(
    dialect: str = "vllm", policy: BudgetPolicy = "turn", most_turns: int = 3
) -> st.SearchStrategy[Case]:
    """A few sessions whose responses are aborted and resumed: budgets, limits, configs, conservation, liveness."""

    def fitted(drawn: tuple[Any, ...]) -> Case:
        prompt_length, response_length, spare, view, replicas, sessions, faults, server, transport, odds, seed = drawn
        calm, drops = odds == 0, odds == 7
        context: Any = max(2, prompt_length + response_length + 8 - spare) if spare else UNSET
        budget = Budget(prompt_length, response_length, context, policy=policy, client_view=view)
        fitted_sessions = _fitted_sessions(sessions, budget, most_turns)
        return Case(
            budget=budget,
            sessions=fitted_sessions,
            faults=() if calm else tuple(make(len(fitted_sessions), replicas, response_length) for make in faults),
            replicas=replicas,
            server=_with_dialect(server, dialect),
            transport=transport,
            partial_rollout=not drops,
            seed=seed,
        )

    spares = st.integers(-2 * MOST_TOKENS, MOST_TOKENS).map(lambda n: max(0, n))
    return st.tuples(
        _lengths,
        _lengths,
        spares,
        _views,
        st.integers(1, 3),
        st.lists(_session, min_size=1, max_size=4),
        _response_faults,
        _servers,
        _transports,
        st.integers(0, 7),
        st.integers(0, 255),
    ).map(fitted)


def routing_cases(dialect: str = "vllm", policy: BudgetPolicy = "turn", most_turns: int = 3) -> st.SearchStrategy[Case]:
    """Sessions in a row or at once on several replicas that come and go: counters, stickiness, spread."""
    budget = Budget(8, 8, policy=policy)

    def in_a_row(drawn: tuple[int, float, int]) -> tuple[Session, ...]:
        count, spacing_s, tokens = drawn
        return tuple(Session(1, (Turn(tokens),), index * spacing_s) for index in range(count))

    rows = st.tuples(st.integers(1, MOST_SESSIONS_IN_A_ROW), st.sampled_from([1.0, 0.25, 0.0]), st.integers(1, 8)).map(
        in_a_row
    )
    crowds = st.lists(_session, min_size=1, max_size=8).map(lambda drawn: _fitted_sessions(drawn, budget, most_turns))

    def fitted(drawn: tuple[Any, ...]) -> Case:
        sessions, replicas, faults, server, transport, seed = drawn
        return Case(
            budget=budget,
            sessions=sessions,
            faults=tuple(make(len(sessions), replicas, budget.response_length) for make in faults),
            replicas=replicas,
            server=_with_dialect(server, dialect),
            transport=transport,
            seed=seed,
        )

    return st.tuples(
        st.one_of(rows, crowds), st.integers(2, 4), _routing_faults, _servers, _transports, st.integers(0, 255)
    ).map(fitted)


STRATEGIES: dict[str, Callable[..., st.SearchStrategy[Case]]] = {
    "budget": response_cases,
    "lifecycle": response_cases,
    "routing": routing_cases,
    "liveness": response_cases,
    "staleness": response_cases,
    "harness": routing_cases,
}
"""The worlds in which invariants of a kind are looked for."""
