"""World: builds servers, transport, balancer, client, sessions and faults from a Case, runs them, returns the Trace."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import StackSummary, walk_tb
from typing import Any, NamedTuple, cast

from msgspec import UNSET
from msgspec.structs import replace

from sim.case import MAX_TIME_S, MAX_TOKENS, Case, Every, explicit_limit, params_owner, prompt_owner
from sim.clock import (
    NS_PER_S,
    Deadlock,
    Deviation,
    Deviations,
    Fifo,
    Horizon,
    Order,
    RandomOrder,
    StepCap,
    VirtualLoop,
    tamed,
    to_ns,
)
from sim.clock.watchdog import Blocked, watched
from sim.engine import Engine, StepTotals
from sim.engine.timed import TimedEngine
from sim.events import (
    FaultFired,
    Logged,
    Message,
    SessionEnded,
    TurnEnded,
    TurnStarted,
    WorldEnded,
    spelled,
    without_addresses,
)
from sim.faults import Stage, Triggers, act
from sim.servers.decode_engine import ConstantRate, DecodeEngine
from sim.servers.server import FakeRolloutServer, Model, first_token
from sim.sut.interface import Client, Config, Context, Sut, SutError
from sim.sut.reference.agent import Trajectory, run_turns
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.tokens import TokenIds, Tokens, ids_as_runs
from sim.trace import MOST_RAISED_KEPT, Observer, Role, Trace
from sim.transport import wire as transport
from sim.transport.wire import BalancerHandle, ServerHandle, TurnInProgress, Wire, copied, current_turn

_FEWEST_STEPS_PER_INSTANT, _STEPS_PER_INSTANT = 100_000, 100
"""Callbacks at one instant that are not a livelock yet: in all, and for each session that lives."""

_LARGE_SESSIONS = 1000
"""A world of so many may take as long as it likes, if it gets on."""

_LEAST_TIMES = 1000
"""How often a fault that comes again and again may do so in any world."""

_OUR_FILES = (__file__, transport.__file__)
"""Whose frames say nothing in a client's traceback."""

_VERL_ROLES: Mapping[str, Role] = {
    "acquire_server": "acquire",
    "release_server": "release",
    "add_servers": "add",
    "remove_servers": "remove",
    "clear_sticky_cache": "clear_sticky",
}
"""What the messages to verl's balancer ask for, by their kind."""

REST = "rest"
"""Kind of the balancer's last entry in the trace: its counts when all is over."""


