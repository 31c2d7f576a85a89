"""FakeRolloutServer: the async face of an engine, as verl's rollout servers have it.

Behaviour follows verl's `vLLMHttpServer`, `SGLangHttpServer` and `TRTLLMHttpServer`: generate, abort_all_requests,
abort_request, resume_generation, set_global_steps, and the submission gate of 0.9.1. The fake model is a function
of the prompt alone, so that a resume continues exactly: token ids are `session * SESSION_STRIDE + position`.
"""

import asyncio
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sim.case import Budget, ServerSettings
from sim.clock import NS_PER_S, VirtualLoop
from sim.dialects.grants import NoRoom, take_grant
from sim.events import (
    Admitted,
    Decoded,
    Ended,
    Granted,
    Outcome,
    Parked,
    Paused,
    Prefilled,
    Resumed,
    VersionChanged,
    without_addresses,
)
from sim.servers.decode_engine import Burst, DecodeEngine, Moment, Prefill
from sim.tokens import LogProbs, TokenIds, Tokens, plain_ids
from sim.trace import Trace

SESSION_STRIDE = 1 << 24
"""Token ids of one session; more than any context holds."""

_ADMISSION_POLL_NS = 10**7
"""verl 0.9.1 waits for admissions under way in steps of this length before it pauses the engine."""

_MOST_POLLS = 100
"""After so many the wait is for the end of admissions itself, with the same outcome at the same time."""

ADMISSION_WAIT_S = 60.0
"""And no longer than this; then it pauses the engine all the same."""

STOP_REASONS: Mapping[str, Mapping[Outcome, str | None]] = {
    "vllm": {"stop": "completed", "length": "completed", "abort": "aborted", "refused": "aborted"},
    "sglang": {"stop": "stop", "length": "length", "abort": "abort", "refused": "aborted"},
    "trtllm": {"stop": None, "length": None, "abort": "aborted", "refused": "aborted"},
}
"""The stop_reason that each server gives its client for the way a request ended."""


def first_token(session: int) -> int:
    """The id of the token at position 0 of a session."""
    return (session + 1) * SESSION_STRIDE


def session_of(token_id: int) -> int:
    """The session that a token id belongs to."""
    return operator.index(token_id) // SESSION_STRIDE - 1


def _with_shared(prompt_ids: Sequence[int], owner: int, tokens: int) -> TokenIds:
    """A prompt as the engine's cache sees it: ids tell their session everywhere else, and alike prompts must not."""
    shared = min(tokens, len(prompt_ids))
    return TokenIds.counting_from(first_token(owner), shared) + prompt_ids[shared:]


@dataclass(slots=True)
class TokenOutput:
    """What generate returns; the fields of verl's TokenOutput."""

    token_ids: Tokens
    log_probs: list[float] | LogProbs | None
    stop_reason: str | None
    routed_experts: Any = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class Model(Protocol):
    """Where the fake model stops by itself."""

    def stop_after(self, session: int, prompt_tokens: int) -> int | None:
        """Tokens that the model still generates behind this prompt; None: it never stops."""

    def shared_prompt(self, session: int) -> tuple[int, int] | None:
        """The session that has the same first prompt, and the tokens of it; None where there is none."""


class Watcher(Protocol):
    """Who wants to know how many tokens a session has decoded (the faults' triggers)."""

    def next_threshold(self, session: int) -> int | None:
        """The total of decoded tokens at which it wants the session's progress exactly; None: not at all."""

    def decoded(self, session: int, tokens: int) -> None:
        """`tokens` more were decoded for the session."""

    def total(self, session: int) -> int:
        """Tokens decoded for the session so far."""


@dataclass(slots=True)
class _Request:
    number: int
    request_id: str
    session: int
    prompt_ids: Sequence[int]
    prompt_tokens: int
    max_tokens: int
    wants_log_probs: bool
    answer: "asyncio.Future[TokenOutput]"
    parked: bool = False
    version: int = 0
    tokens: int = 0
    runs: list[tuple[int, int, int]] = field(default_factory=list)


