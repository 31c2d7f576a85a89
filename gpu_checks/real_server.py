"""RealRolloutServer: vLLM's AsyncLLM behind the methods of `sim.servers.port.RolloutServer`.

Clients, balancers, agent loops, faults and invariants run on it unchanged, in real time. What the fake derives from its
own rules comes from vLLM here: how many tokens a request gets, how it ends, what an abort leaves, what a pause does.

verl's arithmetic and its submission gate stand here a second time, on purpose: a check that shared them with the fake
would agree with it whatever it said. `test_verl_server.py` holds both against verl's own class.
"""

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from gpu_checks.extra_args import SLOW_AT
from gpu_checks.points import AnswerFigures, Recorder, RequestKey, key_of, note_answer
from sim.case import Budget, Case
from sim.dialects import Outcome
from sim.events import Admitted, Decoded, Ended, Granted, Parked, Paused, Resumed, VersionChanged
from sim.faults import AfterSent, AfterTokens
from sim.servers.port import Answer, ServerParts
from sim.tokens import first_token, session_of
from sim.trace import Trace

ADMISSION_POLL_S = 0.01
"""How often a closed gate looks whether what had passed it is in the engine by now."""

ENDING_TIMEOUT_S = 60.0
"""How long an acknowledged abort may take to end its requests, before that is an error."""

SLOW_STEPS = 3
"""Steps slowed down from a trigger on: enough for the abort to come."""

STOP_REASONS: dict[Any, str | None] = {"stop": "completed", "length": "completed", "abort": "aborted"}
"""verl's name for vLLM's finish_reason."""

NO_ENGINE: Any = None
"""In the place of a simulated engine."""


class Vocabulary:
    """The model's token ids for the simulation's, which say of each token where it stands.

    What the model has generated is remembered, so that a resume sends the very tokens that it wrote.
    """

    def __init__(self, size: int) -> None:
        if size < 8:
            raise ValueError(f"a vocabulary of {size} tokens is too small")
        self.stop_token = size - 1
        self._spread = size - 4
        self._written: dict[int, int] = {}

    def real(self, token_ids: Sequence[int]) -> list[int]:
        # The lowest ids are special in many models.
        return [self._written.get(token, 3 + token % self._spread) for token in token_ids]

    def learn(self, first: int, real_ids: Any) -> None:
        self._written.update(enumerate(real_ids, first))


def settle_grant(budget: Budget, prompt_tokens: int, params: dict[str, Any]) -> Granted:
    """max_tokens as verl's vLLM server settles on it (times and request number are left open)."""
    room = budget.context_tokens - prompt_tokens
    if room < 1:
        raise ValueError(f"a prompt of {prompt_tokens} tokens fills the context of {budget.context_tokens}")
    if "max_tokens" in params:
        rule, wanted = "max_tokens", params.pop("max_tokens")
    elif "max_new_tokens" in params:
        rule, wanted = "max_new_tokens", params.pop("max_new_tokens")
    else:
        both = budget.prompt_length + budget.response_length
        rule, wanted = "default", min(budget.response_length, both - prompt_tokens)
    return Granted(0, 0, max(1, min(wanted, room)), rule, wanted, room)


