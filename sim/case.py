"""Case: everything that determines a run, as frozen plain data, JSON in and out.

A Case names no system under test: the same Case runs on any of them. Loading is strict: an unknown
field, a wrong type or an impossible value is a `CaseError` that names the path and what was expected.
Times are seconds of virtual time, lengths are tokens. `UNSET` (the field is absent from the JSON),
`null` and `false` are three different things wherever a config value may be any of them.
"""

import functools
import operator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sim.dialects import LIMIT_KEYS
from sim.faults import FAULTS, Fault
from sim.migrations import FORMAT, migrated
from sim.policies import BudgetPolicy
from sim.registry import blame, load_installed_plugins
from sim.schema import (
    MAX_REPEAT,
    MAX_REPLICAS,
    CaseError,
    Data,
    Index,
    PositiveTokenCount,
    Priority,
    Seconds,
    Seed,
    TokenCount,
    explained,
    plain_json,
)
from sim.settings import USUAL_ENGINE, EngineSettings, FittedLatency, LatencyModel, RooflineLatency, ServerSettings

__all__ = [
    "Budget",
    "Case",
    "CaseError",
    "ClientView",
    "EngineSettings",
    "FittedLatency",
    "LatencyModel",
    "Limit",
    "RooflineLatency",
    "Router",
    "Schedule",
    "ServerSettings",
    "Session",
    "Transport",
    "Turn",
    "convert",
    "dumps",
    "explicit_limit",
    "from_builtins",
    "layout",
    "loads",
    "params_owner",
    "prompt_owner",
    "to_builtins",
]


class ClientView(Data, frozen=True):
    """What the *client* finds in its config where that differs from the server's: any JSON scalar, null, or absent."""

    response_length: int | float | str | bool | UnsetType | None = UNSET


class Budget(Data, frozen=True):
    """The length settings of verl's `actor_rollout_ref.rollout`.

    `max_model_len` unset or null means the model's `max_position_embeddings`, as verl's vLLM server has it.
    `policy` says what `response_length` limits (`sim.policies`), where the system under test says nothing of it.
    """

    prompt_length: PositiveTokenCount
    response_length: PositiveTokenCount
    max_model_len: PositiveTokenCount | UnsetType | None = UNSET
    max_position_embeddings: PositiveTokenCount = 32_768
    policy: BudgetPolicy = "turn"
    client_view: ClientView | None = None

    @property
    def context_tokens(self) -> int:
        """The max_model_len that the server works with."""
        return self.max_model_len if isinstance(self.max_model_len, int) else self.max_position_embeddings

    @property
    def client_response_length(self) -> int | float | str | bool | UnsetType | None:
        """response_length as the client's config shows it; `UNSET` where the key is missing."""
        return self.response_length if self.client_view is None else self.client_view.response_length


class Router(Data, frozen=True):
    """Settings of the balancer. `tie_break` steers the built-in one only; a SUT's own breaks ties its own way."""

    tie_break: Literal["first", "random"] = "random"
    sticky: bool = True


class Limit(Data, frozen=True):
    """An explicit limit in the caller's sampling params, and under which key(s) it is spelled."""

    spelling: Literal["max_tokens", "max_new_tokens", "both"]
    tokens: TokenCount

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that it is under."""
        return LIMIT_KEYS if self.spelling == "both" else (self.spelling,)


class Turn(Data, frozen=True):
    """One call of generate: the model's `response_tokens`-th token ends it (null: never), then a tool answers."""

    response_tokens: PositiveTokenCount | None = None
    tool_tokens: TokenCount = 0
    tool_time_s: Seconds = 0.0


class Session(Data, frozen=True):
    """The turns of one request_id.

    `shares_params_with`: the session whose sampling-params object this one reuses. `shares_prompt_with`: the session
    whose first prompt is this one's too, token for token as far as both go, so that one finds the other's KV in a
    prefix cache; what the model answers is each one's own. `priority`: vLLM's, of each of its requests, whatever
    clients pass on; the lower ones come first, where `server.engine.scheduling_policy` is priority.
    """

    prompt_tokens: PositiveTokenCount
    turns: Annotated[tuple[Turn, ...], Meta(min_length=1)] = (Turn(),)
    arrival_s: Seconds = 0.0
    limit: Limit | None = None
    shares_params_with: Index | None = None
    shares_prompt_with: Index | None = None
    priority: Priority = 0


