"""FakeRolloutServer: the async face of an engine, as verl's rollout servers have it.

Behaviour follows verl's `vLLMHttpServer`, `SGLangHttpServer` and `TRTLLMHttpServer`: generate, abort_all_requests,
abort_request, resume_generation, set_global_steps, and the submission gate of 0.9.1. The fake model is a function
of the prompt alone, so that a resume continues exactly: token ids are `session * SESSION_STRIDE + position`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sim.budget import NoRoom, take_grant
from sim.case import Budget, ServerSettings
from sim.clock import NS_PER_S, VirtualLoop
from sim.decode import DecodeEngine
from sim.trace import (
    Admitted,
    Decoded,
    Ended,
    Granted,
    Outcome,
    Parked,
    Paused,
    Resumed,
    Trace,
    VersionChanged,
)

SESSION_STRIDE = 1 << 24
"""Token ids of one session; more than any context holds."""

_ADMISSION_POLL_S = 0.01
"""verl 0.9.1 waits for admissions under way in steps of this length before it pauses the engine."""

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
    return token_id // SESSION_STRIDE - 1


def log_prob(position: int, version: int) -> float:
    """A log probability that encodes the position and the weight version of its token, exactly."""
    return -(position + version / 1024 + 1 / 2048)


@dataclass(slots=True)
class TokenOutput:
    """What generate returns; the fields of verl's TokenOutput."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None
    routed_experts: Any = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class Model(Protocol):
    """Where the fake model stops by itself."""

    def stop_after(self, session: int, prompt_tokens: int) -> int | None:
        """Tokens that the model still generates behind this prompt; None: it never stops."""


class Watcher(Protocol):
    """Who wants to know how many tokens a session has decoded (the faults' triggers)."""

    def next_threshold(self, session: int) -> int | None:
        """The total of decoded tokens at which it wants the session's progress exactly; None: not at all."""

    def decoded(self, session: int, tokens: int) -> None:
        """`tokens` more were decoded for the session."""

    def total(self, session: int) -> int:
        """Tokens decoded for the session so far."""


@dataclass(slots=True)
class _Live:
    request: int
    request_id: str
    session: int
    position: int
    version: int
    future: "asyncio.Future[Outcome]"
    tokens: int = 0
    runs: list[tuple[int, int, int]] = field(default_factory=list)


