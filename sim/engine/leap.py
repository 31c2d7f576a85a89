"""Many steps at once, where nothing happens but decoding.

Between two events (an admission, a finish, a preemption, the end of a prefill, something from outside) each step gives
every running request one token, and all that changes is known ahead (see `sim.engine.decodes`). So only the next event
has to be found. Where it cannot be told ahead there is no leap, and the next step is taken by itself.
"""

from sim.engine.scheduler import PauseState, Scheduler


def uneventful_steps(scheduler: Scheduler, limit: int) -> tuple[int, int]:
    """How many of the next steps, at most limit, do nothing but decode, and the blocks these take together.

    In such a step every running request gets one token, and nobody is admitted, preempted, or finished.
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
    num_steps = min(limit, decodes.ticks_to_finish() - 1)
    return decodes.ticks_within(scheduler.kv_cache_manager.free_blocks, num_steps)


def stays_out(scheduler: Scheduler) -> bool:
    """Whether nobody is admitted while the running requests only decode."""
    if not len(scheduler.waiting) or scheduler.pause_state is not PauseState.UNPAUSED:
        return True
    token_budget = scheduler.config.max_num_batched_tokens - len(scheduler.decodes)
    if token_budget == 0 or len(scheduler.running) == scheduler.config.max_num_seqs:
        return True
    if scheduler.kv_cache_manager.enable_caching:
        return False
    head = scheduler.waiting.peek()
    hits, num_new_tokens = scheduler.first_chunk(head, token_budget, scheduler.prefill_cap_tokens())
    if num_new_tokens > token_budget:
        return True
    kv_cache = scheduler.kv_cache_manager
    return kv_cache.admission_blocks(head, hits, num_new_tokens, keep_watermark=True) > kv_cache.free_blocks