class Transport(Data, frozen=True):
    """How calls travel. `copies`: as Ray does, arguments are copied; `shared`: objects are passed as they are."""

    objects: Literal["copies", "shared"] = "copies"
    server_delay_s: Seconds = 0.0
    balancer_delay_s: Seconds = 0.0


class Schedule(Data, frozen=True):
    """Which ready callback runs next: FIFO, a seeded random pick, or FIFO but for explicit (step, pick) deviations."""

    policy: Literal["fifo", "random", "explicit"] = "fifo"
    seed: Seed = 0
    deviations: tuple[tuple[Index, Index], ...] = ()


class Case(Data, frozen=True):
    """One world, whole. See the module's docstring; fields left out of the JSON take the defaults shown here.

    `repeat`: the sessions are run so many times over, each time as new ones; a session's number counts on.
    `max_concurrent_sessions`: a session begins when fewer than so many live, in the order of their numbers, and its
    `arrival_s` counts from then. Null: all live from the start.
    """

    budget: Budget
    sessions: Annotated[tuple[Session, ...], Meta(min_length=1)]
    faults: tuple[Fault, ...] = ()
    replicas: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)] = 1
    server: ServerSettings = ServerSettings()
    router: Router = Router()
    transport: Transport = Transport()
    partial_rollout: bool = True
    seed: Seed = 0
    schedule: Schedule = Schedule()
    repeat: Annotated[int, Meta(ge=1, le=MAX_REPEAT)] = 1
    max_concurrent_sessions: Annotated[int, Meta(ge=1)] | None = None
    format: int = FORMAT

    @property
    def num_sessions(self) -> int:
        return len(self.sessions) * self.repeat

    @property
    def most_live_sessions(self) -> int:
        return min(self.num_sessions, self.max_concurrent_sessions or self.num_sessions)

    @property
    def policies(self) -> dict[str, str]:
        """What its settings say of policies (`sim.policies`), for a system under test that does not."""
        said = {"budget": self.budget.policy, "sticky": "yes" if self.router.sticky else "no"}
        return said if self.partial_rollout else {**said, "after_abort": "drop"}

    def session(self, index: int) -> Session:
        """The session of that number."""
        return self.sessions[index % len(self.sessions)]

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise CaseError(f"format is {self.format}: a Case is of format {FORMAT}; files of others are read as such")
        context_tokens = self.budget.context_tokens
        if context_tokens > self.budget.max_position_embeddings:
            raise CaseError(
                f"budget.max_model_len is {context_tokens}: it may not exceed "
                f"budget.max_position_embeddings ({self.budget.max_position_embeddings})"
            )
        engine = self.server.engine
        if engine is not None and engine != USUAL_ENGINE:
            engine.config(context_tokens)
        if self.server.latency is not None:
            if engine is None:
                raise CaseError("server.latency is set: it is the time of an engine's steps, and server.engine is null")
            self.server.make_latency()
        for i, session in enumerate(self.sessions):
            if session.prompt_tokens > context_tokens:
                raise CaseError(
                    f"sessions[{i}].prompt_tokens is {session.prompt_tokens}: longer than the context "
                    f"({context_tokens} tokens, budget.max_model_len)"
                )
            _check_shared_params(i, session, self.sessions)
            _check_shared_prompt(i, session, self.sessions)
            if self.repeat > 1 and session.shares_params_with is not None and self.transport.objects == "shared":
                raise CaseError(
                    f"repeat is {self.repeat}: it excludes sessions[{i}].shares_params_with where transport.objects are"
                    f" shared, since repeated sessions are judged one by one"
                )
        for i, fault in enumerate(self.faults):
            _check_fault(f"faults[{i}]", fault, self)
        if self.schedule.deviations and self.schedule.policy != "explicit":
            raise CaseError(f"schedule.deviations need schedule.policy explicit, not {self.schedule.policy}")


def _check_fault(where: str, fault: Fault, case: Case) -> None:
    try:
        fault.check(where, case)
    except CaseError:
        raise
    except Exception as error:
        blame(error, fault, f"fault {fault.__struct_config__.tag!r}, check,")


