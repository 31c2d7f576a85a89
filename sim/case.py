"""Case: everything that determines a run, as frozen plain data, JSON in and out.

A Case names no system under test: the same Case runs on any of them. Loading is strict: an unknown
field, a wrong type or an impossible value is a `CaseError` that names the path and what was expected.
Times are seconds of virtual time, lengths are tokens. `UNSET` (the field is absent from the JSON),
`null` and `false` are three different things wherever a config value may be any of them.
"""

import functools
import re
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType, inspect

from sim.engine.config import EngineConfig, PauseMode
from sim.engine.latency import Affine, Constant, Fitted, Latency, Roofline
from sim.startup.batch import check_batch
from sim.startup.kv_pool import blocks_needed, fit_pool

FORMAT: Literal[1] = 1
"""Version of the JSON layout. A change that older files cannot express raises it."""

MAX_TOKENS = 10_000_000
MAX_TIME_S = 1e7
MAX_REPLICAS = 1024
MAX_REPEAT = 1_000_000

Tokens: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
PositiveTokens: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_TIME_S)]
Index: TypeAlias = Annotated[int, Meta(ge=0)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Dialect: TypeAlias = Literal["vllm", "sglang", "trtllm"]


class CaseError(ValueError):
    """A Case that cannot be: the message names the field, the value and what is allowed."""


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class ClientView(_Data, frozen=True):
    """What the *client* finds in its config where that differs from the server's: any JSON scalar, null, or absent."""

    response_length: int | float | str | bool | UnsetType | None = UNSET


class Budget(_Data, frozen=True):
    """The length settings of verl's `actor_rollout_ref.rollout`.

    `max_model_len` unset or null means the model's `max_position_embeddings`, as verl's vLLM server has it.
    `policy` says what `response_length` limits: one `turn` (a call of generate), or the whole `trajectory`
    with its tool tokens.
    """

    prompt_length: PositiveTokens
    response_length: PositiveTokens
    max_model_len: PositiveTokens | UnsetType | None = UNSET
    max_position_embeddings: PositiveTokens = 32_768
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


class EngineSettings(_Data, frozen=True):
    """The settings of a replica's engine, under vLLM's names; the defaults are those of verl's rollouts.

    `num_gpu_blocks` counts the null block. Null: as on a GPU with 30 GB to spare for the KV of a 7B model, or what
    one request of max_model_len needs, if that is more. `max_num_seqs` null: 1024, or `max_num_batched_tokens` where
    that is fewer, as vLLM lowers it.
    """

    num_gpu_blocks: Annotated[int, Meta(ge=2, le=MAX_TOKENS)] | None = None
    block_size: Annotated[int, Meta(ge=1, le=65_536)] = 16
    max_num_seqs: PositiveTokens | None = None
    max_num_batched_tokens: PositiveTokens = 8192
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: Tokens = 0
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


class RooflineLatency(_Data, frozen=True, tag_field="latency", tag="roofline"):
    """A step takes what `hardware` needs at its peak for a model's weights, KV and sums; see `sim.engine.latency`."""

    hardware: str
    model: str
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=1024)] = 1
    overhead_s: Seconds = 0.0


class FittedLatency(_Data, frozen=True, tag_field="latency", tag="fitted"):
    """A step takes `fixed_s`, and so much for each token that it schedules and for each token in its KV. The figures
    are those that `sim.engine.latency.Fitted` finds in measurements."""

    fixed_s: Seconds
    scheduled_token_s: Seconds = 0.0
    kv_token_s: Seconds = 0.0


LatencyModel: TypeAlias = RooflineLatency | FittedLatency


