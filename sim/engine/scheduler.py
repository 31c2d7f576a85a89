"""One scheduling step, as vLLM's V1 scheduler takes it (``v1/core/sched/scheduler.py``, 0.32).

`Scheduler.schedule` decides how many tokens each request gets, `Scheduler.update_from_output` takes what the model
sampled. vLLM walks over every running request in both. Here the *steady* ones (see `sim.engine.steady`) are dealt
with all at once, which comes to the same as long as all get what they want. Those for whom that is in doubt are walked
over in running order, one by one, and that walk is vLLM's.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import msgspec

from sim.engine.config import EngineConfig
from sim.engine.kv_cache import KVCacheManager
from sim.engine.prefix_cache import NO_HITS, Hit
from sim.engine.request import FINISHED, NOT_STEADY, PREEMPTED, RUNNING, WAITING, Request
from sim.engine.request_queue import create_request_queue
from sim.engine.steady import EVERYBODY, Decodes

_running_order = attrgetter("running_order")


class PauseState(enum.Enum):
    UNPAUSED = "unpaused"
    PAUSED_NEW = "paused new"
    """Nothing is admitted, a preempted request neither; what runs goes on."""
    PAUSED_ALL = "paused all"
    """Nothing is scheduled."""


UNPAUSED, PAUSED_NEW, PAUSED_ALL = PauseState


class SchedulerOutput(msgspec.Struct, eq=False):
    """What one call of `Scheduler.schedule` decided."""

    token_budget: int
    """What is left of it."""
    scheduled: dict[Request, int] = {}
    """Tokens of each request that was scheduled one by one; every steady request has one token on top."""
    sampled: dict[Request, None] = {}
    """Those of scheduled that sample a token, as all they know is computed with this step."""
    num_running: int = 0
    num_decodes: int = 0
    """Requests whose only token in this step is one they generated."""
    num_prefill_tokens: int = 0
    """All other tokens: of prompts, and of what is computed again after a preemption."""
    num_kv_tokens: int = 0
    """Tokens in the KV of all running requests, this step's included; where they share blocks, each counts."""
    cached_tokens: dict[Request, int] = {}
    """Tokens found in the prefix cache, of each request admitted for the first time."""
    stale_cached_tokens: dict[Request, int] = {}
    """Tokens found in the prefix cache, at any admission, that older weights than the present had computed."""
    preempted: set[str] = set()
    """Ids of those preempted in this step or, by a cache reset, since the one before."""
    num_preemptions: int = 0
    """In this step only."""

    @property
    def num_scheduled_tokens(self) -> int:
        return self.num_decodes + self.num_prefill_tokens


