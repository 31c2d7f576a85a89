"""Hypothesis strategies for Cases, one for each kind of invariant.

They shrink towards one session, no faults, small lengths and whole seconds. A strategy never looks at a system under
test. A draw is dear beside a small world, so each strategy is one static tree, built once: what must fit together
(an index, a length within the context) is fitted afterwards, and the schedule is left to a seed. Faults that a project
has registered are drawn with ours, by the names and types of their fields.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st
from msgspec import UNSET, inspect

from sim.case import Budget, Case, ClientView, Limit, ServerSettings, Session, Transport, Turn
from sim.engine.config import PauseMode
from sim.faults import (
    FAULTS,
    AbortAll,
    AbortRequest,
    AddReplica,
    AfterSent,
    AfterTokens,
    AtTime,
    CancelClient,
    ClearSticky,
    DelayReleases,
    Every,
    Fault,
    RemoveReplica,
    WeightUpdate,
    When,
)
from sim.policies import BudgetPolicy
from sim.registry import load_installed_plugins
from sim.schema import CaseError
from sim.search.crowds import CROWDS, Arrange
from sim.search.engines import ENGINES, Fit
from sim.search.server_faults import ONE_IN, SERVER_FAULTS, TROUBLES
from sim.settings import MAX_PARKED_S, Face

MakeFault = Callable[[int, int, int], Fault]
"""Makes a fault that fits a number of sessions, of replicas, and the response_length."""

MOST_TOKENS = 64
"""Lengths are drawn up to this: the arithmetic is the same at any scale, and small worlds are fast."""

MOST_SESSIONS_IN_A_ROW = 48
"""Enough choices among equals for R4 to tell chance from favour."""

_LEAST_BETWEEN_S = 2.0
"""Between two updates of a trainer that comes again: most calls come through."""

_lengths = st.integers(1, MOST_TOKENS)
_LAST_INDEX = 7
_indexes = st.integers(0, _LAST_INDEX)
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
    lambda n: None if n < 0 else Limit(("max_new_tokens", "max_tokens", "max_new_tokens", "both")[n % 4], n // 2)
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


_ODD_PAUSES: tuple[tuple[PauseMode, bool], ...] = (
    ("keep", True),
    ("wait", True),
    ("abort", False),
    ("keep", False),
    ("wait", False),
)
"""A pause's mode, and whether it clears the prefix cache, in ways that verl's trainers do not have."""


def _abort_fault(drawn: tuple[tuple[int, int, int, float], int, int, float]) -> MakeFault:
    drawn_when, number, index, pause_s = drawn
    kind, variant = number % 4, _MOST_VARIANTS - 1 - number // 4
    mode, is_cleared = _ODD_PAUSES[variant] if variant < len(_ODD_PAUSES) else ("abort", True)
    comes_again = variant == len(_ODD_PAUSES)

    def make(sessions: int, replicas: int, response_length: int) -> Fault:
        when = _fitted_when(drawn_when, sessions, response_length)
        if comes_again:
            when = Every(_LEAST_BETWEEN_S + drawn_when[3])
        if kind == 3:
            return AbortRequest(when, index % sessions)
        if kind == 2:
            return AbortAll(when, index % replicas, pause_s, is_cleared)
        leaving = (index % replicas,) if kind == 1 and replicas > 1 and mode == "abort" else ()
        return WeightUpdate(when, pause_s, leaving, is_cleared, mode)

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
            return DelayReleases(when, 1.0 + time_s, *([4.0] if replica == _LAST_INDEX else []))
        return ClearSticky(when)

    return make


_MOST_VARIANTS = 32
_abort_faults = st.tuples(
    _when, st.integers(0, 4 * _MOST_VARIANTS - 1), _indexes, st.sampled_from([1.0, 0.0, 3.0])
).map(_abort_fault)
_cancel_faults = st.tuples(_when, _indexes).map(_cancel_fault)
_membership_faults = st.tuples(st.integers(0, 3), st.booleans(), _indexes, _indexes, _seconds).map(_membership_fault)

_troubles = st.one_of(*[st.none()] * (ONE_IN - 1), st.tuples(_when, TROUBLES))


def _trouble(drawn: Any, sessions: int, replicas: int, response_length: int) -> tuple[Fault, ...]:
    """The one more fault of a world whose servers fail."""
    if drawn is None:
        return ()
    drawn_when, make = drawn
    made: tuple[Fault, ...] = make(_fitted_when(drawn_when, sessions, response_length), sessions, replicas)
    return made


# Faults that a project has registered

_ON_THEIR_OWN = (
    WeightUpdate,
    AbortAll,
    AbortRequest,
    CancelClient,
    RemoveReplica,
    AddReplica,
    ClearSticky,
    DelayReleases,
)
_DRAWN_BY_HAND = frozenset((*_ON_THEIR_OWN, *SERVER_FAULTS))
_MOST_SMALL = 8
"""Different values of a whole number."""


def _drawn_field(field: msgspec.structs.FieldInfo) -> st.SearchStrategy[Any] | None:
    """Values for a field of a fault, its default first; None: it has to keep that.

    `session` and `replica` are fitted afterwards; whole numbers are small, and what ends with `_s` is in seconds.
    """
    kind = inspect.type_info(field.type)
    values: list[Any] = []
    if isinstance(kind, inspect.IntType) and field.name in ("session", "replica"):
        return _indexes
    if isinstance(kind, inspect.BoolType):
        values = [False, True]
    elif isinstance(kind, inspect.LiteralType):
        values = list(kind.values)
    elif isinstance(kind, inspect.IntType):
        least = kind.ge if kind.ge is not None else 0 if kind.gt is None else kind.gt + 1
        values = [number for number in range(least, least + _MOST_SMALL) if _is_within(kind, number)]
    elif isinstance(kind, inspect.FloatType) and field.name.endswith("_s"):
        values = [quarters / 4 for quarters in range(41) if _is_within(kind, quarters / 4)]
    if field.default in values:
        values = [field.default, *(value for value in values if value != field.default)]
    return st.sampled_from(values) if values else None


def _is_within(kind: inspect.IntType | inspect.FloatType, value: float) -> bool:
    return (
        (kind.ge is None or value >= kind.ge)
        and (kind.gt is None or value > kind.gt)
        and (kind.le is None or value <= kind.le)
        and (kind.lt is None or value < kind.lt)
        and not (kind.multiple_of and value % kind.multiple_of)
    )


def _registered_fault(kind: type[Fault]) -> st.SearchStrategy[MakeFault] | None:
    """Faults of a kind that is not known here; None where it has a field that must be set and cannot be drawn."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in msgspec.structs.fields(kind):
        values = None if field.name == "at" else _drawn_field(field)
        if values is not None:
            fields[field.name] = values
        elif field.required and field.name != "at":
            return None

    def fault(drawn: tuple[tuple[int, int, int, float], dict[str, Any]]) -> MakeFault:
        drawn_when, values = drawn

        def make(sessions: int, replicas: int, response_length: int) -> Fault:
            counts = {"session": sessions, "replica": replicas}
            fitted = {name: values[name] % count for name, count in counts.items() if name in values}
            return kind(_fitted_when(drawn_when, sessions, response_length), **values | fitted)

        return make

    return st.tuples(_when, st.fixed_dictionaries(fields)).map(fault)