class ServerSettings(_Data, frozen=True):
    """How a replica behaves: the dialect of its grants, its gate, its engine, and how long its work takes.

    `submission_gate`: verl 0.9.1's servers park (or reject) what arrives between an abort and its resume;
    without it the paused engine queues it. `admission_s`: from passing the gate to being in the engine.
    A step of the engine takes `token_time_s`, and `prefill_s` more if it computes any prompt, unless `latency` says
    otherwise. `engine` null: there are no steps and no KV, and each request decodes a token each `token_time_s` after
    `prefill_s`, however many there are.
    """

    dialect: Dialect = "vllm"
    submission_gate: bool = True
    token_time_s: Seconds = 0.01
    prefill_s: Seconds = 0.0
    admission_s: Seconds = 0.0
    engine: EngineSettings | None = EngineSettings()
    latency: LatencyModel | None = None

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


class Router(_Data, frozen=True):
    """Settings of the balancer. `tie_break` steers the built-in one only; a SUT's own breaks ties its own way."""

    tie_break: Literal["first", "random"] = "random"
    sticky: bool = True


class Limit(_Data, frozen=True):
    """An explicit limit in the caller's sampling params, and under which key(s) it is spelled."""

    spelling: Literal["max_tokens", "max_new_tokens", "both"]
    tokens: Tokens


class Turn(_Data, frozen=True):
    """One call of generate: the model's `response_tokens`-th token ends it (null: never), then a tool answers."""

    response_tokens: PositiveTokens | None = None
    tool_tokens: Tokens = 0
    tool_time_s: Seconds = 0.0


class Session(_Data, frozen=True):
    """The turns of one request_id.

    `shares_params_with`: the session whose sampling-params object this one reuses. `shares_prompt_with`: the session
    whose first prompt is this one's too, token for token as far as both go, so that one finds the other's KV in a
    prefix cache; what the model answers is each one's own.
    """

    prompt_tokens: PositiveTokens
    turns: Annotated[tuple[Turn, ...], Meta(min_length=1)] = (Turn(),)
    arrival_s: Seconds = 0.0
    limit: Limit | None = None
    shares_params_with: Index | None = None
    shares_prompt_with: Index | None = None


class AtTime(_Data, frozen=True, tag_field="on", tag="time"):
    """At a point of virtual time."""

    time_s: Seconds


class AfterTokens(_Data, frozen=True, tag_field="on", tag="tokens"):
    """Once `session` has decoded `tokens` in all, over all of its requests. Can be replayed on a real engine."""

    session: Index
    tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]


class AfterSent(_Data, frozen=True, tag_field="on", tag="sent"):
    """Once `session` has sent its request number `requests` (from 1) to a server. Can be replayed on a real engine."""

    session: Index
    requests: Annotated[int, Meta(ge=1, le=100_000)]


class Every(_Data, frozen=True, tag_field="on", tag="every"):
    """Again and again until all sessions have ended: first after `time_s`, then `time_s` after the last was over.

    Not for ever, where it keeps them from ending: see `sim.world.world.bounds_of`.
    """

    time_s: Annotated[float, Meta(ge=1e-6, le=MAX_TIME_S)]


When: TypeAlias = AtTime | AfterTokens | AfterSent | Every


class WeightUpdate(_Data, frozen=True, tag_field="fault", tag="weight_update"):
    """Every replica aborts all requests, takes the next weight version after `pause_s`, and resumes.

    `leaving`: replicas that leave the balancer first and reject what still arrives, then are added again and the
    sticky cache is cleared (the hybrid replicas of verl's separate-async trainer). Empty: its colocated trainer.
    `reset_prefix_cache`: whether the abort clears the prefix cache, as verl has it.
    `pause_mode`: vLLM's. `abort` is what verl does; with `wait` the replicas run what they have to its end first, with
    `keep` they freeze it and go on with the new weights, having computed its KV anew if `reset_prefix_cache`.
    """

    at: When
    pause_s: Seconds = 1.0
    leaving: tuple[Index, ...] = ()
    reset_prefix_cache: bool = True
    pause_mode: PauseMode = "abort"


