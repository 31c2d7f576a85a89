"""The engine: requests in, tokens out, one scheduling step after the other and no clock.

A step is one ``schedule()`` and one ``update_from_output()``, as in vLLM's ``EngineCore.step``. Under async scheduling
the update is that of the step before, as in ``step_with_batch_queue`` at depth 2.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple, get_args

from sim.engine.config import EngineConfig, PauseMode
from sim.engine.leap import Leap, decode_steps, take_decode_steps, take_steps, uneventful_steps
from sim.engine.request import FINISHED, NOT_STEADY, EngineRequest, Request
from sim.engine.scheduler import PAUSED_ALL, PAUSED_NEW, UNPAUSED, Scheduler, SchedulerOutput
from sim.engine.stuck import StuckWatch

MAX_STEPS_OF_A_RUN = 10**12
STEPS_AT_ONCE = 10**6
"""Of a run, so that it need not remember all that happened in it."""


class StepTotals(NamedTuple):
    """What a step did, as far as the time that it takes depends on it."""

    num_scheduled_tokens: int
    num_prefill_tokens: int
    num_decodes: int
    """Requests whose only token in this step is one they generated."""
    num_kv_tokens: int
    """Tokens in the KV of all running requests, this step's included; where they share blocks, each counts."""


def _totals(output: SchedulerOutput) -> StepTotals:
    return StepTotals(output.num_scheduled_tokens, output.num_prefill_tokens, output.num_decodes, output.num_kv_tokens)


def _refused(request: EngineRequest, field: str, allowed: str) -> ValueError:
    value = getattr(request, field)
    return ValueError(f"request {request.request_id!r}: {field}={value!r} is not possible: it must be {allowed}")


class TokenRun(NamedTuple):
    """Consecutive output tokens of one request, from ``output_base + first_position`` on."""

    request_id: str
    first_position: int
    num_tokens: int
    finish_reason: str | None
    """``stop`` or ``length`` if the last of them ended the request."""


