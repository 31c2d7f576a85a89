"""Many steps at once, where nothing happens but decoding.

Between two events (an admission, a finish, a preemption, the end of a prefill, something from outside) each step gives
every running request one token, and all that changes is known ahead (see `sim.engine.decodes`). So only the next event
has to be found. Where it cannot be told ahead there is no leap, and the next step is taken by itself.
"""

import msgspec

from sim.engine.request import Request
from sim.engine.scheduler import PauseState, Scheduler


class Leap(msgspec.Struct, eq=False):
    """What happened in steps that were taken without a look at each."""

    num_steps: int = 0
    num_scheduled_tokens: int = 0
    num_decodes: int = 0
    """In the last of them."""
    num_kv_tokens: int = 0
    """After the last of them; as in `SchedulerOutput`."""
    finished: list[tuple[int, Request]] = []
    """Each with the number of the step, counted from 1."""
    preempted: list[str] = []


def take_steps(scheduler: Scheduler, max_steps: int, *, stop_after_finish: bool) -> Leap:
    """Take steps, at most max_steps, until one of them might be other than this: all running requests are steady and
    stay so, except for those that finish, or that are preempted as the last in the list; and nobody is admitted."""
    leap, decodes, kv_cache, waiting = Leap(), scheduler.decodes, scheduler.kv_cache_manager, scheduler.waiting
    if scheduler.async_or_unsteady():
        return leap
    num_steps = num_scheduled_tokens = 0
    while num_steps < max_steps and decodes.num_requests:
        if waiting and not stays_out(scheduler):
            break
        ticks_to_finish = decodes.ticks_to_finish()
        max_ticks = min(max_steps - num_steps, ticks_to_finish)
        num_ticks, num_blocks = decodes.ticks_within(kv_cache.free_blocks, max_ticks)
        if num_ticks:
            kv_cache.take(num_blocks)
            decodes.advance(num_ticks, num_blocks)
            num_scheduled_tokens += num_ticks * decodes.num_requests
        if num_ticks < max_ticks:
            # The next step is short of blocks. As there was no finish, whoever waits still stays out.
            if not scheduler.is_fcfs or decodes.num_requests == 1:
                num_steps += num_ticks
                leap.num_decodes, leap.num_kv_tokens = decodes.num_requests, decodes.num_kv_tokens
                break
            leap.preempted += sorted([victim.request_id for victim in scheduler.preempt_for_steady()])
            decodes.advance(1, len(decodes.needing_block()))
            num_scheduled_tokens += decodes.num_requests
            num_ticks += 1
        num_steps += num_ticks
        leap.num_decodes, leap.num_kv_tokens = decodes.num_requests, decodes.num_kv_tokens
        if num_ticks == ticks_to_finish:
            leap.finished += [(num_steps, request) for request in scheduler.finish_steady()]
            if stop_after_finish and leap.finished:
                break
    leap.num_steps, leap.num_scheduled_tokens = num_steps, num_scheduled_tokens
    return leap


def uneventful_steps(scheduler: Scheduler, limit: int) -> int:
    """How many of the next steps, at most limit, do nothing but decode: nobody is admitted, preempted or finished."""
    num_steps, finishes = decode_steps(scheduler, limit)
    return num_steps - finishes


def decode_steps(scheduler: Scheduler, limit: int) -> tuple[int, bool]:
    """The same, but that the last of them may finish somebody; and whether it does."""
    decodes = scheduler.decodes
    if limit <= 0 or not decodes.num_requests or scheduler.async_or_unsteady() or not stays_out(scheduler):
        return 0, False
    ticks_to_finish = decodes.ticks_to_finish()
    num_ticks, _ = decodes.ticks_within(scheduler.kv_cache_manager.free_blocks, min(limit, ticks_to_finish))
    return num_ticks, num_ticks == ticks_to_finish


def stays_out(scheduler: Scheduler) -> bool:
    """Whether nobody is admitted while the running requests only decode."""
    if not scheduler.waiting or scheduler.pause_state is not PauseState.UNPAUSED:
        return True
    kv_cache, head = scheduler.kv_cache_manager, scheduler.waiting.peek_request()
    # The short way: free blocks only fall, and what the head asks for does not depend on anything.
    asks_the_same = kv_cache.reserve_full_isl and not kv_cache.enable_caching
    if asks_the_same and kv_cache.admission_blocks(head, (), 0, keep_watermark=True) > kv_cache.free_blocks:
        return True
    token_budget = scheduler.config.max_num_batched_tokens - scheduler.decodes.num_requests
    if token_budget == 0 or len(scheduler.running) == scheduler.config.max_num_seqs:
        return True
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
    return kv_cache.admission_blocks(head, hits, num_new_tokens, keep_watermark=True) > kv_cache.free_blocks
