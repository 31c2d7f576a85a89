"""Many steps at once, where little happens but decoding.

Between two events (an admission, a finish, a preemption, something from outside) each step gives every running request
one token, and all that changes is known ahead (see `sim.engine.decodes`). So only the next event has to be found, and
where it is one of the common ones it is let happen here as well, without a word about who got what. What this comes to
is what `Scheduler.schedule` and `Scheduler.update_from_output` come to, and the tests compare the two. Whatever is less
common is left to these: then there is no leap, and the next step is taken by itself.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from sim.engine.prefix_cache import Hit
from sim.engine.request import Request, RequestStatus
from sim.engine.scheduler import PauseState, Scheduler


class Leap(msgspec.Struct, eq=False):
    """What happened in steps that were taken without a look at each."""

    num_steps: int = 0
    num_scheduled_tokens: int = 0
    finished: list[tuple[int, Request]] = []
    """Each with the number of the step, counted from 1."""
    preempted: list[str] = []
    stale_cached_tokens: list[tuple[Request, int]] = []
    """As in `SchedulerOutput`, as are the following, which are those of the last step."""
    num_decodes: int = 0
    num_prefill_tokens: int = 0
    num_kv_tokens: int = 0


def take_steps(scheduler: Scheduler, max_steps: int, *, stop_after_finish: bool) -> Leap:
    """Take steps, at most max_steps, up to the first that is to be taken by itself."""
    leap = Leap()
    if scheduler.needs_a_look():
        return leap
    decodes, kv_cache, waiting, config = (
        scheduler.decodes,
        scheduler.kv_cache_manager,
        scheduler.waiting,
        scheduler.config,
    )
    may_admit = scheduler.pause_state is PauseState.UNPAUSED
    # What the head of the queue asks for depends on nothing but its length.
    one_price = kv_cache.reserve_full_isl and not kv_cache.enable_caching and config.enable_chunked_prefill
    while leap.num_steps < max_steps:
        if scheduler.singles:
            goes_on = _prefill(scheduler, leap)
        elif not waiting or not may_admit:
            goes_on = _decode(scheduler, leap, max_steps)
        elif one_price and kv_cache.admission_blocks(waiting.peek_request(), (), 0, True) > kv_cache.free_blocks:
            goes_on = _decode(scheduler, leap, max_steps)
        elif stays_out(scheduler):
            goes_on = _decode(scheduler, leap, max_steps)
        else:
            goes_on = _prefill(scheduler, leap)
        if not goes_on or (stop_after_finish and leap.finished):
            break
    return leap


def _decode(scheduler: Scheduler, leap: Leap, max_steps: int) -> bool:
    """Take steps in which all running requests are steady and nobody is admitted: up to one that finishes or preempts
    somebody. False if there is none."""
    decodes, kv_cache = scheduler.decodes, scheduler.kv_cache_manager
    if not decodes.num_requests:
        return False
    ticks_to_finish, max_ticks = decodes.ticks_to_finish(), max_steps - leap.num_steps
    if max_ticks > ticks_to_finish:
        max_ticks = ticks_to_finish
    num_ticks, num_blocks = decodes.ticks_within(kv_cache.free_blocks, max_ticks)
    if num_ticks:
        kv_cache.take(num_blocks)
        decodes.advance(num_ticks, num_blocks)
        leap.num_scheduled_tokens += num_ticks * decodes.num_requests
    if num_ticks < max_ticks and scheduler.is_fcfs and decodes.num_requests > 1:
        # The next step is short of blocks, and one that preempts does not admit.
        victims = scheduler.preempt_for_steady()
        assert scheduler.running, "the last but one to be preempted leaves a block to the last"
        leap.preempted += sorted([victim.request_id for victim in victims])
        decodes.advance(1, len(decodes.needing_block()))
        leap.num_scheduled_tokens += decodes.num_requests
        num_ticks += 1
    if not num_ticks:
        return False
    leap.num_steps += num_ticks
    leap.num_decodes, leap.num_prefill_tokens, leap.num_kv_tokens = decodes.num_requests, 0, decodes.num_kv_tokens
    if num_ticks == ticks_to_finish:
        leap.finished += [(leap.num_steps, request) for request in scheduler.end_step(())]
    return True


def _prefill(scheduler: Scheduler, leap: Leap) -> bool:
    """Take a step that admits whom it can, while all running requests are steady but for the last, which may be in the
    middle of its prefill. False, and nothing is done, if the step is not like that."""
    decodes, kv_cache, singles = scheduler.decodes, scheduler.kv_cache_manager, scheduler.singles
    if scheduler.config.long_prefill_token_threshold or len(singles) > 1:
        return False
    token_budget = scheduler.config.max_num_batched_tokens - decodes.num_requests
    num_needing = len(decodes.needing_block())
    unfinished: list[tuple[Request, Sequence[Hit], int]] = []
    if singles:
        last = next(reversed(scheduler.running))
        num_chunk_tokens = min(last.num_tokens - last.num_computed_tokens, token_budget)
        if last not in singles or num_chunk_tokens == 0:
            return False
        if num_needing + kv_cache.missing_blocks(last, num_chunk_tokens) > kv_cache.free_blocks:
            return False
        unfinished.append((last, (), num_chunk_tokens))
    elif num_needing > kv_cache.free_blocks:
        return False

    kv_cache.take(num_needing)
    decodes.advance(1, num_needing)
    num_decodes, num_prefill_tokens, num_kv_tokens = decodes.num_requests, 0, decodes.num_kv_tokens
    for request, _, num_new_tokens in unfinished:
        kv_cache.allocate(request, num_new_tokens)
        token_budget -= num_new_tokens
    admitted: Iterable[tuple[Request, Sequence[Hit], int]] = ()
    if scheduler.pause_state is PauseState.UNPAUSED:
        admitted = scheduler.admit_waiting(token_budget, scheduler.config.max_model_len)
    sampled: list[Request] = []
    for request, hits, num_new_tokens in chain(unfinished, admitted):
        if hits:
            request.num_computed_tokens = kv_cache.num_hit_tokens(hits)
            if request.kv_weight_version < kv_cache.prefix_cache.weight_version:
                leap.stale_cached_tokens.append((request, kv_cache.num_stale_tokens(hits)))
        request.status = RequestStatus.RUNNING
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        num_computed_tokens = request.num_computed_tokens = request.num_computed_tokens + num_new_tokens
        num_kv_tokens += num_computed_tokens
        if num_new_tokens == 1 and num_computed_tokens > request.num_prompt_tokens:
            num_decodes += 1
        else:
            num_prefill_tokens += num_new_tokens
        if num_computed_tokens == num_tokens:
            sampled.append(request)
        else:
            singles[request] = None
    if not num_kv_tokens:
        return False

    leap.num_steps += 1
    leap.num_scheduled_tokens += num_decodes + num_prefill_tokens
    leap.num_decodes, leap.num_prefill_tokens, leap.num_kv_tokens = num_decodes, num_prefill_tokens, num_kv_tokens
    leap.finished += [(leap.num_steps, request) for request in scheduler.end_step(sampled)]
    return True


def uneventful_steps(scheduler: Scheduler, limit: int) -> int:
    """How many of the next steps, at most limit, do nothing but decode: nobody is admitted, preempted or finished."""
    decodes = scheduler.decodes
    if limit <= 0 or scheduler.singles or not decodes.num_requests or scheduler.needs_a_look():
        return 0
    if not stays_out(scheduler):
        return 0
    max_ticks = min(limit, decodes.ticks_to_finish() - 1)
    return decodes.ticks_within(scheduler.kv_cache_manager.free_blocks, max_ticks)[0]


def stays_out(scheduler: Scheduler) -> bool:
    """Whether nobody is admitted while the running requests only decode."""
    if not scheduler.waiting or scheduler.pause_state is not PauseState.UNPAUSED:
        return True
    token_budget = scheduler.config.max_num_batched_tokens - scheduler.decodes.num_requests
    if token_budget == 0 or len(scheduler.running) == scheduler.config.max_num_seqs:
        return True
    kv_cache, head = scheduler.kv_cache_manager, scheduler.waiting.peek_request()
    hits, num_new_tokens = scheduler.first_chunk(head, token_budget, scheduler.prefill_cap_tokens())
    if kv_cache.may_hit_more(head, hits):
        return False
    if num_new_tokens > token_budget:
        return True
    # Free blocks only fall, and what the head asks for falls no faster: a hit that is evicted has to be computed,
    # unless a copy that somebody holds takes its place. But if just its first chunk has to fit, one lost hit may change
    # a lot.
    if not kv_cache.reserve_full_isl and not all(hit.run.holders for hit in hits):
        return False
    return kv_cache.admission_blocks(head, hits, num_new_tokens, True) > kv_cache.free_blocks