class Step:
    """One step, in the words of the recorded schedules. Nothing is spelled out before it is asked for."""

    def __init__(self, output: SchedulerOutput, scheduler: Scheduler, processed: SchedulerOutput | None) -> None:
        """To be made between schedule and update."""
        self._output = output
        self._running = tuple(scheduler.running)
        self._waiting = tuple(scheduler.waiting)
        self._unscheduled = scheduler.singles.keys() - output.scheduled.keys()
        self._emitting: Iterable[Request]
        if processed is output and not output.num_scheduled_tokens:
            self._emitting = ()
        elif processed is output:
            silent = output.scheduled.keys() - output.sampled.keys() | self._unscheduled
            self._emitting = self._running if not silent else [r for r in self._running if r not in silent]
        elif processed is not None:
            self._emitting = [r for r in processed.sampled if r.status is not FINISHED]
        else:
            self._emitting = ()
        self.finished: dict[str, str] = {}
        """``stop`` or ``length``, by request."""
        self.free_blocks = 0
        """After the step."""

    @property
    def running(self) -> list[str]:
        """After schedule, as is waiting."""
        return [request.request_id for request in self._running]

    @property
    def waiting(self) -> list[str]:
        return [request.request_id for request in self._waiting]

    @cached_property
    def scheduled(self) -> dict[str, int]:
        """Tokens, by request."""
        if not self._output.num_scheduled_tokens:
            return {}
        tokens = self._output.scheduled
        return {r.request_id: tokens.get(r, 1) for r in self._running if r not in self._unscheduled}

    @cached_property
    def emitted(self) -> dict[str, int]:
        """Tokens, by request."""
        return {request.request_id: 1 for request in self._emitting}

    @cached_property
    def cached(self) -> dict[str, int]:
        """Tokens found in the prefix cache, by request, of those admitted for the first time."""
        return {request.request_id: num_tokens for request, num_tokens in self._output.cached_tokens.items()}

    @cached_property
    def preempted(self) -> list[str]:
        """In this step or by a cache reset since the one before; sorted, as vLLM keeps a set."""
        return sorted(self._output.preempted)

    @cached_property
    def stale_cached_tokens(self) -> dict[str, int]:
        """Tokens found in the prefix cache, by request, at any admission, that weights older than the present
        computed."""
        return {request.request_id: num_tokens for request, num_tokens in self._output.stale_cached_tokens.items()}

    @property
    def totals(self) -> StepTotals:
        return _totals(self._output)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of an engine. Counts are since it was made."""

    steps: int
    preemptions: int
    scheduled_tokens: int
    finish_step: dict[str, int]
    """The step, counted from 1, in which each request got its last token; aborted ones are not in it."""
    stuck: str | None
    """Why no step would ever do anything again, though there are requests."""


class Engine:
    """A fake vLLM engine.

    Args:
        config: its settings.
        keep_finish_steps: whether `run` may be asked for the steps in which requests finished. Costs memory for each
            request there ever was; a server that lives long does without.
    """

    def __init__(self, config: EngineConfig, *, keep_finish_steps: bool = True) -> None:
        self.config = config
        self.steps_done = 0
        self.scheduled_tokens = 0
        self.stuck: str | None = None
        """Why no step would do anything unless something happens from outside; None while that is not so."""
        self.stale_cached_tokens: dict[str, int] = {}
        """Tokens that each request took from blocks which older weights had computed. Empty in a sound deployment;
        who reads it may clear it."""

        self._scheduler = Scheduler(config)
        self._last: SchedulerOutput | StepTotals = StepTotals(0, 0, 0, 0)
        """The last step."""
        self._in_flight: deque[SchedulerOutput] = deque()
        """Outputs not yet processed: at most one between steps, and none without async scheduling."""
        self._under_way: SchedulerOutput | None = None
        """The step between `begin_step` and `end_step`."""
        self._finish_step: dict[str, int] | None = {} if keep_finish_steps else None
        self._stuck_watch = StuckWatch(self._scheduler)
        self._all_delivered = True
        """Whether every num_delivered_tokens is up to date; `step` delivers without counting."""

    # --- requests -------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            ValueError: vLLM would refuse it, or never end it; the message names the field.
        """
        final_output_tokens, finish_reason = self._foresee_finish(request)
        if request.request_id in self._scheduler.requests:
            raise ValueError(f"request_id={request.request_id!r} is live: ids must be unique among unfinished requests")
        self._scheduler.add_request(Request.from_engine_request(request, final_output_tokens, finish_reason))
        self._touched()

    def abort(self, request_id: str) -> bool:
        """End a request between two steps; its blocks are free at once and what it has in flight is dropped.
        False for an id that is not live, which vLLM ignores silently."""
        request = self._scheduler.requests.get(request_id)
        if request is None:
            return False
        self._scheduler.finish_request(request)
        self._touched()
        return True

    def _foresee_finish(self, request: EngineRequest) -> tuple[int, str]:
        """The number of output tokens with which a request ends by itself, and why: each token is checked for a stop
        first and for a length after that (``v1/core/sched/utils.py``)."""

        num_prompt_tokens = len(request.prompt_token_ids)
        if not 0 < num_prompt_tokens < self.config.max_model_len:
            raise ValueError(
                f"request {request.request_id!r}: a prompt of {num_prompt_tokens} tokens is not possible: it must be 1"
                f" to {self.config.max_model_len - 1}, so that one more fits into max_model_len"
            )
        if request.max_tokens < 1:
            raise _refused(request, "max_tokens", "at least 1")
        if request.stop_at is not None and request.stop_at < 0:
            raise _refused(request, "stop_at", "None or a position from 0")
        if not 0 <= request.min_tokens <= request.max_tokens:
            raise _refused(request, "min_tokens", f"0 to max_tokens, which is {request.max_tokens}")

        room_tokens = self.config.max_model_len - num_prompt_tokens
        length_tokens = request.max_tokens if request.max_tokens < room_tokens else room_tokens
        stop_tokens = None if request.stop_at is None else request.stop_at + 1
        if self._scheduler.version_rules.min_tokens_hold_back_length:
            if request.min_tokens > room_tokens:
                raise _refused(
                    request, "min_tokens", f"at most {room_tokens}, or vLLM {self.config.vllm_version} never ends it"
                )
            length_tokens = max(length_tokens, request.min_tokens)
            if stop_tokens is not None and stop_tokens < request.min_tokens:
                stop_tokens = None
        if stop_tokens is not None and stop_tokens <= length_tokens:
            return stop_tokens, "stop"
        return length_tokens, "length"

    # --- cache, weights, pauses -----------------------------------------------------------------------------------

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached KV. Refused with False while any request holds blocks, unless these are preempted with
        reset_running_requests: then what they have in flight is dropped and they compute everything again."""
        if reset_running_requests:
            for output in self._in_flight:
                output.sampled.clear()
        self._touched()
        return self._scheduler.reset_prefix_cache(reset_running_requests)

    @property
    def weight_version(self) -> int:
        """Version of the weights that compute from now on. It changes no schedule; KV remembers its version."""
        return self._scheduler.kv_cache_manager.prefix_cache.weight_version

    @weight_version.setter
    def weight_version(self, weight_version: int) -> None:
        self._scheduler.set_weight_version(weight_version)

    def stale_requests(self) -> dict[str, int]:
        """Running requests that hold KV of older weights than the present, each with the oldest version it holds."""
        return {
            request.request_id: request.kv_weight_version
            for request in self._scheduler.running
            if request.kv_weight_version < self.weight_version
        }

    def num_computed_tokens(self, request_id: str) -> int:
        """Tokens whose KV a live request holds."""
        request = self._scheduler.requests[request_id]
        return request.num_computed_tokens + self._scheduler.decodes.progress(request)

    def pause(self, mode: PauseMode = "abort") -> list[str]:
        """Admit nothing until `resume`; requests may still be added. What is there is aborted, runs to its end
        ("wait") or is frozen ("keep"). Returns the ids of those aborted. The prefix cache stays: vLLM's
        ``clear_cache`` is a `reset_prefix_cache` of the caller's once `has_work` is false."""
        if mode not in get_args(PauseMode):
            raise ValueError(f"mode={mode!r} is not possible: it must be one of {', '.join(get_args(PauseMode))}")
        aborted = list(self._scheduler.requests) if mode == "abort" else []
        for request_id in aborted:
            self.abort(request_id)
        self._scheduler.pause_state = PAUSED_ALL if mode == "keep" else PAUSED_NEW
        self._touched()
        return aborted

    def resume(self) -> None:
        self._scheduler.pause_state = UNPAUSED
        self._touched()

    @property
    def has_work(self) -> bool:
        """Whether a step could do anything: there is a request that no pause holds, or an output in flight."""
        return self._scheduler.has_unfinished_requests() or any(
            request.status is not FINISHED for output in self._in_flight for request in output.sampled
        )

    @property
    def preemptions(self) -> int:
        """Since the start, those by a cache reset included."""
        return self._scheduler.num_preemptions

    @property
    def step_totals(self) -> StepTotals:
        """Of the last step; while one is under way, of that one."""
        return self._last if isinstance(self._last, StepTotals) else _totals(self._last)

    # --- steps ----------------------------------------------------------------------------------------------------

    def step(self) -> Step:
        """Take one step, whether there is anything to do or not."""
        output = self._scheduler.schedule()
        processed = self._output_to_process(output)
        step = Step(output, self._scheduler, processed)
        finished = self._update(output, processed)
        step.finished = {request.request_id: request.finish_reason for request in finished}
        step.free_blocks = self._scheduler.kv_cache_manager.free_blocks
        self._all_delivered = False
        return step

    def uneventful_steps(self, limit: int) -> int:
        """How many of the next steps, at most limit, do nothing but decode: in each of them every running request gets
        one token, and nobody is admitted, preempted or finished. 0: the next step is to be taken by itself."""
        return uneventful_steps(self._scheduler, limit)

    def leap(self, num_steps: int) -> None:
        """Take that many steps at once, of those that `uneventful_steps` told of."""
        num_uneventful = self.uneventful_steps(num_steps)
        if num_uneventful != num_steps:
            raise ValueError(f"num_steps={num_steps!r} is not possible: it must be at most {num_uneventful}")
        leap = take_steps(self._scheduler, num_steps, stop_after_finish=True)
        assert (leap.num_steps, leap.finished, leap.preempted) == (num_steps, [], []), "something happened in the leap"
        self._add(leap)
        self._all_delivered = False

    def advance(self, until_step: int, *, stop_after_finish: bool = False) -> list[TokenRun]:
        """Take steps until steps_done is until_step; fewer if there is nothing more to do or the engine is stuck.

        Args:
            until_step: the last step to take.
            stop_after_finish: return after a step in which a request finished, so that the caller can react to it.

        Returns:
            What was delivered meanwhile, one run for each request: first those that finished, in that order, then
            the others that got tokens.
        """
        self._settle_deliveries()
        finished, preempted = self._take_steps(until_step, stop_after_finish=stop_after_finish)
        finished_runs = [self._deliver(request, request.finish_reason) for request in finished]
        # Nobody else can have got a token.
        requests = dict.fromkeys(self._scheduler.running)
        for victims in preempted:
            requests.update(dict.fromkeys(sorted(victims, key=attrgetter("request_id"))))
        runs = [self._deliver(request, None) for request in requests if request.status is not FINISHED]
        return finished_runs + [run for run in runs if run.num_tokens]

    def run(self) -> Run:
        """Take steps until there is nothing more to do or the engine is stuck."""
        if self._finish_step is None:
            raise ValueError("keep_finish_steps=False: this engine does not know when requests finished")
        self._all_delivered = False
        for _ in range(MAX_STEPS_OF_A_RUN):
            if self.stuck is not None or not self.has_work:
                break
            self._take_steps(self.steps_done + STEPS_AT_ONCE, stop_after_finish=False)
        return Run(
            steps=self.steps_done,
            preemptions=self.preemptions,
            scheduled_tokens=self.scheduled_tokens,
            finish_step=dict(self._finish_step),
            stuck=self.stuck,
        )

    def _take_steps(self, until_step: int, *, stop_after_finish: bool) -> tuple[list[Request], list[Iterable[Request]]]:
        """Take steps, singly or many at once; returns the requests that finished, in that order, and those that were
        preempted, by step."""
        scheduler = self._scheduler
        finished: list[Request] = []
        preempted: list[Iterable[Request]] = []
        for _ in range(until_step - self.steps_done):
            if self.steps_done == until_step or (stop_after_finish and finished):
                break
            leap = take_steps(scheduler, until_step - self.steps_done, stop_after_finish=stop_after_finish)
            if leap.num_steps:
                self._add(leap)
                finished += [request for _, request in leap.finished]
                preempted += leap.preempted
            elif self.stuck is not None or not self.has_work:
                break
            else:
                output = scheduler.schedule()
                finished += self._update(output, self._output_to_process(output))
                if output.preempted:
                    preempted.append([scheduler.requests[i] for i in output.preempted if i in scheduler.requests])
        return finished, preempted

    def _add(self, leap: Leap) -> None:
        if self._finish_step is not None:
            for number, request in leap.finished:
                self._finish_step[request.request_id] = self.steps_done + number
        self.steps_done += leap.num_steps
        self.scheduled_tokens += leap.num_scheduled_tokens
        for request, num_tokens in leap.stale_cached_tokens:
            self._add_stale(request, num_tokens)
        self._last = StepTotals(
            leap.num_decodes + leap.num_prefill_tokens, leap.num_prefill_tokens, leap.num_decodes, leap.num_kv_tokens
        )
        if leap.anyone_sampled:
            self._stuck_watch.forget()
        assert self._scheduler.blocks_are_conserved(), "free and held blocks are not all there are"

    # --- a step in two halves, for whom steps take time -----------------------------------------------------------

    def begin_step(self) -> SchedulerOutput:
        """Schedule a step and leave it under way. Until `end_step` requests may be added, and nothing else may
        happen: vLLM, too, does all else between steps."""
        assert not self.config.async_scheduling, "with async scheduling steps overlap"
        assert self._under_way is None, "the step before has not ended"
        self._under_way = self._last = output = self._scheduler.schedule()
        return output

    def end_step(self) -> list[Request]:
        """End the step under way; returns the requests that finished with it."""
        output = self._under_way
        assert output is not None, "no step is under way"
        self._under_way = None
        self._all_delivered = False
        return self._update(output, output)

    def num_output_tokens(self, request_id: str) -> int:
        """Of a live request, without what the step under way brings it."""
        request = self._scheduler.requests[request_id]
        return request.num_output_tokens + self._scheduler.decodes.progress(request)

    def num_tokens_under_way(self, request_id: str) -> int:
        """Tokens that the step under way brings a live request: 0 or 1."""
        if self._under_way is None:
            return 0
        request = self._scheduler.requests[request_id]
        return int(request in self._under_way.sampled or request.steady_since != NOT_STEADY)

    def decode_steps(self, limit: int) -> tuple[int, bool]:
        """How many of the next steps, at most limit, schedule nothing but decodes, and whether the last of them
        finishes somebody; none before it does. 0: the next step is to be taken by itself."""
        return decode_steps(self._scheduler, limit)

    def decode_totals(self) -> StepTotals:
        """Of the next step, if it schedules nothing but decodes."""
        decodes = self._scheduler.decodes
        num_decodes = decodes.num_requests
        return StepTotals(num_decodes, 0, num_decodes, decodes.num_kv_tokens + num_decodes)

    def take_decode_steps(self, num_steps: int) -> list[Request]:
        """Take that many steps at once, of those that `decode_steps` told of; returns the requests that finished."""
        leap = take_decode_steps(self._scheduler, num_steps)
        self._add(leap)
        self._all_delivered = False
        return [request for _, request in leap.finished]

    def _output_to_process(self, output: SchedulerOutput) -> SchedulerOutput | None:
        if not self.config.async_scheduling:
            return output
        self._in_flight.append(output)
        return self._in_flight.popleft() if len(self._in_flight) == 2 else None

    def _update(self, output: SchedulerOutput, processed: SchedulerOutput | None) -> list[Request]:
        """End the step that scheduled output and processes processed; returns the requests that finished."""
        # A decode that computes again what it lost to a preemption gets no token, so num_decodes does not tell.
        anyone_steady = bool(output.num_scheduled_tokens) and self._scheduler.decodes.num_requests > 0
        finished = self._scheduler.update_from_output(processed) if processed is not None else []
        self.steps_done += 1
        self.scheduled_tokens += output.num_scheduled_tokens
        self._last = output
        for request, num_tokens in output.stale_cached_tokens.items():
            self._add_stale(request, num_tokens)
        if finished and self._finish_step is not None:
            self._finish_step.update((request.request_id, self.steps_done) for request in finished)
        if anyone_steady or output.sampled or (processed is not None and processed.sampled):
            self._stuck_watch.forget()
        elif self.stuck is None:
            self.stuck = self._stuck_watch.look(output)
        assert self._scheduler.blocks_are_conserved(), "free and held blocks are not all there are"
        return finished

    def _add_stale(self, request: Request, num_tokens: int) -> None:
        stale = self.stale_cached_tokens
        stale[request.request_id] = stale.get(request.request_id, 0) + num_tokens

    # --- delivery -------------------------------------------------------------------------------------------------

    def _settle_deliveries(self) -> None:
        if not self._all_delivered:
            for request in self._scheduler.requests.values():
                self._deliver(request, None)
            self._all_delivered = True

    def _deliver(self, request: Request, finish_reason: str | None) -> TokenRun:
        first_position = request.num_delivered_tokens
        request.num_delivered_tokens = request.num_output_tokens + self._scheduler.decodes.progress(request)
        num_tokens = request.num_delivered_tokens - first_position
        return TokenRun(request.request_id, first_position, num_tokens, finish_reason)

    def _touched(self) -> None:
        """Something happened from outside: what was stuck may be so no longer."""
        self.stuck = None
        self._stuck_watch.forget()
