"""SimulatedServer: the async face of a simulated engine, with the behaviour of its dialect.

The fake model is a function of the prompt alone, so that a resume continues exactly (`sim.tokens` says which ids).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sim.clock import NS_PER_S
from sim.dialects import IllFormed, Outcome, Refused
from sim.engine.port import Burst, Moment, Prefill
from sim.events import (
    Admitted,
    Decoded,
    Ended,
    Event,
    Granted,
    Parked,
    Paused,
    Prefilled,
    Resumed,
    VersionChanged,
    without_addresses,
)
from sim.servers.experts import routed_experts
from sim.servers.port import Answer, Events, ServerParts
from sim.tokens import LogProbs, TokenIds, first_token, plain_ids, session_of

_ADMISSION_POLL_NS = 10**7
"""verl 0.9.1 waits for admissions under way in steps of this length before it pauses the engine."""

_MOST_POLLS = 100
"""After so many the wait is for the end of admissions itself, with the same outcome at the same time."""

ADMISSION_WAIT_S = 60.0
"""And no longer than this; then it pauses the engine all the same."""


def _with_shared(prompt_ids: Sequence[int], owner: int, tokens: int) -> TokenIds:
    """A prompt as the engine's cache sees it: ids tell their session everywhere else, and alike prompts must not."""
    shared = min(tokens, len(prompt_ids))
    return TokenIds.counting_from(first_token(owner), shared) + prompt_ids[shared:]


def _read_prompt(prompt_ids: Sequence[int]) -> tuple[int, Sequence[int]]:
    """The session that a prompt belongs to, and its ids."""
    if not len(prompt_ids):
        raise IllFormed("the prompt is empty")
    try:
        return session_of(prompt_ids[0]), plain_ids(prompt_ids)
    except (TypeError, LookupError) as error:
        raise IllFormed(f"the prompt is no sequence of token ids: {error}") from error


@dataclass(slots=True)
class _Request:
    number: int
    request_id: str
    session: int
    prompt_ids: Sequence[int]
    prompt_tokens: int
    max_tokens: int
    wants_log_probs: bool
    answer: "asyncio.Future[Answer]"
    parked: bool = False
    version: int = 0
    tokens: int = 0
    runs: list[tuple[int, int, int]] = field(default_factory=list)


class _NoEvents:
    """In the place of the trace, once the server is dead."""

    def add(self, event: Event, /) -> None:
        del event