class _FakeModel:
    """Where the model stops: at the turn's own length, counted from the turn's prompt."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._stop_position: dict[int, int | None] = {}
        """Of the sessions that live."""

    def begin_turn(self, session: int, prompt_tokens: int, response_tokens: int | None) -> None:
        self._stop_position[session] = None if response_tokens is None else prompt_tokens + response_tokens

    def end_session(self, session: int) -> None:
        self._stop_position.pop(session, None)

    def stop_after(self, session: int, prompt_tokens: int) -> int | None:
        position = self._stop_position.get(session)
        return None if position is None else max(1, position - prompt_tokens)

    def shared_prompt(self, session: int) -> tuple[int, int] | None:
        if not 0 <= session < self._case.num_sessions:
            return None  # a client may send token ids that belong to no session
        owner = prompt_owner(self._case, session)
        if owner == session:
            return None
        return owner, min(self._case.session(each).prompt_tokens for each in (owner, session))


class _ObservedClient:
    """The client as the agent loop sees it; every turn is on the trace."""

    def __init__(self, case: Case, client: Client, loop: VirtualLoop, trace: Trace, model: _FakeModel) -> None:
        self._case = case
        self._client = client
        self._loop = loop
        self._trace = trace
        self._model = model
        self._turns: dict[int, int] = {}
        """Turns begun, of the sessions that live."""
        self.takes_runs = getattr(client, "takes_runs", False) is True

    async def generate(
        self, request_id: str, *, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> Any:
        place = current_turn.get()
        assert place is not None, "turns run in the context of a session"
        session, turn = place.session, self._turns.get(place.session, 0)
        self._turns[session] = turn + 1
        turns = self._case.session(session).turns
        self._model.begin_turn(session, len(prompt_ids), turns[min(turn, len(turns) - 1)].response_tokens)
        self._trace.add(TurnStarted(self._loop.now_ns, session, turn, len(prompt_ids)))
        current_turn.set(TurnInProgress(session, turn))
        before = copied(sampling_params)
        try:
            output = await self._client.generate(
                request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs
            )
            extra = output.extra_fields or {}
            self._end(
                session,
                turn,
                before,
                sampling_params,
                output.token_ids,
                output.stop_reason,
                (extra.get("min_global_steps"), extra.get("max_global_steps")),
            )
        except asyncio.CancelledError:
            self._end(session, turn, before, sampling_params, outcome="cancelled")
            raise
        except Exception as error:
            if len(self._trace.raised) < MOST_RAISED_KEPT:
                stack = StackSummary.extract(walk_tb(error.__traceback__), lookup_lines=False)
                theirs = [frame for frame in stack if frame.filename not in _OUR_FILES]
                self._trace.raised[session, turn] = StackSummary.from_list(theirs)
            text = spelled(error)
            if self._trace.factory_raised:
                text = f"the factory raised {text}"
            self._end(session, turn, before, sampling_params, outcome="error", error=text)
            raise
        return output

    def end_session(self, session: int) -> None:
        self._turns.pop(session, None)
        self._model.end_session(session)

    def _end(
        self,
        session: int,
        turn: int,
        before: dict[str, Any],
        after: dict[str, Any],
        ids: Sequence[int] = (),
        stop_reason: str | None = None,
        versions: tuple[int | None, int | None] = (None, None),
        outcome: Any = "ok",
        error: str | None = None,
    ) -> None:
        changed = None if before == after else without_addresses(f"{before} became {after}")
        self._trace.add(
            TurnEnded(
                self._loop.now_ns,
                session,
                turn,
                outcome,
                ids_as_runs(ids),
                stop_reason,
                versions[0],
                versions[1],
                changed,
                error,
            )
        )


class _NoClient:
    """In the place of a client whose factory raised over a config that is odd on purpose: so does each call."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self._traceback = error.__traceback__

    async def generate(self, *_: Any, **__: Any) -> Any:
        raise self._error.with_traceback(self._traceback)


class _LogTap(logging.Handler):
    """Puts warnings of the system under test on the trace instead of the terminal.

    One serves all worlds, since only one runs at a time and `logging` registers every handler for good.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._heard: Callable[[str, str], None] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._heard is not None:
            try:
                text = record.getMessage()
            except Exception:  # the arguments do not fit: `logging` would complain on the terminal and go on
                text = str(record.msg)
            self._heard(record.name, text)

    @contextmanager
    def tapped(self, heard: Callable[[str, str], None]) -> Iterator[None]:
        """Has `heard` called with the logger's name and the text of each warning, and nothing else done with it."""
        root = logging.getLogger()
        kept = root.handlers[:]
        root.handlers[:] = [self]
        self._heard = heard
        try:
            yield
        finally:
            self._heard = None
            root.handlers[:] = kept


_log_tap = _LogTap()


def _order(case: Case) -> Order:
    schedule = case.schedule
    if schedule.policy == "random":
        return RandomOrder(schedule.seed)
    if schedule.policy == "explicit":
        return Deviations(tuple(Deviation(step, pick) for step, pick in schedule.deviations))
    return Fifo()


def _client_config(case: Case) -> Config:
    """The parts of verl's config that its clients read, as this Case has the client see them."""
    budget = case.budget
    rollout: dict[str, Any] = {
        "name": case.server.dialect,
        "prompt_length": budget.prompt_length,
        "max_model_len": budget.context_tokens,
        "full_determinism": False,
    }
    response_length = budget.client_response_length
    if response_length is not UNSET:
        rollout["response_length"] = response_length
    return Config(
        actor_rollout_ref=Config(rollout=Config(**rollout)),
        async_training=Config(partial_rollout=case.partial_rollout),
    )