def _one_of(*own: st.SearchStrategy[MakeFault]) -> st.SearchStrategy[MakeFault]:
    """One of ours, or of those that are registered by now."""
    load_installed_plugins()
    registered = [_registered_fault(kind) for kind in FAULTS.values() if kind not in _DRAWN_BY_HAND]
    return st.one_of(*own, *(faults for faults in registered if faults is not None))


# Cases


class _Fixed(NamedTuple):
    """What is the same in all cases of a search, and what of it an adapter fixes for its framework."""

    dialect: str
    max_parked_s: float
    face: Face | None = None

    def put(self, fields: dict[str, Any], fit: Fit | None, arrange: Arrange | None) -> dict[str, Any]:
        """The fields of a Case with another engine, its sessions arranged, and all that is fixed."""
        if arrange is not None:
            fields |= arrange(fields["sessions"], fields["transport"])
        if fit is not None:
            fields["budget"], fields["server"] = fit(fields["budget"], fields["server"])
        return fields | {"server": msgspec.structs.replace(fields["server"], **self._asdict())}


def _fitting(faults: tuple[Fault, ...], **settings: Any) -> Case:
    """A Case with those of the faults that fit it, as ours do but for pauses that its servers do not have."""
    try:
        return Case(faults=faults, **settings)
    except CaseError:
        calm = Case(**settings)
        return msgspec.structs.replace(calm, faults=tuple(fault for fault in faults if _fits(fault, calm)))


