"""Many steps at once, where nothing happens but decoding.

Between two events (an admission, a finish, a preemption, the end of a prefill, something from outside) each step gives
every running request one token, and all that changes is known ahead (see `sim.engine.decodes`). So only the next event
has to be found. Where it cannot be told ahead there is no leap, and the next step is taken by itself.
"""

from sim.engine.scheduler import PauseState, Scheduler


def decode_steps(scheduler: Scheduler, limit: int) -> tuple[int, int]:
    """How many of the next steps, at most limit, schedule nothing but decodes, and the blocks these take together.

    In such a step every running request gets one token, and nobody is admitted or preempted. Only the last may finish
    somebody.
    """
    decodes = scheduler.decodes
    if (
        limit <= 0
        or not len(decodes)
        or scheduler.singles
        or scheduler.pause_state is PauseState.PAUSED_ALL
        or len(decodes) > scheduler.config.max_num_batched_tokens
        or scheduler.has_news()
        or not stays_out(scheduler)
    ):
        return 0, 0
    return decodes.ticks_within(scheduler.kv_cache_manager.free_blocks, min(limit, decodes.ticks_to_finish()))


def uneventful_steps(scheduler: Scheduler, limit: int) -> int:
    """How many of the next steps, at most limit, do nothing but decode: nobody is admitted, preempted or finished."""
    num_steps, _ = decode_steps(scheduler, limit)
    return num_steps - 1 if num_steps and num_steps == scheduler.decodes.ticks_to_finish() else num_steps


def stays_out(scheduler: Scheduler) -> bool:
    """Whether nobody is admitted while the running requests only decode."""
    if not len(scheduler.waiting) or scheduler.pause_state is not PauseState.UNPAUSED:
        return True
    token_budget = scheduler.config.max_num_batched_tokens - len(scheduler.decodes)
    if token_budget == 0 or len(scheduler.running) == scheduler.config.max_num_seqs:
        return True
    head, kv_cache = scheduler.waiting.peek_request(), scheduler.kv_cache_manager
    hits, num_new_tokens = scheduler.first_chunk(head, token_budget, scheduler.prefill_cap_tokens())
    if kv_cache.may_hit_more(head, hits):
        return False
    if num_new_tokens > token_budget:
        return True
    # Free blocks only fall, and what the head asks for falls no faster: a hit that is evicted has to be computed, unless
    # a copy that somebody holds takes its place. But if just its first chunk has to fit, one lost hit changes a lot.
    if not kv_cache.reserve_full_isl and not all(hit.run.holders for hit in hits):
        return False
    return kv_cache.admission_blocks(head, hits, num_new_tokens, keep_watermark=True) > kv_cache.free_blocks