def _check_shared_params(i: int, session: Session, sessions: tuple[Session, ...]) -> None:
    lender = session.shares_params_with
    if lender is None:
        return
    if lender >= i:
        raise CaseError(f"sessions[{i}].shares_params_with is {lender}: it must name an earlier session (below {i})")
    if session.limit is not None:
        raise CaseError(f"sessions[{i}] has both limit and shares_params_with: the limit is in the shared params")
    if sessions[lender].shares_params_with is not None:
        raise CaseError(f"sessions[{i}].shares_params_with is {lender}, which itself shares another session's params")


def _check_shared_prompt(i: int, session: Session, sessions: tuple[Session, ...]) -> None:
    owner = session.shares_prompt_with
    if owner is None:
        return
    if owner >= i:
        raise CaseError(f"sessions[{i}].shares_prompt_with is {owner}: it must name an earlier session (below {i})")
    if sessions[owner].shares_prompt_with is not None:
        raise CaseError(f"sessions[{i}].shares_prompt_with is {owner}, which itself shares another session's prompt")


def params_owner(case: Case, session: int) -> int:
    """The session whose sampling-params object `session` uses."""
    return _in_the_same_round(case, session, case.session(session).shares_params_with)


def prompt_owner(case: Case, session: int) -> int:
    """The session whose prompt `session` begins with."""
    return _in_the_same_round(case, session, case.session(session).shares_prompt_with)


def _in_the_same_round(case: Case, session: int, place: int | None) -> int:
    """The session at a place in the case's list, of those that are run together with `session`; itself for None."""
    return session if place is None else session - session % len(case.sessions) + place


def explicit_limit(case: Case, session: int) -> Limit | None:
    """The limit in the sampling params that `session` uses."""
    return case.session(params_owner(case, session)).limit


@functools.lru_cache(maxsize=4)
def _layout(kinds_of_faults: tuple[Any, ...]) -> Any:
    """A Case's fields as a struct whose faults are of these kinds, those known by now: msgspec wants a closed union."""
    kinds: Any = functools.reduce(operator.or_, kinds_of_faults)
    fields: list[tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(Case):
        kind = tuple.__class_getitem__((kinds, ...)) if field.name == "faults" else field.type
        fields.append((field.name, kind, field.default))
    return msgspec.defstruct("Case", fields, bases=(Data,), frozen=True)


def layout() -> Any:
    """The struct that a Case is read through; `sim.schema.explained` wants it."""
    return _layout(tuple(FAULTS.values()))


@functools.lru_cache(maxsize=4)
def _decoder(kinds_of_faults: tuple[Any, ...]) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(_layout(kinds_of_faults))


def convert(data: Any) -> Case:
    """A Case from plain dicts and lists. Raises `CaseError`, or msgspec's ValidationError unexplained: for many that
    cannot be."""
    return Case(*msgspec.structs.astuple(msgspec.convert(data, layout())))


def _is_of_another_format(data: Any) -> bool:
    return isinstance(data, dict) and data.get("format", FORMAT) != FORMAT


def loads(text: str | bytes, source: str = "the case") -> Case:
    """A Case from JSON of this or any earlier format. Raises `CaseError` naming `source`, the path inside it, the
    value and what is allowed."""
    try:
        found = _decoder(tuple(FAULTS.values())).decode(text)
        if found.format == FORMAT:
            return Case(*msgspec.structs.astuple(found))
        return from_builtins(plain_json(text), source)
    except msgspec.ValidationError as error:
        data = plain_json(text)
        if data is not None and (_is_of_another_format(data) or load_installed_plugins()):
            return from_builtins(data, source)
        raise CaseError(f"{source}: {explained(error, data, layout())}") from None
    except (CaseError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CaseError(f"{source}: {error}") from None


def dumps(case: Case, *, indent: int = 2) -> str:
    """Readable JSON; values at their defaults are left out, but for the format number."""
    return msgspec.json.format(msgspec.json.encode(to_builtins(case)), indent=indent).decode()


def to_builtins(case: Case) -> dict[str, Any]:
    """The Case as plain dicts and lists, in the layout of the JSON."""
    return {"format": case.format, **msgspec.json.decode(msgspec.json.encode(case))}


def from_builtins(data: Any, source: str = "the case") -> Case:
    """A Case from plain dicts and lists; errors as in `loads`."""
    try:
        if _is_of_another_format(data):
            data = migrated(data)
        return convert(data)
    except msgspec.ValidationError as error:
        raise CaseError(f"{source}: {explained(error, data, layout())}") from None
    except CaseError as error:
        raise CaseError(f"{source}: {error}") from None