def _fits(fault: Fault, case: Case) -> bool:
    try:
        fault.check("", case)
    except CaseError:
        return False
    return True


def response_cases(
    dialect: str = "vllm",
    policy: BudgetPolicy = "turn",
    most_turns: int = 3,
    max_parked_s: float = MAX_PARKED_S,
    face: Face | None = None,
) -> st.SearchStrategy[Case]:
    """A few sessions whose responses are aborted and resumed: budgets, limits, configs, conservation, liveness."""
    fixed = _Fixed(dialect, max_parked_s, face)

    def fitted(drawn: tuple[Any, ...]) -> Case:
        lengths, view, replicas, sessions, faults, server, transport, odds, seed, more, fit, arrange = drawn
        prompt_length, response_length, spare = lengths
        calm, drops = odds == 0, odds == 7
        context: Any = max(2, prompt_length + response_length + 8 - spare) if spare else UNSET
        budget = Budget(prompt_length, response_length, context, policy=policy, client_view=view)
        fitted_sessions = _fitted_sessions(sessions, budget, most_turns)
        made = [] if calm else [make(len(fitted_sessions), replicas, response_length) for make in faults]
        fields = {
            "budget": budget,
            "sessions": fitted_sessions,
            "replicas": replicas,
            "server": server,
            "transport": transport,
            "partial_rollout": not drops,
            "seed": seed,
        }
        trouble = _trouble(more, len(fitted_sessions), replicas, response_length)
        return _fitting((*made, *trouble), **fixed.put(fields, fit, arrange))

    spares = st.integers(-2 * MOST_TOKENS, MOST_TOKENS).map(lambda n: max(0, n))
    return st.tuples(
        st.tuples(_lengths, _lengths, spares),
        _views,
        st.integers(1, 3),
        st.lists(_session, min_size=1, max_size=4),
        st.lists(_one_of(_abort_faults, _abort_faults, _abort_faults, _cancel_faults), min_size=1, max_size=4),
        _servers,
        _transports,
        st.integers(0, 7),
        st.integers(0, 255),
        _troubles,
        ENGINES,
        CROWDS,
    ).map(fitted)


def routing_cases(
    dialect: str = "vllm",
    policy: BudgetPolicy = "turn",
    most_turns: int = 3,
    max_parked_s: float = MAX_PARKED_S,
    face: Face | None = None,
) -> st.SearchStrategy[Case]:
    """Sessions in a row or at once on several replicas that come and go: counters, stickiness, spread."""
    budget = Budget(8, 8, policy=policy)
    fixed = _Fixed(dialect, max_parked_s, face)

    def in_a_row(drawn: tuple[int, float, int]) -> tuple[Session, ...]:
        count, spacing_s, tokens = drawn
        return tuple(Session(1, (Turn(tokens),), index * spacing_s) for index in range(count))

    rows = st.tuples(st.integers(1, MOST_SESSIONS_IN_A_ROW), st.sampled_from([1.0, 0.25, 0.0]), st.integers(1, 8)).map(
        in_a_row
    )
    crowds = st.lists(_session, min_size=1, max_size=8).map(lambda drawn: _fitted_sessions(drawn, budget, most_turns))

    def fitted(drawn: tuple[Any, ...]) -> Case:
        sessions, replicas, faults, server, transport, seed, more, fit, arrange = drawn
        made = [make(len(sessions), replicas, budget.response_length) for make in faults]
        fields = {
            "budget": budget,
            "sessions": sessions,
            "replicas": replicas,
            "server": server,
            "transport": transport,
            "seed": seed,
        }
        trouble = _trouble(more, len(sessions), replicas, budget.response_length)
        return _fitting((*made, *trouble), **fixed.put(fields, fit, arrange))

    faults = st.lists(_one_of(_membership_faults, _membership_faults, _cancel_faults, _abort_faults), max_size=4)
    return st.tuples(
        st.one_of(rows, crowds),
        st.integers(2, 4),
        faults,
        _servers,
        _transports,
        st.integers(0, 255),
        _troubles,
        ENGINES,
        CROWDS,
    ).map(fitted)


STRATEGIES: dict[str, Callable[..., st.SearchStrategy[Case]]] = {
    "budget": response_cases,
    "alignment": response_cases,
    "lifecycle": response_cases,
    "routing": routing_cases,
    "liveness": response_cases,
    "waste": response_cases,
    "staleness": response_cases,
    "harness": routing_cases,
}
"""The worlds in which invariants of a kind are looked for."""