def _slowest_step_s(case: Case) -> tuple[float, float]:
    """What a step may take, and what the prefill of a request may add to that.

    In each step the first of the running requests gets on, so a pool that never runs short takes a step a token and
    one for each chunk of a prompt. In a smaller one every token may come with a prompt computed again.
    """
    server = case.server
    if server.engine is None:
        return server.token_time_s, server.prefill_s
    config = server.engine.config(case.budget.context_tokens)
    chunk_tokens = min(config.max_num_batched_tokens, server.engine.long_prefill_token_threshold or MAX_TOKENS)
    chunks = -(-case.budget.context_tokens // chunk_tokens)
    if server.latency is None:
        token_s, prefill_s = server.token_time_s, server.prefill_s
    else:
        budget_tokens = config.max_num_batched_tokens
        latency = server.make_latency()
        kv_tokens = config.max_num_seqs * config.max_model_len
        token_s = latency.stretch(StepTotals(budget_tokens, budget_tokens, 0, kv_tokens)).step_ns / NS_PER_S
        prefill_s = token_s
    if server.engine.num_gpu_blocks is not None:
        return token_s + chunks * (token_s + prefill_s), chunks * (token_s + prefill_s)
    return token_s, (chunks - 1) * token_s + chunks * prefill_s


class Bounds(NamedTuple):
    """What a world may take before it counts as one that does not end."""

    virtual_s: float
    times: tuple[int, ...]
    """How often each fault acts at most: more often than once only those that come again and again."""


def bounds_of(case: Case) -> Bounds:
    """Virtual time in which every session must have ended: twice the time that all of the work takes one by one.

    A fault that comes sooner than a call is through may keep the work from getting on for ever. It stops after so many
    times as would do if each let one token through, and as many more as there is time in which nobody decodes.
    """
    server = case.server
    token_s, prefill_s = _slowest_step_s(case)
    every = [fault.at.time_s for fault in case.faults if isinstance(fault.at, Every)]
    aborts = MAX_TOKENS if every else 1 + len(case.faults)
    calls_s = prefill_s + server.admission_s + 2 * case.transport.server_delay_s
    calls_s += 3 * case.transport.balancer_delay_s + token_s + 2.0
    total_s = 0.0
    budget_tokens = 0
    for index, session in enumerate(case.sessions):
        limit = explicit_limit(case, index)
        grant_tokens = max(case.budget.response_length, 0 if limit is None else limit.tokens)
        turn_tokens = min(case.budget.context_tokens, aborts * grant_tokens)
        tokens = 0
        for turn in session.turns:
            total_s += turn.tool_time_s
            tokens += turn_tokens if turn.response_tokens is None else min(turn_tokens, turn.response_tokens)
            budget_tokens += grant_tokens if turn.response_tokens is None else min(grant_tokens, turn.response_tokens)
        total_s += session.arrival_s + tokens * token_s + len(session.turns) * (1 if every else aborts) * calls_s
    total_s *= case.repeat
    budget_tokens *= case.repeat
    for fault in case.faults:
        total_s += getattr(fault, "pause_s", 0.0) + getattr(fault, "delay_s", 0.0) + getattr(fault.at, "time_s", 0.0)
        total_s += calls_s
    times = tuple(
        _LEAST_TIMES + budget_tokens + round(total_s / fault.at.time_s) if isinstance(fault.at, Every) else 1
        for fault in case.faults
    )
    for time_s, most in zip(every, (each for each in times if each > 1), strict=True):
        # Between two of them, what is left once everybody who lives has been called and prefilled again.
        useful_s = time_s - calls_s * case.most_live_sessions
        lost_s = calls_s + max([getattr(fault, "pause_s", 0.0) for fault in case.faults])
        if useful_s > 0:
            total_s *= (time_s + lost_s) / useful_s
        else:
            total_s += most * (time_s + lost_s)
    return Bounds(min(MAX_TIME_S, 2 * total_s + 60.0), times)


class World:
    """One run of a Case with one system under test. Make it, `run` it once, read `trace` and `deviations`.

    `order`: in the place of the Case's own schedule, for one who watches it. `observers`: they are handed the events of
    the trace, which then keeps none (see `Trace`).
    """

    def __init__(
        self, case: Case, sut: Sut, order: Order | None = None, observers: Sequence[Observer] | None = None
    ) -> None:
        self.case = case
        self._order = _order(case) if order is None else order
        self.sut = sut
        self.trace = Trace(case.num_sessions, _VERL_ROLES, observers)
        self.deviations: tuple[Deviation, ...] = ()
        """Not of a case that repeats its sessions: they would be as many as its steps."""
        self.steps = 0
        """Callbacks that ran: what the run cost, the same on any machine."""
        self._bounds = bounds_of(case)
        self._loop = self._make_loop()
        self._balancer: BalancerHandle | None = None
        self._servers: list[FakeRolloutServer] = []
        self._sessions: dict[int, asyncio.Task[None]] = {}
        """Those that live."""
        self._fault: Exception | None = None
        """What a server of ours raised in its own time: no client is to blame."""
        self._to_begin: Iterator[int] = iter(range(case.num_sessions))
        self._sharers = Counter([params_owner(case, index) for index in range(len(case.sessions))])
        """How many sessions have one session's sampling params."""
        self._shared_params: dict[int, dict[str, Any]] = {}
        """By their owner, until all sessions that have them have ended."""
        self._sharers_left: dict[int, int] = {}
        """How many these are."""

    def run(self) -> Trace:
        """Runs to the end: all done, deadlocked, out of time or livelocked; which of them is the trace's last event."""
        loop, trace = self._loop, self.trace
        loop.set_exception_handler(self._unhandled)
        try:
            gets_on = (lambda: loop.steps) if self.case.num_sessions >= _LARGE_SESSIONS else None
            with watched(gets_on), tamed(loop, self.case.seed), _log_tap.tapped(self._heard):
                try:
                    loop.run_until_complete(self._main())
                    loop.run_until_idle()
                    self._show_rest()
                    trace.seal(WorldEnded(loop.now_ns, "done"))
                except Deadlock as deadlock:
                    trace.seal(WorldEnded(loop.now_ns, "deadlock", (*self._stuck(), *deadlock.waiting)))
                except Horizon:
                    trace.seal(WorldEnded(loop.now_ns, "horizon", self._stuck()))
                except StepCap as cap:
                    trace.seal(WorldEnded(loop.now_ns, "livelock", (("", str(cap)),)))
                self.deviations, self.steps = loop.deviations, loop.steps
                self._close()
        except Blocked as blocked:
            raise SutError(f"SUT {self.sut.name!r} {blocked}") from None
        except SystemExit as left:
            raise SutError(f"SUT {self.sut.name!r} called sys.exit({left.code!r})") from left
        finally:
            self._close()
        if self._fault is not None:
            raise self._fault
        return trace

    def _close(self) -> None:
        """Ends what is left. None of it is part of the run."""
        self.trace.close()
        self._to_begin = iter(())
        self._loop.close()

    def _stuck(self) -> tuple[tuple[str, str], ...]:
        """The replicas whose engines will never do anything again, and why."""
        return tuple(("", f"replica {each.replica} is stuck: {each.stuck}") for each in self._servers if each.stuck)

    def _heard(self, logger: str, text: str) -> None:
        self.trace.add(Logged(self._loop.now_ns, logger, without_addresses(text)))

    def _unhandled(self, loop: Any, context: dict[str, Any]) -> None:
        del loop
        callback = getattr(context.get("handle"), "_callback", None)
        if isinstance(getattr(callback, "__self__", None), FakeRolloutServer):
            self._fault = self._fault or context.get("exception")
        self._heard("asyncio", f"{context.get('message')}: {context.get('exception')!r}")

    async def _main(self) -> None:
        case, loop, trace = self.case, self._loop, self.trace
        triggers = Triggers(case, loop)
        wire = self._make_wire(triggers)
        model = _FakeModel(case)
        servers = [self._make_server(replica, model, triggers) for replica in range(case.replicas)]
        self._servers = servers
        handles = [ServerHandle(wire, server) for server in servers]
        names = [f"replica-{replica}" for replica in range(case.replicas)]
        client = self._make_client(dict(zip(names, handles, strict=True)), wire)
        assert self._balancer is not None
        observed = _ObservedClient(case, client, loop, trace, model)
        for server in servers:
            server.answers_in_runs = observed.takes_runs
        all_ended: asyncio.Future[None] = loop.create_future()
        for _ in range(case.most_live_sessions):
            self._begin_session(observed, all_ended)
        stage = Stage(
            loop,
            trace,
            wire,
            triggers,
            names,
            servers,
            handles,
            self._balancer,
            self._sessions,
            set(range(case.replicas)),
            asyncio.Lock(),
        )
        waiting: list[asyncio.Task[None]] = []
        acting: list[asyncio.Task[None]] = []
        for index, fault in enumerate(case.faults):
            waiting.append(loop.create_task(self._run_fault(stage, index, fault, acting), name=f"fault {index}"))
        await all_ended
        for task in waiting:
            task.cancel()
        if acting:
            await asyncio.wait(acting)

    # What another kind of world makes of other parts: a real engine, real time (gpu_checks)

    def _make_loop(self) -> VirtualLoop:
        case = self.case
        return VirtualLoop(
            order=self._order,
            until_ns=to_ns(self._bounds.virtual_s),
            max_steps_per_instant=max(_FEWEST_STEPS_PER_INSTANT, _STEPS_PER_INSTANT * case.most_live_sessions),
            keeps_deviations=case.repeat == 1,
        )

    def _make_wire(self, triggers: Triggers) -> Wire:
        return Wire(self.case.transport, self._loop, self.trace, triggers)

    def _make_server(self, replica: int, model: Model, triggers: Triggers) -> FakeRolloutServer:
        case = self.case
        return self.sut.server_class(
            replica, case.server, case.budget, self._make_engine(), self._loop, self.trace, model, triggers
        )

    def _make_engine(self) -> DecodeEngine:
        settings = self.case.server
        if settings.engine is None:
            return ConstantRate(to_ns(settings.token_time_s), to_ns(settings.prefill_s))
        config = settings.engine.config(self.case.budget.context_tokens)
        return TimedEngine(Engine(config, keep_finish_steps=False), settings.make_latency())

    def _make_client(self, servers: dict[str, Any], wire: Wire) -> Client:
        names = list(servers)

        def register(balancer: Any) -> BalancerHandle:
            self._balancer = BalancerHandle(wire, balancer, names)
            return self._balancer

        def make_balancer(cls: type[Any]) -> BalancerHandle:
            plain = unwrapped(cls)
            return register(plain(servers=dict(servers)))

        def default_balancer() -> BalancerHandle:
            if self._balancer is None:
                router = self.case.router
                register(LeastLoadedBalancer(dict(servers), router.tie_break, router.sticky))
            assert self._balancer is not None
            return self._balancer

        def built(case: Case) -> Any:
            return self.sut.factory(Context(_client_config(case), servers, make_balancer, default_balancer))

        try:
            client = built(self.case)
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) or not self._suits_usual_config(built):
                raise SutError(
                    f"the factory of SUT {self.sut.name!r} raised {type(error).__name__}: {error}"
                ) from error
            client = _NoClient(error)
            self.trace.factory_raised = True
        if isinstance(client, tuple) and len(client) == 2:
            client, balancer = client
            if isinstance(balancer, BalancerHandle):
                self._balancer = balancer
            else:
                register(balancer)
        if self._balancer is None:
            default_balancer()
        if not callable(getattr(client, "generate", None)):
            raise SutError(
                f"the factory of SUT {self.sut.name!r} returned {type(client).__name__}, which has no generate(); "
                f"a client or (client, balancer) is needed"
            )
        return cast(Client, client)

    def _suits_usual_config(self, built: Callable[[Case], Any]) -> bool:
        """Whether a factory that raised does not, once nothing in the client's config is odd on purpose."""
        if self.case.budget.client_view is None:
            return False
        try:
            built(replace(self.case, budget=replace(self.case.budget, client_view=None)))
        except (Exception, SystemExit):
            return False
        return True

    def _begin_session(self, client: _ObservedClient, all_ended: "asyncio.Future[None]") -> None:
        """Begins the next session, if there is one; each that ends makes room for another."""
        index = next(self._to_begin, None)
        if index is None:
            if not self._sessions and not all_ended.done():
                all_ended.set_result(None)
            return
        task = self._loop.create_task(
            self._run_session(index, client, self._sampling_params(index)), name=f"session {index}"
        )
        self._sessions[index] = task

        def ended(task: "asyncio.Task[None]") -> None:
            del self._sessions[index]
            client.end_session(index)
            self._return_params(index)
            if task.cancelled():  # before its first step, so that it could not say so itself
                self.trace.add(SessionEnded(self._loop.now_ns, index, "cancelled", 0, 0))
            self._begin_session(client, all_ended)

        task.add_done_callback(ended)

    def _sampling_params(self, session: int) -> dict[str, Any]:
        """One params object a session; sessions that share one are given the owner's."""
        owner = params_owner(self.case, session)
        if owner in self._shared_params:
            return self._shared_params[owner]
        params: dict[str, Any] = {"temperature": 1.0, "logprobs": True}
        limit = explicit_limit(self.case, owner)
        if limit is not None:
            for key in ("max_tokens", "max_new_tokens"):
                if limit.spelling in (key, "both"):
                    params[key] = limit.tokens
        num_sharers = self._sharers[owner % len(self.case.sessions)]
        if num_sharers > 1:
            self._shared_params[owner], self._sharers_left[owner] = params, num_sharers
        return params

    def _return_params(self, session: int) -> None:
        owner = params_owner(self.case, session)
        if owner in self._shared_params:
            self._sharers_left[owner] -= 1
            if not self._sharers_left[owner]:
                del self._shared_params[owner], self._sharers_left[owner]

    async def _run_session(self, index: int, client: _ObservedClient, params: dict[str, Any]) -> None:
        session = self.case.session(index)
        trajectory = Trajectory()
        outcome: Any = "ok"
        text: str | None = None
        try:
            if session.arrival_s:
                await asyncio.sleep(session.arrival_s)
            current_turn.set(TurnInProgress(index, -1))
            origin = first_token(index)
            prompt_ids: Tokens = TokenIds.counting_from(origin, session.prompt_tokens)
            if not client.takes_runs:
                prompt_ids = list(prompt_ids)
            response_length = self.case.budget.response_length
            await run_turns(client, f"session-{index}", prompt_ids, session.turns, params, response_length, trajectory)
        except asyncio.CancelledError:
            outcome = "cancelled"
        except Exception as error:
            outcome, text = "error", spelled(error)
        self.trace.add(
            SessionEnded(self._loop.now_ns, index, outcome, trajectory.response_tokens, trajectory.kept_tokens, text)
        )

    async def _run_fault(self, stage: Stage, index: int, fault: Any, acting: "list[asyncio.Task[None]]") -> None:
        """Waits for its time in a task that the end of all sessions may cancel, and acts in one that ends by itself."""
        times = self._bounds.times[index]
        for _ in range(times):
            await stage.triggers.wait(fault.at)
            task = self._loop.create_task(act(stage, index, fault), name=f"fault {index} acting")
            acting.append(task)
            if not isinstance(fault.at, Every):
                return
            await asyncio.wait([task])
            acting.remove(task)
        note = f"comes no more: it did so {times:,} times, and sessions live"
        self.trace.add(FaultFired(self._loop.now_ns, index, str(fault.__struct_config__.tag), note))

    def _show_rest(self) -> None:
        assert self._balancer is not None
        loads, total = self._balancer.shown_loads()
        self.trace.add(
            Message(self._loop.now_ns, REST, None, None, (), loads, total, self._balancer.messages_in_flight)
        )


def unwrapped(cls: type[Any]) -> type[Any]:
    """The plain class inside a Ray actor class; a plain class as it is."""
    metadata = getattr(cls, "__ray_metadata__", None)
    return cls if metadata is None else cast(type[Any], metadata.modified_class)


def run_world(case: Case, sut: Sut) -> Trace:
    """The trace of one run."""
    return World(case, sut).run()