class AbortAll(_Data, frozen=True, tag_field="fault", tag="abort_all"):
    """One replica aborts all of its requests and resumes after `pause_s`, on the same weights."""

    at: When
    replica: Index
    pause_s: Seconds = 0.0
    reset_prefix_cache: bool = True


class AbortRequest(_Data, frozen=True, tag_field="fault", tag="abort_request"):
    """The live request of `session`, if any, is aborted by its id."""

    at: When
    session: Index


class CancelClient(_Data, frozen=True, tag_field="fault", tag="cancel_client"):
    """The task that runs `session` is cancelled."""

    at: When
    session: Index


class RemoveReplica(_Data, frozen=True, tag_field="fault", tag="remove_replica"):
    """A replica leaves the balancer; its requests go on."""

    at: When
    replica: Index


class AddReplica(_Data, frozen=True, tag_field="fault", tag="add_replica"):
    """A replica is added to the balancer, whether or not it is there already."""

    at: When
    replica: Index


class ClearSticky(_Data, frozen=True, tag_field="fault", tag="clear_sticky"):
    """The balancer forgets which session went where."""

    at: When


class DelayReleases(_Data, frozen=True, tag_field="fault", tag="delay_releases"):
    """From `at` on, for `duration_s`, every release reaches the balancer `delay_s` late."""

    at: When
    delay_s: Seconds
    duration_s: Seconds = MAX_TIME_S


Fault: TypeAlias = (
    WeightUpdate | AbortAll | AbortRequest | CancelClient | RemoveReplica | AddReplica | ClearSticky | DelayReleases
)


class Transport(_Data, frozen=True):
    """How calls travel. `copies`: as Ray does, arguments are copied; `shared`: objects are passed as they are."""

    objects: Literal["copies", "shared"] = "copies"
    server_delay_s: Seconds = 0.0
    balancer_delay_s: Seconds = 0.0


class Schedule(_Data, frozen=True):
    """Which ready callback runs next: FIFO, a seeded random pick, or FIFO but for explicit (step, pick) deviations."""

    policy: Literal["fifo", "random", "explicit"] = "fifo"
    seed: Seed = 0
    deviations: tuple[tuple[Index, Index], ...] = ()


class Case(_Data, frozen=True):
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
    format: Literal[1] = FORMAT

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
            self._check_fault(f"faults[{i}]", fault)
        if self.schedule.deviations and self.schedule.policy != "explicit":
            raise CaseError(f"schedule.deviations need schedule.policy explicit, not {self.schedule.policy}")

    def _check_fault(self, where: str, fault: Fault) -> None:
        named = [(f"{where}.session", getattr(fault, "session", None), self.num_sessions, "session")]
        named.append((f"{where}.replica", getattr(fault, "replica", None), self.replicas, "replica"))
        if isinstance(fault.at, AfterTokens | AfterSent):
            named.append((f"{where}.at.session", fault.at.session, self.num_sessions, "session"))
        if isinstance(fault, WeightUpdate):
            named.extend((f"{where}.leaving", replica, self.replicas, "replica") for replica in fault.leaving)
            if len(set(fault.leaving)) >= self.replicas:
                raise CaseError(f"{where}.leaving names all {self.replicas} replicas: at least one must stay")
            if fault.pause_mode != "abort":
                self._check_pause_mode(f"{where}.pause_mode is {fault.pause_mode}", fault)
        for path, index, count, what in named:
            if index is not None and index >= count:
                raise CaseError(f"{path} is {index}: there is no such {what}, allowed are 0 to {count - 1}")

    def _check_pause_mode(self, where: str, fault: WeightUpdate) -> None:
        if self.server.dialect != "vllm":
            raise CaseError(f"{where}: only vLLM has it, and server.dialect is {self.server.dialect}")
        if self.server.engine is None:
            raise CaseError(f"{where}: it needs an engine that can be paused, and server.engine is null")
        if fault.leaving:
            raise CaseError(f"{where}: replicas in leaving abort what they have, so only abort is allowed with them")


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


