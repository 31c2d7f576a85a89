"""Many steps at once, where little happens but decoding.

Between two events (an admission, a finish, a preemption, something from outside) each step gives every running request
one token, and all that changes is known ahead (see `sim.engine.steady`). So only the next event has to be found.

The common events happen here as well, without a word about who got what: `_decode` has finishes and, under FCFS, the
preemption of the last in the list; `_prefill` has admissions, with a prefill cut short by the token budget at most at
the end of the list. It all comes to what `Scheduler.schedule` and `Scheduler.update_from_output` come to, and the tests
compare the two. The rest is left to these: async scheduling, preemption under the priority policy, several prefills at
once under long_prefill_token_threshold, a pool that one request outgrows, and whatever got a running request out of
step with the others.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from sim.engine.prefix_cache import NO_HITS, Hit
from sim.engine.request import RUNNING, Request
from sim.engine.scheduler import UNPAUSED, Scheduler


class Leap(msgspec.Struct, eq=False):
    """What happened in steps that were taken without a look at each."""

    num_steps: int = 0
    num_scheduled_tokens: int = 0
    anyone_sampled: bool = False
    finished: list[tuple[int, Request]] = []
    """Each with the number of the step, counted from 1."""
    preempted: list[list[Request]] = []
    """Those of each step that preempted."""
    stale_cached_tokens: list[tuple[Request, int]] = []
    """As in `SchedulerOutput`, as are the following, which are those of the last step."""
    num_decodes: int = 0
    num_prefill_tokens: int = 0
    num_kv_tokens: int = 0


def take_decode_steps(scheduler: Scheduler, num_steps: int) -> Leap:
    """Take that many steps, of those that `decode_steps` told of."""
    leap = Leap()
    _decode(scheduler, leap, num_steps, stop_after_finish=True)
    assert leap.num_steps == num_steps, "not all of them only decode"
    assert not leap.preempted, "somebody was preempted"
    return leap


def take_steps(scheduler: Scheduler, max_steps: int, *, stop_after_finish: bool) -> Leap:
    """Take steps, at most max_steps, up to the first that is to be taken by itself."""
    leap = Leap()
    if scheduler.needs_a_look():
        return leap
    while leap.num_steps < max_steps and not (stop_after_finish and leap.finished):
        if not scheduler.singles and stays_out(scheduler):
            if not _decode(scheduler, leap, max_steps, stop_after_finish=stop_after_finish):
                break
            if leap.num_steps == max_steps or (stop_after_finish and leap.finished):
                break
            # What else ends them is that somebody comes in, or what no leap can take.
        if not _prefill(scheduler, leap):
            break
    return leap


def _decode(scheduler: Scheduler, leap: Leap, max_steps: int, *, stop_after_finish: bool) -> bool:
    """Take steps in which all running requests are steady and nobody is admitted. False if there is none.

    In one turn these are the steps up to one that finishes or preempts somebody.
    """
    decodes, kv_cache = scheduler.decodes, scheduler.kv_cache_manager
    first_step = num_steps = leap.num_steps
    num_decodes, num_scheduled_tokens = decodes.num_requests, 0
    while num_decodes:
        ticks_to_finish, max_ticks = decodes.ticks_to_finish(), max_steps - num_steps
        if max_ticks > ticks_to_finish:
            max_ticks = ticks_to_finish
        num_ticks, num_blocks = decodes.ticks_within(kv_cache.free_blocks, max_ticks)
        if num_ticks:
            kv_cache.take(num_blocks)
            decodes.advance(num_ticks, num_blocks)
            num_steps += num_ticks
            num_scheduled_tokens += num_ticks * num_decodes
        if num_ticks < max_ticks:
            # The next step is short of blocks. As it preempts, it admits nobody.
            if num_decodes == 1 or not scheduler.is_fcfs:
                break
            victims, num_blocks = scheduler.preempt_for_steady()
            assert scheduler.running, "the last but one to be preempted leaves a block to the last"
            leap.preempted.append(victims)
            decodes.advance(1, num_blocks)
            num_ticks += 1
            num_steps += 1
            num_decodes = decodes.num_requests
            num_scheduled_tokens += num_decodes
        if num_ticks == ticks_to_finish:
            leap.num_decodes, leap.num_kv_tokens = num_decodes, decodes.num_kv_tokens
            for request in scheduler.end_step(()):
                leap.finished.append((num_steps, request))
            if stop_after_finish:
                break
            num_decodes = decodes.num_requests
        elif kv_cache.only_length_matters and num_steps < max_steps:
            continue  # who was preempted asks for more than it gave back, and holds back all behind it
        if num_steps == max_steps or not stays_out(scheduler):
            break
    if num_steps == first_step:
        return False
    leap.num_steps, leap.anyone_sampled = num_steps, True
    leap.num_scheduled_tokens += num_scheduled_tokens
    leap.num_prefill_tokens = 0
    if not leap.finished or leap.finished[-1][0] < num_steps:
        leap.num_decodes, leap.num_kv_tokens = decodes.num_requests, decodes.num_kv_tokens
    return True


def _prefill(scheduler: Scheduler, leap: Leap) -> bool:
    """Take a step that admits whom it can, while all running requests are steady but for the last, which may be in the
    middle of its prefill. False, and nothing is done, if the step is not like that."""
    decodes, kv_cache, singles = scheduler.decodes, scheduler.kv_cache_manager, scheduler.singles
    if scheduler.config.long_prefill_token_threshold or len(singles) > 1:
        return False
    token_budget = scheduler.config.max_num_batched_tokens - decodes.num_requests
    num_needing = len(decodes.needing_block())
    prefills: Iterable[tuple[Request, Sequence[Hit], int]] = ()
    if singles:
        last = next(reversed(scheduler.running))
        num_chunk_tokens = min(last.num_tokens - last.num_computed_tokens, token_budget)
        if last not in singles or num_chunk_tokens == 0:
            return False
        if num_needing + kv_cache.missing_blocks(last, num_chunk_tokens) > kv_cache.free_blocks:
            return False
        prefills = ((last, NO_HITS, num_chunk_tokens),)
    elif num_needing > kv_cache.free_blocks:
        return False

    kv_cache.take(num_needing)
    decodes.advance(1, num_needing)
    num_decodes, num_prefill_tokens, num_kv_tokens = decodes.num_requests, 0, decodes.num_kv_tokens
    for request, _, num_new_tokens in prefills:
        kv_cache.allocate(request, num_new_tokens)
        token_budget -= num_new_tokens
    if scheduler.pause_state is UNPAUSED:
        admitted = scheduler.admit_waiting(token_budget, scheduler.config.max_model_len)
        prefills = chain(prefills, admitted) if singles else admitted
    sampled: list[Request] = []
    for request, hits, num_new_tokens in prefills:
        if hits:
            request.num_computed_tokens = kv_cache.num_hit_tokens(hits)
            if request.kv_weight_version < kv_cache.prefix_cache.weight_version:
                leap.stale_cached_tokens.append((request, kv_cache.num_stale_tokens(hits)))
        request.status = RUNNING
        num_prompt_tokens = request.num_prompt_tokens
        request.num_computed_tokens = num_computed_tokens = request.num_computed_tokens + num_new_tokens
        num_kv_tokens += num_computed_tokens
        if num_new_tokens == 1 and num_computed_tokens > num_prompt_tokens:
            num_decodes += 1
        else:
            num_prefill_tokens += num_new_tokens
        if num_computed_tokens == num_prompt_tokens + request.num_output_tokens:
            sampled.append(request)
        else:
            singles[request] = None
    if not num_kv_tokens:
        return False

    leap.num_steps += 1
    if sampled or decodes.num_requests:
        leap.anyone_sampled = True
    leap.num_scheduled_tokens += num_decodes + num_prefill_tokens
    leap.num_decodes, leap.num_prefill_tokens, leap.num_kv_tokens = num_decodes, num_prefill_tokens, num_kv_tokens
    for request in scheduler.end_step(sampled):
        leap.finished.append((leap.num_steps, request))
    return True


def uneventful_steps(scheduler: Scheduler, limit: int) -> int:
    """How many of the next steps, at most limit, do nothing but decode: nobody is admitted, preempted or finished."""
    num_steps, finishes = decode_steps(scheduler, limit)
    return num_steps - finishes


def decode_steps(scheduler: Scheduler, limit: int) -> tuple[int, bool]:
    """The same, but that the last of them may finish somebody; and whether it does."""
    decodes = scheduler.decodes
    if limit <= 0 or scheduler.singles or not decodes.num_requests or scheduler.needs_a_look():
        return 0, False
    if not stays_out(scheduler):
        return 0, False
    ticks_to_finish = decodes.ticks_to_finish()
    num_ticks, _ = decodes.ticks_within(scheduler.kv_cache_manager.free_blocks, min(limit, ticks_to_finish))
    return num_ticks, num_ticks == ticks_to_finish


def stays_out(scheduler: Scheduler) -> bool:
    """Whether nobody is admitted while the running requests only decode. What has to be shown of the head of the queue
    is that it will not be later either, when there are fewer free blocks."""
    if not scheduler.waiting or scheduler.pause_state is not UNPAUSED:
        return True
    kv_cache, config, head = scheduler.kv_cache_manager, scheduler.config, scheduler.waiting[0]
    if kv_cache.only_length_matters:
        # This is asked after every event, so it is spelled out: admission_blocks, without a call.
        num_tokens = head.num_prompt_tokens + head.num_output_tokens
        if -(-num_tokens // kv_cache.block_size) + kv_cache.watermark_blocks > kv_cache.free_blocks:
            return True
    num_running = scheduler.decodes.num_requests
    if num_running == config.max_num_seqs or num_running == config.max_num_batched_tokens:
        return True
    if kv_cache.only_length_matters and config.enable_chunked_prefill:
        return False
    token_budget = config.max_num_batched_tokens - num_running
    hits, num_new_tokens = scheduler.first_chunk(head, token_budget, scheduler.prefill_cap_tokens())
    if kv_cache.may_hit_more(head, hits):
        return False
    if num_new_tokens > token_budget:
        return True
    # What it asks for falls no faster than the free blocks do. A prefix is evicted from its end: with each block
    # taken at most one hit is lost, or found again in a copy that somebody holds.
    return kv_cache.admission_blocks(head, hits, num_new_tokens, True) > kv_cache.free_blocks