class FakeRolloutServer:
    """One replica. Its async methods are what a client, trainer or balancer can call."""

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
        self._engine = engine
        self._loop = loop
        self._trace = trace
        self._model = model
        self._watcher = watcher
        self._live: dict[int, _Live] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = -1
        self._gate_closed = False
        self._rejecting = False
        self._admitting = 0
        self._gate_opened = asyncio.Event()
        self._gate_opened.set()

    # What clients call

    async def generate(
        self,
        request: int,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        **_multimodal: Any,
    ) -> TokenOutput:
        """Generates up to its grant. Raises `NoRoom` (ValueError) and TypeError where verl's server does.

        `request` is the number that the transport gave the call; the rest is verl's signature.
        """
        try:
            grant = take_grant(self.settings.dialect, self.budget, len(prompt_ids), sampling_params)
            self._refuse_leftovers(sampling_params)
        except (NoRoom, TypeError) as error:
            self._end(request, "error", 0, str(error))
            raise
        wants_log_probs = sampling_params.pop("logprobs", False) not in (False, None)
        self._trace.add(
            Granted(self._loop.now_ns, request, grant.tokens, grant.rule, grant.wanted_tokens, grant.room_tokens)
        )
        if self.settings.submission_gate and not await self._pass_gate(request):
            self._end(request, "refused", 0)
            return self._output("refused", [], [] if wants_log_probs else None)
        if self.settings.admission_s:
            self._admitting += 1
            try:
                await asyncio.sleep(self.settings.admission_s)
            finally:
                self._admitting -= 1
        live = self._admit(request, request_id, prompt_ids, grant.tokens)
        outcome = await live.future
        token_ids: list[int] = []
        log_probs: list[float] | None = [] if wants_log_probs else None
        origin = first_token(live.session)
        for position, tokens, version in live.runs:
            token_ids.extend(range(origin + position, origin + position + tokens))
            if log_probs is not None:
                log_probs.extend(log_prob(p, version) for p in range(position, position + tokens))
        return self._output(outcome, token_ids, log_probs)

    def _refuse_leftovers(self, sampling_params: dict[str, Any]) -> None:
        """verl passes the params on as keywords; a second spelling of the limit is unknown to the engine."""
        if self.settings.dialect == "trtllm":
            return
        for key in ("max_tokens", "max_new_tokens"):
            if key in sampling_params:
                raise TypeError(f"SamplingParams got an unexpected keyword argument {key!r}")

    async def _pass_gate(self, request: int) -> bool:
        """Waits while the gate is closed; False when it turns the request away."""
        parked = False
        while self._gate_closed:
            if self._rejecting:
                return False
            if not parked:
                parked = True
                self._trace.add(Parked(self._loop.now_ns, request))
            await self._gate_opened.wait()
        return True

    def _admit(self, request: int, request_id: str, prompt_ids: list[int], max_tokens: int) -> _Live:
        self._catch_up()
        session = session_of(prompt_ids[0])
        live = _Live(request, request_id, session, len(prompt_ids), self.version, self._loop.create_future())
        self._live[request] = live
        self._trace.add(Admitted(self._loop.now_ns, request))
        stop_after = self._model.stop_after(session, len(prompt_ids))
        self._engine.add(self._loop.now_ns, request, len(prompt_ids), max_tokens, stop_after)
        self._watch(live)
        self._catch_up()
        return live

    def _output(self, outcome: Outcome, token_ids: list[int], log_probs: list[float] | None) -> TokenOutput:
        reason = STOP_REASONS[self.settings.dialect][outcome]
        return TokenOutput(token_ids, log_probs, reason, extra_fields={"global_steps": self.version})

    # What trainers call

    async def abort_all_requests(
        self, reset_prefix_cache: bool = True, reject_request: bool = False
    ) -> dict[str, Any]:
        """Ends every request with what it has, and takes no new ones until `resume_generation`.

        With the gate, it closes first and admissions under way are waited for; `reject_request` turns late arrivals
        away instead of parking them (SGLang's server ignores it).
        """
        del reset_prefix_cache
        if self.settings.submission_gate:
            self._gate_closed = True
            self._rejecting = reject_request and self.settings.dialect != "sglang"
            self._gate_opened.clear()
        await self._drain_admissions()
        self._catch_up()
        live = list(self._live.values())
        for each in live:
            self._abort(each)
        self._engine.pause(self._loop.now_ns)
        self._catch_up()
        self._trace.add(Paused(self._loop.now_ns, self.replica, len(live)))
        return {"aborted_count": len(live), "request_ids": [each.request_id for each in live]}

    async def _drain_admissions(self) -> None:
        """Only a gate keeps new ones out, so only with a gate do they come to an end."""
        while self.settings.submission_gate and self._admitting:
            await asyncio.sleep(_ADMISSION_POLL_S)

    async def resume_generation(self) -> None:
        """Resumes the engine first, then opens the gate."""
        self._engine.resume(self._loop.now_ns)
        self._catch_up()
        self._gate_closed = False
        self._rejecting = False
        self._gate_opened.set()
        self._trace.add(Resumed(self._loop.now_ns, self.replica))

    async def abort_request(self, request_id: str, reset_prefix_cache: bool = True) -> dict[str, Any]:
        """Ends every live request of this id; says so where there is none."""
        del reset_prefix_cache
        self._catch_up()
        named = [each for each in self._live.values() if each.request_id == request_id]
        for each in named:
            self._abort(each)
        self._catch_up()
        if not named:
            return {"aborted": False, "error": f"Request {request_id} not found"}
        return {"aborted": True, "request_id": request_id}

    async def set_global_steps(self, global_steps: int) -> None:
        """The weights are now of this version."""
        self._catch_up()
        self.version = global_steps
        for each in self._live.values():
            each.version = global_steps
        self._trace.add(VersionChanged(self._loop.now_ns, self.replica, global_steps))

    def live_request_ids(self, session: int) -> list[str]:
        """The ids of a session's requests in the engine."""
        return [each.request_id for each in self._live.values() if each.session == session]

    # The engine's time

    def _watch(self, live: _Live) -> None:
        threshold = self._watcher.next_threshold(live.session)
        if threshold is not None:
            self._engine.watch(live.request, live.tokens + threshold - self._watcher.total(live.session))

    def _catch_up(self) -> None:
        """Takes from the engine what it has decoded by now, and sets the timer for what comes next."""
        for burst in self._engine.advance(self._loop.now_ns):
            live = self._live[burst.request]
            if burst.tokens:
                self._decoded(live, burst.tokens)
            if burst.finish is not None:
                self._finish(live, burst.finish)
        next_ns = self._engine.next_ns()
        if self._timer is not None:
            if next_ns == self._timer_ns:
                return
            self._timer.cancel()
            self._timer = None
        if next_ns is not None:
            self._timer_ns = next_ns
            self._timer = self._loop.call_at(next_ns / NS_PER_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._catch_up()

    def _decoded(self, live: _Live, tokens: int) -> None:
        position = live.position + live.tokens
        self._trace.add(Decoded(self._loop.now_ns, live.request, position, tokens, live.version))
        live.runs.append((position, tokens, live.version))
        live.tokens += tokens
        self._watcher.decoded(live.session, tokens)
        self._watch(live)

    def _abort(self, live: _Live) -> None:
        self._engine.abort(live.request)
        self._finish(live, "abort")

    def _finish(self, live: _Live, outcome: Outcome) -> None:
        del self._live[live.request]
        self._end(live.request, outcome, live.tokens)
        live.future.set_result(outcome)

    def _end(self, request: int, outcome: Outcome, tokens: int, error: str | None = None) -> None:
        self._trace.add(Ended(self._loop.now_ns, request, outcome, tokens, error))