_decoder = msgspec.json.Decoder(Case)

_SHOWN_CHARS = 60


def loads(text: str | bytes, source: str = "the case") -> Case:
    """A Case from JSON. Raises `CaseError` naming `source`, the path inside it, the value and what is allowed."""
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError as error:
        raise CaseError(f"{source}: {explained(error, plain_json(text), Case)}") from None
    except (CaseError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CaseError(f"{source}: {error}") from None


def plain_json(text: str | bytes) -> Any:
    """The JSON without a schema; None where it is malformed further on, behind the value that was wrong."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def explained(error: msgspec.ValidationError, data: Any, kind: Any) -> str:
    """msgspec's message about `data`, with what it leaves out: the value at that path, and what may stand there."""
    message = str(error)
    path = re.search(r" - at `\$(.*)`$", message)
    steps = [] if path is None else re.findall(r"\.([^.\[]+)|\[(\d+)\]", path[1])
    here: Any = msgspec.inspect.type_info(kind)
    for name, number in steps:
        step = int(number) if number else name
        here = _inside(here, step, data)
        if not isinstance(data, dict | list) or (isinstance(data, dict) and step not in data):
            return message
        data = data[step]
    shown = repr(data) if isinstance(data, str | int | float | None) else type(data).__name__
    if len(shown) > _SHOWN_CHARS:
        shown = shown[:_SHOWN_CHARS] + "…"
    if message.startswith(("Invalid", "Object contains unknown")):
        allowed = _allowed(here, data)
        return f"{message} (allowed are {', '.join(allowed)})" if allowed else message
    return f"{message} (it is {shown})" if message.startswith("Expected") and steps else message


def _options(here: Any) -> Any:
    """The types that a value may have: those of a union, or the one."""
    return here.types if isinstance(here, inspect.UnionType) else (here,)


def _structs(here: Any, data: Any) -> list[Any]:
    """The structs among a value's possible types; where its tag names one, that one alone."""
    structs = [option for option in _options(here) if isinstance(option, inspect.StructType)]
    named = [
        each for each in structs if isinstance(data, dict) and each.tag_field and data.get(each.tag_field) == each.tag
    ]
    return named or structs


def _inside(here: Any, step: str | int, data: Any) -> Any:
    """The type one step further down; None where that is not known."""
    if isinstance(step, int):
        for option in _options(here):
            if isinstance(option, inspect.VarTupleType):
                return option.item_type
            if isinstance(option, inspect.TupleType) and step < len(option.item_types):
                return option.item_types[step]
        return None
    structs = _structs(here, data)
    tags = [each.tag for each in structs if each.tag_field == step]
    if tags:
        return inspect.LiteralType(tuple(tags))
    return next((field.type for each in structs for field in each.fields if field.encode_name == step), None)


def _allowed(here: Any, data: Any) -> list[str]:
    """The values of a literal, or the fields of a struct."""
    values = [repr(value) for each in _options(here) if isinstance(each, inspect.LiteralType) for value in each.values]
    structs = _structs(here, data)
    return values or ([field.encode_name for field in structs[0].fields] if len(structs) == 1 else [])


def dumps(case: Case, *, indent: int = 2) -> str:
    """Readable JSON; values at their defaults are left out, but for the format number."""
    return msgspec.json.format(msgspec.json.encode(to_builtins(case)), indent=indent).decode()


def to_builtins(case: Case) -> dict[str, Any]:
    """The Case as plain dicts and lists, in the layout of the JSON."""
    return {"format": case.format, **msgspec.json.decode(msgspec.json.encode(case))}


def from_builtins(data: Any, source: str = "the case") -> Case:
    """A Case from plain dicts and lists; errors as in `loads`."""
    try:
        return msgspec.convert(data, Case)
    except msgspec.ValidationError as error:
        raise CaseError(f"{source}: {explained(error, data, Case)}") from None
    except CaseError as error:
        raise CaseError(f"{source}: {error}") from None