def delta_params(**arguments: Any) -> Any:
    """vLLM's SamplingParams for a request that delivers its tokens as they come."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(detokenize=False, output_kind=RequestOutputKind.DELTA, **arguments)


@dataclass(slots=True)
class _Live:
    request: int
    request_id: str
    key: RequestKey
    session: int
    position: int
    done: "asyncio.Future[None]"
    tokens: int = 0
    log_probs: list[float] = field(default_factory=list)


class RealRolloutServer:
    """One replica on one engine. Its async methods are what a client, trainer or balancer can call."""

    def __init__(
        self,
        parts: ServerParts,
        engine: Any,
        trace: Trace,
        case: Case,
        recorder: Recorder,
        vocabulary: Vocabulary,
        answers: dict[RequestKey, AnswerFigures],
    ) -> None:
        self.replica = parts.replica
        self.version = 0
        self.stuck: str | None = None
        self._has_gate = parts.settings.has_gate
        self._budget = parts.budget
        self._answers = answers
        self._engine = engine
        self._loop: Any = parts.clock
        self._trace = trace
        self._model = parts.model
        self._watcher = parts.watcher
        self._make_output = parts.make_output
        self._recorder = recorder
        self._vocabulary = vocabulary
        whens = [fault.at for fault in case.faults]
        self._minds_sending = any(isinstance(at, AfterSent) for at in whens)
        self._awaited_tokens = [(at.session, at.tokens) for at in whens if isinstance(at, AfterTokens)]
        self._live: dict[int, _Live] = {}
        self._gate_closed = False
        self._rejecting = False
        self._gate_opened = asyncio.Event()
        self._gate_opened.set()
        self._admitting = 0
        self._pausing = asyncio.Lock()
        self._cut_pending = False

    def _note(self, kind: str, *where: Hashable) -> None:
        self._recorder.note(kind, *where)

    # What clients call

    def generate(
        self,
        request: int,
        prompt_ids: Sequence[int],
        sampling_params: dict[str, Any],
        request_id: str,
    ) -> "asyncio.Future[Answer]":
        """Generates up to its grant. What vLLM raises goes to the caller."""
        key = key_of(self._trace, request)
        call = self._generate(key, request, prompt_ids, sampling_params, request_id)
        answer: asyncio.Task[Answer] = self._loop.create_task(call)
        answer.add_done_callback(partial(note_answer, self._answers, key))
        return answer

    async def _generate(
        self, key: RequestKey, request: int, prompt_ids: Sequence[int], sampling_params: dict[str, Any], request_id: str
    ) -> Answer:
        if not self._has_gate:
            # An arrival in the middle of a pause would be before or after it by chance: it waits, and is after it.
            async with self._pausing:
                self._note("arrived", *key)
        else:
            self._note("arrived", *key)
        session = session_of(prompt_ids[0])
        try:
            grant = settle_grant(self._budget, len(prompt_ids), sampling_params)
            wants_log_probs = sampling_params.pop("logprobs", False) not in (False, None)
            params = self._vllm_params(session, len(prompt_ids), grant.tokens, wants_log_probs, sampling_params)
        except Exception as error:
            self._end(request, "error", 0, str(error))
            raise
        self._trace.add(
            Granted(self._loop.now_ns, request, grant.tokens, grant.rule, grant.wanted_tokens, grant.room_tokens)
        )
        if self._has_gate and not await self._pass_gate(request):
            self._end(request, "refused", 0)
            return self._output("aborted", [], [] if wants_log_probs else None)
        live = _Live(request, request_id, key, session, len(prompt_ids), self._loop.create_future())
        self._admitting += 1
        try:
            outputs = await self._engine.add_request(
                request_id, {"prompt_token_ids": self._vocabulary.real(prompt_ids)}, params
            )
        except Exception as error:
            self._admitting -= 1
            self._end(request, "error", 0, str(error))
            raise
        self._live[request] = live
        self._trace.add(Admitted(self._loop.now_ns, request))
        finish_reason = await self._follow(live, outputs)
        origin = first_token(session) + live.position
        return self._output(
            STOP_REASONS.get(finish_reason, finish_reason),
            list(range(origin, origin + live.tokens)),
            live.log_probs if wants_log_probs else None,
        )

    def _vllm_params(
        self, session: int, prompt_tokens: int, max_tokens: int, wants_log_probs: bool, rest: dict[str, Any]
    ) -> Any:
        """vLLM's SamplingParams; refuses what it does not know, such as a second spelling of the limit."""
        stop_after = self._model.stop_after(session, prompt_tokens)
        stopping: dict[str, Any] = {}
        if stop_after is not None and stop_after <= max_tokens:
            # Random weights stop nowhere. One token is wanted above all and barred until it is its turn.
            token = self._vocabulary.stop_token
            stopping = {"min_tokens": stop_after - 1, "stop_token_ids": [token], "logit_bias": {token: 100.0}}
        return delta_params(
            max_tokens=max_tokens,
            logprobs=0 if wants_log_probs else None,
            ignore_eos=True,
            extra_args={SLOW_AT: self._slow_at(session)},
            **stopping,
            **rest,
        )

    def _slow_at(self, session: int) -> list[int]:
        """The output tokens of a new request at which a trigger may be waiting for it."""
        done = self._watcher.total(session)
        at: set[int] = set(range(SLOW_STEPS)) if self._minds_sending else set()
        for awaited_session, tokens in self._awaited_tokens:
            if awaited_session == session and tokens > done:
                at.update(range(tokens - done - 1, tokens - done + SLOW_STEPS))
        return sorted(at)

    async def _pass_gate(self, request: int) -> bool:
        parked = False
        while self._gate_closed:
            if self._rejecting:
                return False
            if not parked:
                parked = True
                self._trace.add(Parked(self._loop.now_ns, request))
            await self._gate_opened.wait()
        return True

    async def _follow(self, live: _Live, outputs: Any) -> str:
        """Takes what the engine delivers until the request is over; returns vLLM's finish_reason."""
        admitted = False
        try:
            finished = False
            while not finished:
                output = outputs.get_nowait() or await outputs.get()
                finished = output.finished
                if not admitted:
                    # verl takes a request to be in the engine once there is anything of it.
                    admitted = True
                    self._admitting -= 1
                (completion,) = output.outputs
                if completion.token_ids:
                    self._decoded(live, list(completion.token_ids), completion.logprobs)
        except Exception as error:
            self._admitting -= not admitted
            self._leave(live, "error", str(error))
            raise
        reason: str = completion.finish_reason
        if reason == "abort":
            self._cut()
            self._recorder.held(live.key, live.tokens)
        else:
            self._note("ended", *live.key)
        self._leave(live, reason)
        return reason

    def _decoded(self, live: _Live, token_ids: list[int], log_probs: Any) -> None:
        position = live.position + live.tokens
        self._vocabulary.learn(first_token(live.session) + position, token_ids)
        self._trace.add(Decoded(self._loop.now_ns, live.request, position, len(token_ids), self.version))
        live.tokens += len(token_ids)
        if log_probs is not None:
            live.log_probs.extend(step[token].logprob for step, token in zip(log_probs, token_ids, strict=True))
        self._watcher.decoded(live.session, len(token_ids))

    def _leave(self, live: _Live, outcome: Any, error: str | None = None) -> None:
        del self._live[live.request]
        self._end(live.request, outcome, live.tokens, error)
        live.done.set_result(None)

    def _end(self, request: int, outcome: Outcome, tokens: int, error: str | None = None) -> None:
        self._trace.add(Ended(self._loop.now_ns, request, outcome, tokens, error))

    def _output(self, stop_reason: str | None, token_ids: list[int], log_probs: list[float] | None) -> Answer:
        return Answer(len(token_ids), self._make_output(token_ids, log_probs, stop_reason, self.version))

    # What trainers call

    async def abort_all(self, *, reset_prefix_cache: bool = True, reject: bool = False) -> list[str]:
        """Closes the gate, ends every request with what it has, and pauses the engine until `resume`."""
        if self._has_gate:
            self._gate_closed = True
            self._rejecting = reject
            self._gate_opened.clear()
            self._note("closed", self.replica)
        async with self._pausing:
            while self._has_gate and self._admitting:
                await asyncio.sleep(ADMISSION_POLL_S)
            live = list(self._live.values())
            self._cut_pending = True
            await self._engine.pause_generation(mode="abort", clear_cache=reset_prefix_cache)
            await self._ended(live)
            self._cut()
        self._trace.add(Paused(self._loop.now_ns, self.replica, len(live)))
        return [each.request_id for each in live]

    async def pause(self, mode: Literal["wait", "keep"], *, clear_cache: bool = True) -> None:
        """Refused: verl's servers abort."""
        raise NotImplementedError(f"pause mode {mode!r} is not replayed on real engines")

    def _cut(self) -> None:
        """The cut is where its first request ends, which is before the engine says that it has paused."""
        if self._cut_pending:
            self._cut_pending = False
            self._note("cut", self.replica)

    async def _ended(self, live: list[_Live]) -> None:
        """Waits until an abort has come through to its requests."""
        if live:
            _, pending = await asyncio.wait([each.done for each in live], timeout=ENDING_TIMEOUT_S)
            if pending:
                raise TimeoutError(f"{len(pending)} requests did not end within {ENDING_TIMEOUT_S:g} s of their abort")

    async def resume(self) -> None:
        """Resumes the engine first, then opens the gate."""
        if not self._has_gate:
            self._note("resumed", self.replica)
        await self._engine.resume_generation()
        if self._has_gate:
            self._note("resumed", self.replica)
        self._gate_closed = False
        self._rejecting = False
        self._gate_opened.set()
        self._trace.add(Resumed(self._loop.now_ns, self.replica))

    async def abort_request(self, request_id: str, *, reset_prefix_cache: bool = True) -> bool:
        """Ends every live request of this id; says so where there is none."""
        self._note("named", self.replica)
        named = [each for each in self._live.values() if each.request_id == request_id]
        if not named:
            return False
        await self._engine.abort(request_id)
        await self._ended(named)
        if reset_prefix_cache:
            await self._engine.reset_prefix_cache()
        return True

    @property
    def is_paused(self) -> bool:
        raise NotImplementedError("a real engine is not asked whether it is paused")

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        raise NotImplementedError("a real engine's cache is reset with an abort")

    async def set_weight_version(self, version: int) -> None:
        """The weights are now of this version."""
        self._note("version", self.replica)
        self.version = version
        self._trace.add(VersionChanged(self._loop.now_ns, self.replica, version))

    def fail_request(self, session: int, error: Exception) -> bool:
        raise NotImplementedError("a real engine does not fail when it is told to")

    def die(self, error: Exception) -> None:
        raise NotImplementedError("a real engine does not die when it is told to")

    def book(self) -> None:
        """Nothing to do: tokens are on the trace as they come."""

    def live_request_ids(self, session: int) -> list[str]:
        """The ids of a session's requests in the engine."""
        return [each.request_id for each in self._live.values() if each.session == session]