class FakeRolloutServer:
    """One replica. Its methods are what a client, trainer or balancer can call.

    A call of `generate` is no task: what would be the steps of its coroutine are callbacks of the loop, so that the
    schedule has the same choices at a fraction of the cost.
    """

    def __init__(
        self,
        replica: int,
        settings: ServerSettings,
        budget: Budget,
        engine: DecodeEngine,
        loop: VirtualLoop,
        trace: Trace,
        model: Model,
        watcher: Watcher,
    ) -> None:
        self.replica = replica
        self.settings = settings
        self.budget = budget
        self.version = 0
        self.answers_in_runs = False
        """Whether tokens are given to the client as `sim.tokens` has them, and not as lists."""
        self._engine = engine
        self._loop = loop
        self._trace = trace
        self._model = model
        self._watcher = watcher
        self._live: dict[int, _Request] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_moment = Moment(0, False)
        self._gate_closed = False
        self._rejecting = False
        self._parked: list[_Request] = []
        self._admitting = 0
        self._without_token: dict[int, _Request] = {}
        """Of those in the engine."""
        self._admitted: asyncio.Future[None] = loop.create_future()
        """Done when a long wait for admissions is over."""
        self._drained: asyncio.Future[None] | None = None

    # What clients call

    def generate(
        self,
        request: int,
        prompt_ids: Tokens,
        sampling_params: dict[str, Any],
        request_id: str,
        **_multimodal: Any,
    ) -> "asyncio.Future[TokenOutput]":
        """Generates up to its grant. Raises `NoRoom` (ValueError) and TypeError at once where verl's server does.

        `request` is the number that the transport gave the call; the rest is verl's signature.
        """
        try:
            if not len(prompt_ids):
                raise NoRoom("the prompt is empty")
            session = session_of(prompt_ids[0])
            grant = take_grant(self.settings.dialect, self.budget, len(prompt_ids), sampling_params)
            self._refuse_leftovers(sampling_params)
            ids = plain_ids(prompt_ids)
        except (NoRoom, TypeError) as error:
            self._end(request, "error", 0, without_addresses(str(error)))
            raise
        self._trace.add(
            Granted(self._loop.now_ns, request, grant.tokens, grant.rule, grant.wanted_tokens, grant.room_tokens)
        )
        wants_log_probs = sampling_params.pop("logprobs", False) not in (False, None)
        answer: asyncio.Future[TokenOutput] = self._loop.create_future()
        self._enter(_Request(request, request_id, session, ids, len(ids), grant.tokens, wants_log_probs, answer))
        return answer

    def _refuse_leftovers(self, sampling_params: dict[str, Any]) -> None:
        """verl passes the params on as keywords; a second spelling of the limit is unknown to the engine."""
        if self.settings.dialect == "trtllm":
            return
        for key in ("max_tokens", "max_new_tokens"):
            if key in sampling_params:
                raise TypeError(f"SamplingParams got an unexpected keyword argument {key!r}")

    def _enter(self, request: _Request) -> None:
        """Through the gate, where it may be turned away or parked, and towards the engine."""
        if self._gate_closed:
            if self._rejecting:
                self._end(request.number, "refused", 0)
                self._loop.call_soon(self._answer, request, "refused")
                return
            if not request.parked:
                request.parked = True
                self._trace.add(Parked(self._loop.now_ns, request.number))
            self._parked.append(request)
        elif self.settings.admission_s:
            self._admitting += 1
            self._loop.call_later(self.settings.admission_s, self._admit_late, request)
        else:
            self._admit(request)

    def _admit_late(self, request: _Request) -> None:
        self._admitting -= 1
        self._admit(request)
        self._got_on()

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
        self._engine.add(now_ns, request.number, prompt_ids, request.max_tokens, stop_after, output_base)
        self._watch(request)
        if self._gate_closed:
            self._engine.watch(request.number, 1)
        self._set_timer()

    def _answer(self, request: _Request, outcome: Outcome) -> None:
        first = first_token(request.session) + request.prompt_tokens
        token_ids: Tokens = TokenIds.counting_from(first, request.tokens)
        log_probs: list[float] | LogProbs | None = None
        if request.wants_log_probs and outcome != "refused":
            log_probs = LogProbs(tuple(request.runs))
        if not self.answers_in_runs:
            token_ids, log_probs = list(token_ids), None if log_probs is None else list(log_probs)
        reason = STOP_REASONS[self.settings.dialect][outcome]
        request.answer.set_result(
            TokenOutput(token_ids, log_probs, reason, extra_fields={"global_steps": self.version})
        )

    # What trainers call

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict[str, Any]:
        """Ends every request with what it has, and takes no new ones until `resume_generation`.

        With the gate, it closes first and admissions under way are waited for, on vLLM's server until their first
        token; `reject_request` turns late arrivals away instead of parking them (SGLang's server ignores it).
        """
        if self.settings.submission_gate:
            self._gate_closed = True
            self._rejecting = reject_request and self.settings.dialect != "sglang"
        await self._wait_for_admissions()
        sent_before = list(self._live.values())
        await self._wait_for_step()
        self._take(self._engine.flush(self._loop.now_ns))
        live = [each for each in sent_before if each.number in self._live]
        for each in live:
            self._abort(each)
        self._engine.pause(self._loop.now_ns)
        if reset_prefix_cache:
            self._engine.reset_prefix_cache()
        self._set_timer()
        self._trace.add(Paused(self._loop.now_ns, self.replica, len(live)))
        return {"aborted_count": len(live), "request_ids": [each.request_id for each in live]}

    async def pause_generation(self, mode: Literal["wait", "keep"], clear_cache: bool = True) -> None:
        """vLLM's own pause without an abort: requests run to their end first (`wait`) or freeze (`keep`); new ones
        wait in the engine until `resume_generation`. `clear_cache`: what is frozen computes its KV once more."""
        await self._wait_for_step()
        self._take(self._engine.flush(self._loop.now_ns))
        self._engine.pause(self._loop.now_ns, mode)
        self._set_timer()
        if mode == "wait" and self._engine.next_moment() is not None:
            self._drained = self._loop.create_future()
            await self._drained
        if clear_cache:
            self._engine.reset_prefix_cache(reset_running_requests=mode == "keep")
        self._trace.add(Paused(self._loop.now_ns, self.replica, 0))

    async def _wait_for_admissions(self) -> None:
        """Waits until what is past the gate is in the engine; vLLM's server holds it to be there at its first token."""
        if not self.settings.submission_gate:
            return
        begin_ns, polls = self._loop.now_ns, 0
        deadline_ns = begin_ns + int(ADMISSION_WAIT_S * NS_PER_S)
        if self.settings.dialect == "vllm":
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
        return bool(self._admitting or (self._without_token and self.settings.dialect == "vllm"))

    def _got_on(self) -> None:
        if not self._is_admitting:
            self._tell_admitted()

    def _tell_admitted(self) -> None:
        if not self._admitted.done():
            self._admitted.set_result(None)

    async def resume_generation(self) -> None:
        """Resumes the engine first, then opens the gate."""
        self._engine.resume(self._loop.now_ns)
        self._set_timer()
        self._open_gate()
        self._trace.add(Resumed(self._loop.now_ns, self.replica))

    def _open_gate(self) -> None:
        """Each parked request tries again in a step of its own; the gate may have closed once more by then."""
        self._gate_closed = False
        self._rejecting = False
        for request in self._parked:
            self._loop.call_soon(self._enter, request)
        self._parked.clear()

    async def abort_request(self, request_id: str, reset_prefix_cache: bool = True) -> dict[str, Any]:
        """Ends every live request of this id at once; says so where there is none. The cache is reset, between steps,
        only if nobody else is in the engine: vLLM refuses it otherwise."""
        self._take(self._engine.flush(self._loop.now_ns))
        named = [each for each in self._live.values() if each.request_id == request_id]
        for each in named:
            self._abort(each)
        self._set_timer()
        if not named:
            return {"aborted": False, "error": f"Request {request_id} not found"}
        if reset_prefix_cache:
            await self._wait_for_step()
            self._engine.reset_prefix_cache()
        return {"aborted": True, "request_id": request_id}

    async def set_global_steps(self, global_steps: int) -> None:
        """The weights are of this version from the next step on."""
        await self._wait_for_step()
        self._take(self._engine.flush(self._loop.now_ns))
        self.version = global_steps
        for each in self._live.values():
            each.version = global_steps
        stale = self._engine.set_weight_version(global_steps)
        self._trace.add(VersionChanged(self._loop.now_ns, self.replica, global_steps, *stale))
        self._set_timer()

    def book(self) -> None:
        """Puts on the trace what is decoded by now, where the trace needs it to the token."""
        self._take(self._engine.flush(self._loop.now_ns))
        self._set_timer()

    def live_request_ids(self, session: int) -> list[str]:
        """The ids of a session's requests in the engine."""
        return [each.request_id for each in self._live.values() if each.session == session]

    @property
    def stuck(self) -> str | None:
        """Why the engine will never do anything again by itself; None while that is not so."""
        return self._engine.stuck

    # The engine's time

    def _watch(self, request: _Request) -> None:
        threshold = self._watcher.next_threshold(request.session)
        if threshold is not None:
            self._engine.watch(request.number, request.tokens + threshold - self._watcher.total(request.session))

    async def _wait_for_step(self) -> None:
        """Until no step is under way: vLLM's engine does what it is told between steps."""
        now_ns = self._loop.now_ns
        end_ns = self._engine.step_end_ns(now_ns)
        if end_ns is not None:
            self._set_timer()
            await asyncio.sleep((end_ns - now_ns) / NS_PER_S)

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
            self._got_on()
        self._watcher.decoded(request.session, tokens)
        self._watch(request)

    def _abort(self, request: _Request) -> None:
        left = self._engine.abort(request.number)
        self._finish(request, "abort", left.prefill, left.in_flight_tokens)

    def _finish(self, request: _Request, outcome: Outcome, prefill: Prefill | None, in_flight_tokens: int = 0) -> None:
        del self._live[request.number]
        if self._without_token.pop(request.number, None) is not None:
            self._got_on()
        if prefill is not None and any(prefill):
            self._trace.add(Prefilled(self._loop.now_ns, request.number, *prefill))
        self._end(request.number, outcome, request.tokens, in_flight_tokens=in_flight_tokens)
        self._loop.call_soon(self._answer, request, outcome)

    def _end(
        self, request: int, outcome: Outcome, tokens: int, error: str | None = None, in_flight_tokens: int = 0
    ) -> None:
        self._trace.add(Ended(self._loop.now_ns, request, outcome, tokens, error, in_flight_tokens))