class Scheduler:
    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.version_rules = config.version_rules
        self.decodes = Decodes(config.block_size)
        self.kv_cache_manager = KVCacheManager(config, self.decodes)
        self.pause_state = UNPAUSED

        self.requests: dict[str, Request] = {}
        """All that are not finished, in the order in which they were added."""
        self.waiting = create_request_queue(config.scheduling_policy)
        self.running: dict[Request, None] = {}
        """In order of admission. Each is either steady or in singles."""
        self.singles: dict[Request, None] = {}
        """Running requests that are scheduled one by one: prefills, decodes that missed a step and, under async
        scheduling, all."""
        self.num_preemptions = 0
        """Since the start; a cache reset that preempts counts for each."""
        self.is_fcfs = config.scheduling_policy == "fcfs"
        self._num_admissions = 0
        self._preempted_by_reset: set[str] = set()

    # --- requests come and go -------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        assert request.request_id not in self.requests, "the id is live"
        self.requests[request.request_id] = request
        self.waiting.add_request(request)

    def finish_request(self, request: Request) -> None:
        """Take a request out, whatever its state. Its blocks are free at once."""
        if request.status is RUNNING:
            self._leave_running(request)
            self.kv_cache_manager.free(request)
        else:
            self.waiting.remove(request)
        request.status = FINISHED
        del self.requests[request.request_id]

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        """Forget all cached blocks. False if any is held; reset_running_requests sees to it that none is."""
        if reset_running_requests:
            for request in reversed(list(self.running)):
                self._leave_running(request)
                self._put_back(request)
                self._preempted_by_reset.add(request.request_id)
        return self.kv_cache_manager.reset_prefix_cache()

    def set_weight_version(self, weight_version: int) -> None:
        """Compute with other weights from now on."""
        prefix_cache = self.kv_cache_manager.prefix_cache
        if weight_version != prefix_cache.weight_version:
            prefix_cache.settle()
            for request in self.running:
                num_tokens = request.num_computed_tokens + self.decodes.progress(request)
                self.kv_cache_manager.mark_open_block(request, num_tokens)
            prefix_cache.weight_version = weight_version

    def has_unfinished_requests(self) -> bool:
        """Whether a step could do anything, as far as the pause state is concerned."""
        if self.pause_state is PAUSED_ALL:
            return False
        return bool(self.running) or (self.pause_state is UNPAUSED and len(self.waiting) > 0)

    def needs_a_look(self) -> bool:
        """Whether the next step may not be taken without one at each running request that is not steady, or at what
        happened before it."""
        return (
            self.config.async_scheduling
            or bool(self._preempted_by_reset)
            or self.pause_state is PAUSED_ALL
            or self.decodes.num_requests > self.config.max_num_batched_tokens
        )

    def _leave_running(self, request: Request) -> None:
        del self.running[request]
        if request.steady_since == NOT_STEADY:
            self.singles.pop(request, None)
        else:
            self._leave_steady(request)

    def _join_steady(self, requests: list[Request]) -> None:
        if self.singles:
            for request in requests:
                self.singles.pop(request, None)
        self.decodes.join(requests)
        if self.kv_cache_manager.enable_caching:
            for request in requests:
                self.kv_cache_manager.prefix_cache.start_growing(request)

    def _leave_steady(self, request: Request) -> None:
        if self.kv_cache_manager.enable_caching:
            self.kv_cache_manager.prefix_cache.stop_growing(request)
        self.decodes.leave(request)

    def _put_back(self, request: Request) -> None:
        """A preempted request loses all its blocks and waits at the front, to compute everything again."""
        self.kv_cache_manager.free(request)
        request.status = PREEMPTED
        self.num_preemptions += 1
        # What it sampled in the step in flight is still to come, but counts as output, not as a placeholder.
        request.num_output_placeholders = 0
        self.waiting.prepend_request(request)

    # --- one step -------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Running requests first, then waiting ones, but none of these in a step that preempted."""
        output = SchedulerOutput(self.config.max_num_batched_tokens)
        if self._preempted_by_reset:
            if self.version_rules.reports_reset_preemptions:
                output.preempted |= self._preempted_by_reset
            self._preempted_by_reset.clear()

        if self.pause_state is not PAUSED_ALL:
            prefill_cap_tokens = self.prefill_cap_tokens()
            self._schedule_running(output, prefill_cap_tokens)
            if not output.num_preemptions and self.pause_state is UNPAUSED:
                for request, hits, num_new_tokens in self.admit_waiting(output.token_budget, prefill_cap_tokens):
                    self._start(request, hits, num_new_tokens, output)
            self._count(output)

        output.num_running = len(self.running)
        assert output.token_budget >= 0, "scheduled more than the token budget"
        assert output.token_budget + output.num_scheduled_tokens == self.config.max_num_batched_tokens, (
            "the tokens scheduled are not the tokens taken from the budget"
        )
        assert output.num_running <= self.config.max_num_seqs, "more requests run than max_num_seqs"
        assert self.decodes.num_requests + len(self.singles) == output.num_running, "a running request is lost"
        return output

    def update_from_output(self, output: SchedulerOutput) -> list[Request]:
        """Append what the model sampled in a step; returns the requests that this finished, in running order."""
        if self.config.async_scheduling:
            return self._update_async(output)
        if output.num_decodes:
            self.decodes.advance(1, len(self.decodes.needing_block()))
        return self.end_step(output.sampled)

    def end_step(self, sampled: Iterable[Request]) -> list[Request]:
        """End a step, in which the steady requests have sampled, and these; returns those that finished."""
        finished = self.decodes.finish()
        if finished and self.kv_cache_manager.enable_caching:
            for request in finished:
                self.kv_cache_manager.prefix_cache.stop_growing(request)
        if sampled:
            joining: list[Request] = []
            for request in sampled:
                request.num_output_tokens = num_output_tokens = request.num_output_tokens + 1
                if num_output_tokens == request.final_output_tokens:
                    finished.append(request)
                else:
                    joining.append(request)
            self._join_steady(joining)
        if len(finished) > 1:
            finished.sort(key=_running_order)
        for request in finished:
            del self.running[request], self.requests[request.request_id]
            self.singles.pop(request, None)
            self.kv_cache_manager.free(request)
            request.status = FINISHED
        return finished

    def _update_async(self, output: SchedulerOutput) -> list[Request]:
        finished: list[Request] = []
        for request in output.sampled:
            if request.status is FINISHED:
                continue  # aborted, or stopped by the token before, while this one was in flight
            request.num_output_tokens += 1
            if request.status is RUNNING:
                request.num_output_placeholders -= 1
                num_known_tokens = request.num_computed_tokens - request.num_output_placeholders
                self.kv_cache_manager.cache_blocks(request, num_known_tokens)
            if request.num_output_tokens == request.final_output_tokens:
                finished.append(request)
        finished.sort(key=_running_order)
        for request in finished:
            self.finish_request(request)
        return finished

    def prefill_cap_tokens(self) -> int:
        """Tokens that one request may get in this step. A prefill that is alone has nobody to hold up."""
        threshold = self.config.long_prefill_token_threshold
        alone = len(self.running) + len(self.waiting) <= 1
        if threshold == 0 or (alone and not self.version_rules.caps_lone_prefill):
            return self.config.max_model_len
        return threshold

    # --- running requests -----------------------------------------------------------------------------------------

    def _schedule_running(self, output: SchedulerOutput, prefill_cap_tokens: int) -> None:
        decodes, kv_cache = self.decodes, self.kv_cache_manager
        if self._budget_may_run_out(output, prefill_cap_tokens):
            # Who gets nothing depends on who comes first.
            for request in list(decodes):
                self._make_single(request)

        output.token_budget -= decodes.num_requests
        num_needing = len(decodes.needing_block())
        if not self.singles and num_needing <= kv_cache.free_blocks:
            kv_cache.take(num_needing)
        elif not self.singles and self.is_fcfs:
            victims, _ = self.preempt_for_steady()
            output.preempted.update([request.request_id for request in victims])
            output.num_preemptions = len(victims)
            output.token_budget += len(victims)
        else:
            for request in sorted({*self.singles, *decodes.needing_block()}, key=_running_order):
                if request.status is not RUNNING:
                    continue  # preempted for another
                decodes.served_to = request.running_order - 1
                if request.steady_since != NOT_STEADY:
                    served = self._schedule_steady(request, output)
                elif output.token_budget == 0:
                    break
                else:
                    served = self._schedule_single(request, output, prefill_cap_tokens)
                if not served:
                    self._hold_back_after(request, output)
                    break
        decodes.served_to = EVERYBODY

    def preempt_for_steady(self) -> tuple[list[Request], int]:
        """What the walk comes to if all are steady and the last is the victim: blocks go to those in front, and whoever
        is preempted has had none. Returns the victims and the number of blocks that the others got."""
        kv_cache, decodes, running = self.kv_cache_manager, self.decodes, self.running
        needing = decodes.needing_block()
        victims: list[Request] = []
        num_wanted_blocks = len(needing)
        while num_wanted_blocks > kv_cache.free_blocks:
            if kv_cache.enable_caching:
                # The victim's blocks come into the queue after the free ones have been taken.
                num_wanted_blocks -= kv_cache.free_blocks
                kv_cache.take(kv_cache.free_blocks)
            victim, _ = running.popitem()
            num_wanted_blocks -= victim in needing
            if kv_cache.enable_caching:
                kv_cache.prefix_cache.stop_growing(victim)
            decodes.leave(victim)
            self._put_back(victim)
            victims.append(victim)
        kv_cache.take(num_wanted_blocks)
        return victims, len(needing)

    def _budget_may_run_out(self, output: SchedulerOutput, prefill_cap_tokens: int) -> bool:
        """Whether one request may get fewer tokens than it wants while others come after it. vLLM refuses to start
        with fewer tokens in the budget than max_num_seqs, and otherwise only the last request is ever cut short."""
        if not self.singles:
            return self.decodes.num_requests > output.token_budget
        last = next(reversed(self.running))
        wanted_tokens = self.decodes.num_requests + sum(
            min(self._missing_tokens(request), prefill_cap_tokens) for request in self.singles if request is not last
        )
        return wanted_tokens > output.token_budget

    def _schedule_steady(self, request: Request, output: SchedulerOutput) -> bool:
        if not self._make_room(1, request, output):
            return False
        self.kv_cache_manager.take(1)
        return True

    def _schedule_single(self, request: Request, output: SchedulerOutput, prefill_cap_tokens: int) -> bool:
        if self.config.async_scheduling and self._last_token_is_in_flight(request):
            return True
        num_new_tokens = min(
            self._missing_tokens(request),
            prefill_cap_tokens,
            output.token_budget,
            # The sampled token needs a place as well; binds only with one in flight.
            self.config.max_model_len - 1 - request.num_computed_tokens,
        )
        if num_new_tokens == 0:
            return True
        if not self._make_room(self.kv_cache_manager.missing_blocks(request, num_new_tokens), request, output):
            return False
        self.kv_cache_manager.allocate(request, num_new_tokens)
        self._grant(request, num_new_tokens, output)
        return True

    def _make_room(self, num_blocks: int, request: Request, output: SchedulerOutput) -> bool:
        """Preempt until num_blocks are free; False if request itself had to go.

        FCFS takes the last running request; priority the lowest one, of equals the latest to arrive, and of those the
        first in the list.
        """
        # Ends, as each turn takes one from running, and request is one of these.
        while self.kv_cache_manager.free_blocks < num_blocks:
            if self.is_fcfs:
                victim = next(reversed(self.running))
            else:
                victim = max(self.running, key=lambda r: (r.priority, r.arrival_time))
            self._preempt(victim, request, output)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: Request, beneficiary: Request, output: SchedulerOutput) -> None:
        if victim.steady_since == NOT_STEADY:
            output.token_budget += output.scheduled.pop(victim, 0)
            output.sampled.pop(victim, None)
            self._leave_running(victim)
        else:
            output.token_budget += 1
            self._leave_running(victim)
            # Those before the beneficiary have had this step's token, and the block for it.
            victim.num_computed_tokens += victim.running_order < beneficiary.running_order
        self._put_back(victim)
        output.preempted.add(victim.request_id)
        output.num_preemptions += 1

    def _hold_back_after(self, request: Request, output: SchedulerOutput) -> None:
        """A request that preempts itself ends the walk: whoever comes after it gets nothing in this step."""
        for later in reversed(self.running):
            if later.running_order < request.running_order:
                break
            if later.steady_since != NOT_STEADY:
                self._make_single(later)
                output.token_budget += 1

    def _make_single(self, request: Request) -> None:
        self._leave_steady(request)
        self.singles[request] = None

    def _missing_tokens(self, request: Request) -> int:
        return request.num_tokens + request.num_output_placeholders - request.num_computed_tokens

    def _last_token_is_in_flight(self, request: Request) -> bool:
        """Async scheduling sees a max_tokens end coming, and then leaves the request alone. A stop it cannot see."""
        return (
            request.num_output_placeholders > 0
            and request.num_output_tokens + request.num_output_placeholders >= request.max_tokens
        )

    def _grant(self, request: Request, num_new_tokens: int, output: SchedulerOutput) -> None:
        output.scheduled[request] = num_new_tokens
        output.token_budget -= num_new_tokens
        request.num_computed_tokens += num_new_tokens
        if self._missing_tokens(request) == 0:
            output.sampled[request] = None
            if self.config.async_scheduling:
                request.num_output_placeholders += 1

    # --- waiting requests -----------------------------------------------------------------------------------------

    def admit_waiting(self, token_budget: int, prefill_cap_tokens: int) -> Iterator[tuple[Request, Sequence[Hit], int]]:
        """Admit from the front of the queue; the first that cannot be admitted holds back all behind it. Yields, of
        each admitted, the cached blocks that it starts with and the tokens that it computes in this step."""
        kv_cache, waiting, running, config = self.kv_cache_manager, self.waiting, self.running, self.config
        num_slots, num_admissions = config.max_num_seqs - len(running), self._num_admissions
        while num_slots and token_budget and waiting:
            request = waiting[0]
            # Without a cache a request that fits is its own first chunk.
            hits, num_new_tokens = NO_HITS, request.num_prompt_tokens + request.num_output_tokens
            if kv_cache.enable_caching or num_new_tokens > token_budget or num_new_tokens > prefill_cap_tokens:
                hits, num_new_tokens = self.first_chunk(request, token_budget, prefill_cap_tokens)
                if num_new_tokens > token_budget:
                    return
            if not kv_cache.admit(request, hits, num_new_tokens, bool(running)):
                return
            waiting.pop_request()
            running[request] = None
            num_slots -= 1
            token_budget -= num_new_tokens
            self._num_admissions = request.running_order = num_admissions = num_admissions + 1
            yield request, hits, num_new_tokens

    def _start(self, request: Request, hits: Sequence[Hit], num_new_tokens: int, output: SchedulerOutput) -> None:
        kv_cache = self.kv_cache_manager
        self.singles[request] = None
        request.num_computed_tokens = kv_cache.num_hit_tokens(hits)
        if request.status is WAITING:
            output.cached_tokens[request] = request.num_computed_tokens
        if request.kv_weight_version < kv_cache.prefix_cache.weight_version:
            output.stale_cached_tokens[request] = kv_cache.num_stale_tokens(hits)
        request.status = RUNNING
        self._grant(request, num_new_tokens, output)

    def first_chunk(self, request: Request, token_budget: int, prefill_cap_tokens: int) -> tuple[Sequence[Hit], int]:
        """The cached blocks that a waiting request would start with and the tokens that it would compute first. With
        chunked prefill off these may be more than the budget, and then it has to wait."""
        num_new_tokens = request.num_prompt_tokens + request.num_output_tokens
        hits = NO_HITS
        if self.kv_cache_manager.enable_caching:
            hits = self.kv_cache_manager.get_computed_blocks(request)
            num_new_tokens -= self.kv_cache_manager.num_hit_tokens(hits)
        if num_new_tokens > prefill_cap_tokens:
            num_new_tokens = prefill_cap_tokens
        if num_new_tokens > token_budget and self.config.enable_chunked_prefill:
            num_new_tokens = token_budget
        return hits, num_new_tokens

    def _count(self, output: SchedulerOutput) -> None:
        decodes = self.decodes
        output.num_decodes = decodes.num_requests
        output.num_kv_tokens = decodes.num_kv_tokens + decodes.num_requests
        for request in self.singles:
            output.num_kv_tokens += request.num_computed_tokens
            num_tokens = output.scheduled.get(request, 0)
            if num_tokens == 1 and request.num_computed_tokens > request.num_prompt_tokens:
                output.num_decodes += 1
            else:
                output.num_prefill_tokens += num_tokens

    # --- what must always hold ------------------------------------------------------------------------------------

    def blocks_are_conserved(self) -> bool:
        """The blocks that are free and those that running requests hold are all there are."""
        kv_cache = self.kv_cache_manager
        held_blocks = self.decodes.num_blocks - kv_cache.prefix_cache.num_shared_references
        for request in self.singles:
            held_blocks += kv_cache.num_blocks(request.num_computed_tokens)
        return held_blocks + kv_cache.free_blocks == kv_cache.usable_blocks
