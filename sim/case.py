"""Case: everything that determines a run, as frozen plain data, JSON in and out.

A Case names no system under test: the same Case runs on any of them. Loading is strict: an unknown
field, a wrong type or an impossible value is a `CaseError` that names the path and what was expected.
Times are seconds of virtual time, lengths are tokens. `UNSET` (the field is absent from the JSON),
`null` and `false` are three different things wherever a config value may be any of them.
"""

import functools
import operator
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sim.dialects import DIALECTS, LIMIT_KEYS, Dialect
from sim.engine.config import EngineConfig
from sim.engine.latency import Affine, Constant, Fitted, Latency, Roofline
from sim.faults import FAULTS, Fault
from sim.migrations import FORMAT, migrated
from sim.registry import load_installed_plugins
from sim.schema import (
    MAX_REPEAT,
    MAX_REPLICAS,
    MAX_TOKENS,
    CaseError,
    Data,
    Index,
    PositiveTokenCount,
    Seconds,
    Seed,
    TokenCount,
    explained,
    plain_json,
)
from sim.startup.batch import check_batch
from sim.startup.kv_pool import blocks_needed, fit_pool


class ClientView(Data, frozen=True):
    """What the *client* finds in its config where that differs from the server's: any JSON scalar, null, or absent."""

    response_length: int | float | str | bool | UnsetType | None = UNSET


class Budget(Data, frozen=True):
    """The length settings of verl's `actor_rollout_ref.rollout`.

    `max_model_len` unset or null means the model's `max_position_embeddings`, as verl's vLLM server has it.
    `policy` says what `response_length` limits: one `turn` (a call of generate), or the whole `trajectory`
    with its tool tokens.
    """

    prompt_length: PositiveTokenCount
    response_length: PositiveTokenCount
    max_model_len: PositiveTokenCount | UnsetType | None = UNSET
    max_position_embeddings: PositiveTokenCount = 32_768
    policy: Literal["turn", "trajectory"] = "turn"
    client_view: ClientView | None = None

    @property
    def context_tokens(self) -> int:
        """The max_model_len that the server works with."""
        return self.max_model_len if isinstance(self.max_model_len, int) else self.max_position_embeddings

    @property
    def client_response_length(self) -> int | float | str | bool | UnsetType | None:
        """response_length as the client's config shows it; `UNSET` where the key is missing."""
        return self.response_length if self.client_view is None else self.client_view.response_length


class EngineSettings(Data, frozen=True):
    """The settings of a replica's engine, under vLLM's names; the defaults are those of verl's rollouts.

    `num_gpu_blocks` counts the null block. Null: as on a GPU with 30 GB to spare for the KV of a 7B model, or what
    one request of max_model_len needs, if that is more. `max_num_seqs` null: 1024, or `max_num_batched_tokens` where
    that is fewer, as vLLM lowers it.
    """

    num_gpu_blocks: Annotated[int, Meta(ge=2, le=MAX_TOKENS)] | None = None
    block_size: Annotated[int, Meta(ge=1, le=65_536)] = 16
    max_num_seqs: PositiveTokenCount | None = None
    max_num_batched_tokens: PositiveTokenCount = 8192
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: TokenCount = 0
    watermark: Annotated[float, Meta(ge=0, lt=1)] = 0.0

    @functools.lru_cache(maxsize=64)  # noqa: B019 - settings are plain data, equal ones share the result
    def config(self, max_model_len: int) -> EngineConfig:
        """For an engine; a CaseError for what vLLM would not start with."""
        limits: dict[str, Any] = {
            "max_model_len": max_model_len,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs or min(_MAX_NUM_SEQS, self.max_num_batched_tokens),
            "enable_chunked_prefill": self.enable_chunked_prefill,
            "long_prefill_token_threshold": self.long_prefill_token_threshold,
        }
        num_gpu_blocks = self.num_gpu_blocks
        if num_gpu_blocks is None:
            num_gpu_blocks = max(_NUM_GPU_BLOCKS, blocks_needed(max_model_len, self.block_size))
        _, of_pool = fit_pool(max_model_len, self.block_size, num_gpu_blocks)
        for found in (*of_pool, *check_batch(limits)):
            if found.level == "refused":
                raise CaseError(f"server.engine.{found.error}")
        return EngineConfig(
            **limits | {"max_model_len": max(2, max_model_len)},
            num_gpu_blocks=num_gpu_blocks,
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            scheduling_policy=self.scheduling_policy,
            watermark=self.watermark,
        )