class SimulatedServer:
    """One replica; see `sim.servers.port.RolloutServer`.

    A call of `generate` is no task: what would be the steps of its coroutine are callbacks of the loop, so that the
    schedule has the same choices at a fraction of the cost.
    """

    def __init__(self, parts: ServerParts) -> None:
        self.replica = parts.replica
        self.version = parts.version
        self._settings = parts.settings
        self._budget = parts.budget
        self._dialect = parts.dialect
        self._has_gate = parts.settings.has_gate
        self._gate = parts.gate
        self._engine = parts.engine
        self._loop = parts.clock
        self._trace: Events = parts.events
        self._model = parts.model
        self._watcher = parts.watcher
        self._make_output = parts.make_output
        self._live: dict[int, _Request] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_moment = Moment(0, False)
        self._admitting: dict[int, _Request] = {}
        self._without_token: dict[int, _Request] = {}
        """Of those in the engine."""
        self._admitted: asyncio.Future[None] = self._loop.create_future()
        """Done when a long wait for admissions is over."""
        self._drained: asyncio.Future[None] | None = None
        self._death: Exception | None = None
        self.is_paused = False
        if parts.version:
            self._engine.set_weight_version(parts.version)

    def generate(
        self, request: int, prompt_ids: Sequence[int], sampling_params: dict[str, Any], request_id: str
    ) -> "asyncio.Future[Answer]":
        """See `RolloutServer`."""
        try:
            session, ids = _read_prompt(prompt_ids)
            grant = self._dialect.take_grant(self._budget, len(ids), sampling_params)
        except (Refused, TypeError) as error:
            outcome: Outcome = "ill-formed" if isinstance(error, IllFormed) else "error"
            self._end(request, outcome, 0, without_addresses(str(error)))
            raise
        self._trace.add(
            Granted(self._loop.now_ns, request, grant.tokens, grant.rule, grant.wanted_tokens, grant.room_tokens)
        )
        wants_log_probs = sampling_params.pop("logprobs", False) not in (False, None)
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._enter(_Request(request, request_id, session, ids, len(ids), grant.tokens, wants_log_probs, answer))
        return answer

    def _enter(self, request: _Request) -> None:
        """Through the gate, where it may be turned away or parked, and towards the engine."""
        if self._death is not None:
            self._fail(request, self._death)
        elif self._gate.is_closed:
            if self._gate.rejects:
                request.version = self.version
                self._end(request.number, "refused", 0)
                self._loop.call_soon(self._answer, request, "refused")
                return
            if not request.parked:
                request.parked = True
                self._trace.add(Parked(self._loop.now_ns, request.number))
            self._gate.park(request)
        elif self._settings.admission_s:
            self._admitting[request.number] = request
            self._loop.call_later(self._settings.admission_s, self._admit_late, request)
        else:
            self._admit(request)

    def _admit_late(self, request: _Request) -> None:
        if self._admitting.pop(request.number, None) is not None:  # else it died meanwhile
            self._admit(request)
            self._one_admission_less()

    def _admit(self, request: _Request) -> None:
        now_ns = self._loop.now_ns
        request.version = self.version
        self._live[request.number] = self._without_token[request.number] = request
        self._trace.add(Admitted(now_ns, request.number))
        stop_after = self._model.stop_after(request.session, request.prompt_tokens)
        prompt_ids, output_base = request.prompt_ids, None
        shared = self._model.shared_prompt(request.session)
        if shared is not None:
            prompt_ids, output_base = _with_shared(prompt_ids, *shared), prompt_ids[-1] + 1
        priority = self._model.priority(request.session)
        self._engine.add(now_ns, request.number, prompt_ids, request.max_tokens, stop_after, output_base, priority)
        self._watch(request)
        if self._gate.is_closed:
            self._engine.watch(request.number, 1)
        self._set_timer()

    def _answer(self, request: _Request, outcome: Outcome) -> None:
        first = first_token(request.session) + request.prompt_tokens
        token_ids = TokenIds.counting_from(first, request.tokens)
        log_probs = LogProbs(tuple(request.runs)) if request.wants_log_probs and outcome != "refused" else None
        reason = self._dialect.stop_reasons[outcome]
        output = self._make_output(token_ids, log_probs, reason, request.version)
        if self._settings.routed_experts != "none":
            output.routed_experts = routed_experts(self._settings.routed_experts, request.prompt_tokens, request.runs)
        request.answer.set_result(Answer(request.tokens, output, log_probs is not None))

    async def abort_all(self, *, reset_prefix_cache: bool = True, reject: bool = False) -> list[str]:
        """See `RolloutServer`. Closes the gate, waits for what has passed it, and ends what is in the engine."""
        if self._has_gate:
            self._gate.close(reject and self._dialect.can_reject)
            await self._wait_for_admissions()
        await self._gate.settled()
        sent_before = list(self._live.values())
        await self._wait_for_step()
        self._take(self._engine.flush(self._loop.now_ns))
        live = [each for each in sent_before if each.number in self._live]
        for each in live:
            self._abort(each)
        self._engine.pause(self._loop.now_ns)
        self.is_paused = True
        if reset_prefix_cache:
            self._engine.reset_prefix_cache()
        self._set_timer()
        self._trace.add(Paused(self._loop.now_ns, self.replica, len(live)))
        return [each.request_id for each in live]

    async def pause(self, mode: Literal["wait", "keep"], *, clear_cache: bool = True) -> None:
        """See `RolloutServer`. New requests wait in the engine. `clear_cache`: what is frozen computes its KV anew."""
        await self._wait_for_step()
        self._take(self._engine.flush(self._loop.now_ns))
        self._engine.pause(self._loop.now_ns, mode)
        self.is_paused = True
        self._set_timer()
        if mode == "wait" and self._engine.next_moment() is not None:
            self._drained = self._loop.create_future()
            await self._drained
        if clear_cache:
            self._engine.reset_prefix_cache(reset_running_requests=mode == "keep")
        self._trace.add(Paused(self._loop.now_ns, self.replica, 0, mode))

    async def _wait_for_admissions(self) -> None:
        """Waits until what is past the gate is in the engine, or has its first token, where the server wants that."""
        begin_ns, polls = self._loop.now_ns, 0
        deadline_ns = begin_ns + int(ADMISSION_WAIT_S * NS_PER_S)
        if self._waits_for_first_token:
            self._take(self._engine.flush(self._loop.now_ns))
            for number in self._without_token:
                self._engine.watch(number, 1)
            self._set_timer()
        while self._is_admitting and self._loop.now_ns <= deadline_ns:
            left_ns = _ADMISSION_POLL_NS
            polls += 1
            if polls > _MOST_POLLS:
                # The polls in between would find nothing, and six thousand of them for each stalled update are slow.
                self._admitted = self._loop.create_future()
                timer = self._loop.call_at_ns(deadline_ns + _ADMISSION_POLL_NS, self._tell_admitted)
                await self._admitted
                timer.cancel()
                left_ns = (begin_ns - self._loop.now_ns) % _ADMISSION_POLL_NS
            if left_ns:
                await asyncio.sleep(left_ns / NS_PER_S)

    @property
    def _is_admitting(self) -> bool:
        return bool(self._admitting or (self._without_token and self._waits_for_first_token))

    @property
    def _waits_for_first_token(self) -> bool:
        return self._dialect.pause_waits_for == "first token"

    def _one_admission_less(self) -> None:
        if not self._is_admitting:
            self._tell_admitted()

    def _tell_admitted(self) -> None:
        if not self._admitted.done():
            self._admitted.set_result(None)

    async def resume(self) -> None:
        """See `RolloutServer`. Resumes the engine first, then opens the gate: each parked request tries again in a step
        of its own, and the gate may have closed once more by then."""
        self._engine.resume(self._loop.now_ns)
        self.is_paused = False
        self._set_timer()
        self._gate.open(lambda request: self._loop.call_soon(self._enter, request))
        self._trace.add(Resumed(self._loop.now_ns, self.replica))

    async def abort_request(self, request_id: str, *, reset_prefix_cache: bool = True) -> bool:
        """See `RolloutServer`. The cache is reset, between steps, only if nobody else is in the engine: vLLM refuses it
        otherwise."""
        self._take(self._engine.flush(self._loop.now_ns))
        named = [each for each in self._live.values() if each.request_id == request_id]
        for each in named:
            self._abort(each)
        self._set_timer()
        if named and reset_prefix_cache:
            await self._wait_for_step()
            self._engine.reset_prefix_cache()
        return bool(named)

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """See `RolloutServer`."""
        await self._wait_for_step()
        self._take(self._engine.flush(self._loop.now_ns))
        was_reset = self._engine.reset_prefix_cache(reset_running_requests)
        self._set_timer()
        return was_reset

    async def set_weight_version(self, version: int) -> None:
        """See `RolloutServer`."""
        await self._wait_for_step()
        self._take(self._engine.flush(self._loop.now_ns))
        self.version = version
        for each in self._live.values():
            each.version = version
        stale = self._engine.set_weight_version(version)
        self._trace.add(VersionChanged(self._loop.now_ns, self.replica, version, *stale))
        self._set_timer()

    def fail_request(self, session: int, error: Exception) -> bool:
        """See `RolloutServer`."""
        self._take(self._engine.flush(self._loop.now_ns))
        request = next((each for each in self._live.values() if each.session == session), None)
        if request is not None:
            self._fail(request, error)
        self._set_timer()
        return request is not None

    def die(self, error: Exception) -> None:
        """See `RolloutServer`. What a control call under way still does is on no trace."""
        self._take(self._engine.flush(self._loop.now_ns))
        self._death = error
        for request in (*self._live.values(), *self._admitting.values()):
            self._fail(request, error)
        self._admitting.clear()
        self._gate.open(lambda request: self._fail(request, error))
        self._tell_admitted()
        self._set_timer()
        self._trace = _NoEvents()

    def book(self) -> None:
        """See `RolloutServer`."""
        self._take(self._engine.flush(self._loop.now_ns))
        self._set_timer()

    def live_request_ids(self, session: int) -> list[str]:
        """See `RolloutServer`."""
        return [each.request_id for each in self._live.values() if each.session == session]

    @property
    def stuck(self) -> str | None:
        """See `RolloutServer`."""
        return self._engine.stuck

    # The engine's time

    def _watch(self, request: _Request) -> None:
        threshold = self._watcher.next_threshold(request.session)
        if threshold is not None:
            self._engine.watch(request.number, request.tokens + threshold - self._watcher.total(request.session))

    async def _wait_for_step(self) -> None:
        """Until no step is under way: vLLM's engine does what it is told between steps. Who wakes when a step is to end
        may come before the timer that ends it: that is seen to here."""
        while (end_ns := self._engine.step_end_ns(self._loop.now_ns)) is not None:
            self._set_timer()
            await asyncio.sleep((end_ns - self._loop.now_ns) / NS_PER_S)

    def _set_timer(self) -> None:
        """Sees to it that the server wakes in time for what the engine has due next. Waking too early does no harm."""
        moment = self._engine.next_moment()
        if self._drained is not None and moment is None:
            self._drained.set_result(None)
            self._drained = None
        if self._timer is not None:
            if moment is not None and self._timer_moment <= moment:
                return
            self._timer.cancel()
            self._timer = None
        if moment is not None:
            self._timer_moment = moment
            self._timer = self._loop.call_at_ns(moment.at_ns, self._on_timer, last=moment.last)

    def _on_timer(self) -> None:
        self._timer = None
        self._take(self._engine.advance(self._loop.now_ns))
        if self._timer_moment.last:
            self._engine.start(self._loop.now_ns)
        self._set_timer()

    def _take(self, bursts: list[Burst]) -> None:
        """Books what the engine has decoded."""
        for burst in bursts:
            request = self._live[burst.request]
            if burst.tokens:
                self._decoded(request, burst.tokens)
            if burst.finish is not None:
                self._finish(request, burst.finish, burst.prefill)

    def _decoded(self, request: _Request, tokens: int) -> None:
        position = request.prompt_tokens + request.tokens
        self._trace.add(Decoded(self._loop.now_ns, request.number, position, tokens, request.version))
        request.runs.append((position, tokens, request.version))
        request.tokens += tokens
        if self._without_token.pop(request.number, None) is not None:
            self._one_admission_less()
        self._watcher.decoded(request.session, tokens)
        self._watch(request)

    def _abort(self, request: _Request) -> None:
        left = self._engine.abort(request.number)
        self._finish(request, "abort", left.prefill, left.in_flight_tokens)

    def _fail(self, request: _Request, error: Exception) -> None:
        in_flight_tokens = 0
        if request.number in self._live:
            left = self._engine.abort(request.number)
            in_flight_tokens = left.in_flight_tokens
            self._leave(request, left.prefill)
        self._end(request.number, "error", request.tokens, str(error), in_flight_tokens)
        self._loop.call_soon(request.answer.set_exception, error)

    def _finish(self, request: _Request, outcome: Outcome, prefill: Prefill | None, in_flight_tokens: int = 0) -> None:
        self._leave(request, prefill)
        self._end(request.number, outcome, request.tokens, in_flight_tokens=in_flight_tokens)
        self._loop.call_soon(self._answer, request, outcome)

    def _leave(self, request: _Request, prefill: Prefill | None) -> None:
        """It is in the engine no longer."""
        del self._live[request.number]
        if self._without_token.pop(request.number, None) is not None:
            self._one_admission_less()
        if prefill is not None and any(prefill):
            self._trace.add(Prefilled(self._loop.now_ns, request.number, *prefill))

    def _end(
        self, request: int, outcome: Outcome, tokens: int, error: str | None = None, in_flight_tokens: int = 0
    ) -> None:
        self._trace.add(Ended(self._loop.now_ns, request, outcome, tokens, error, in_flight_tokens))