_USUAL_ENGINE = EngineSettings()
_NUM_GPU_BLOCKS = 32_768
_MAX_NUM_SEQS = 1024


class RooflineLatency(Data, frozen=True, tag_field="latency", tag="roofline"):
    """A step takes what `hardware` needs at its peak for a model's weights, KV and sums; see `sim.engine.latency`."""

    hardware: str
    model: str
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=1024)] = 1
    overhead_s: Seconds = 0.0


class FittedLatency(Data, frozen=True, tag_field="latency", tag="fitted"):
    """A step takes `fixed_s`, and so much for each token that it schedules and for each token in its KV. The figures
    are those that `sim.engine.latency.Fitted` finds in measurements."""

    fixed_s: Seconds
    scheduled_token_s: Seconds = 0.0
    kv_token_s: Seconds = 0.0


LatencyModel: TypeAlias = RooflineLatency | FittedLatency


class ServerSettings(Data, frozen=True):
    """How a replica behaves: the dialect of its grants, its gate, its engine, and how long its work takes.

    `submission_gate`: verl 0.9.1's servers park (or reject) what arrives between an abort and its resume;
    without it the paused engine queues it. `admission_s`: from passing the gate to being in the engine.
    A step of the engine takes `token_time_s`, and `prefill_s` more if it computes any prompt, unless `latency` says
    otherwise. `engine` null: there are no steps and no KV, and each request decodes a token each `token_time_s` after
    `prefill_s`, however many there are.
    """

    dialect: str = "vllm"
    submission_gate: bool = True
    token_time_s: Seconds = 0.01
    prefill_s: Seconds = 0.0
    admission_s: Seconds = 0.0
    engine: EngineSettings | None = EngineSettings()
    latency: LatencyModel | None = None

    def __post_init__(self) -> None:
        if self.dialect not in DIALECTS and DIALECTS.find(self.dialect) is None:
            raise CaseError(f"server.dialect: {DIALECTS.unknown(self.dialect)}")

    @property
    def rules(self) -> Dialect:
        """What servers of its dialect do."""
        return DIALECTS[self.dialect]

    @property
    def has_gate(self) -> bool:
        """Whether what arrives during a pause waits in front of the engine."""
        return self.submission_gate and self.rules.has_gate

    def make_latency(self) -> Latency:
        """How long the engine's steps take; a CaseError for hardware or a model that is unknown."""
        match self.latency:
            case RooflineLatency(hardware, model, tensor_parallel_size, overhead_s):
                try:
                    return Roofline(
                        hardware,
                        model,
                        tensor_parallel_size=tensor_parallel_size,
                        overhead_ns=round(overhead_s * 10**9),
                    )
                except ValueError as error:
                    raise CaseError(f"server.latency: {error}") from None
            case FittedLatency(fixed_s, scheduled_token_s, kv_token_s):
                return Fitted(Affine(*(round(part_s * 10**15) for part_s in (fixed_s, scheduled_token_s, kv_token_s))))
            case None:
                return Constant(round(self.token_time_s * 10**9), round(self.prefill_s * 10**9))


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
    prefix cache; what the model answers is each one's own.
    """

    prompt_tokens: PositiveTokenCount
    turns: Annotated[tuple[Turn, ...], Meta(min_length=1)] = (Turn(),)
    arrival_s: Seconds = 0.0
    limit: Limit | None = None
    shares_params_with: Index | None = None
    shares_prompt_with: Index | None = None


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
        if engine is not None and engine != _USUAL_ENGINE:
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
            fault.check(f"faults[{i}]", self)
        if self.schedule.deviations and self.schedule.policy != "explicit":
            raise CaseError(f"schedule.deviations need schedule.policy explicit, not {self.schedule.policy}")


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
def _layout(kinds_of_faults: int) -> Any:
    """A Case's fields as a struct whose faults are of the kinds known by now: msgspec wants a closed union."""
    assert kinds_of_faults == len(FAULTS)
    kinds: Any = functools.reduce(operator.or_, FAULTS.values())
    fields: list[tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(Case):
        kind = tuple.__class_getitem__((kinds, ...)) if field.name == "faults" else field.type
        fields.append((field.name, kind, field.default))
    return msgspec.defstruct("Case", fields, bases=(Data,), frozen=True)


def layout() -> Any:
    """The struct that a Case is read through; `sim.schema.explained` wants it."""
    return _layout(len(FAULTS))


@functools.lru_cache(maxsize=4)
def _decoder(kinds_of_faults: int) -> "msgspec.json.Decoder[Any]":
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
        found = _decoder(len(FAULTS)).decode(text)
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
