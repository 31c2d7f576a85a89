"""Recognising that no step will ever do anything again, and why."""

from sim.engine.request import Request
from sim.engine.scheduler import Scheduler, SchedulerOutput

MAX_BARREN_ROUNDS = 64
"""Rounds in which a request that cannot fit starts over and nobody gets a token, after which the engine is stuck even
if the prefix cache still changes. The rounds repeat exactly from the second or third on, as a rule."""


class StuckWatch:
    """There are two ways to get nowhere.

    *Refused*: nothing runs, so all blocks are free, and still the head of the queue cannot be admitted. The next step
    would find the same.

    *Outgrown*: a request that runs alone preempts itself. It can never finish, as it had the whole pool. If its whole
    prompt is not reserved at admission, it is admitted again, and others beside it may yet get somewhere. But once
    the same state comes back, with not one token sampled in between, it will for ever.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._progress: list[tuple[str, int]] = []
        self._barren_rounds: list[list[tuple[int, int]]] = []
        """What was cached, in eviction order, at the end of each round since progress was as it is."""

    def forget(self) -> None:
        """Something happened from outside."""
        self._barren_rounds.clear()

    def look(self, output: SchedulerOutput) -> str | None:
        """The reason why the engine is stuck, if it is. To be asked after each step that scheduled nothing while no
        token was in flight."""
        scheduler = self.scheduler
        if output.num_running or not scheduler.has_unfinished_requests():
            return None
        if not output.num_preemptions:
            return self._why_refused(scheduler.waiting.peek_request())
        if output.outgrew_pool is None:
            return None
        progress = [(request.request_id, request.num_output_tokens) for request in scheduler.waiting]
        if progress != self._progress:
            self._progress = progress
            self._barren_rounds.clear()
        cached = scheduler.kv_cache_manager.prefix_cache.next_evicted()
        if cached in self._barren_rounds or len(self._barren_rounds) == MAX_BARREN_ROUNDS:
            return self._outgrown(output.outgrew_pool)
        self._barren_rounds.append(cached)
        return None

    def _why_refused(self, head: Request) -> str:
        config, kv_cache = self.scheduler.config, self.scheduler.kv_cache_manager
        budget_tokens = config.max_num_batched_tokens
        hits, num_new_tokens = self.scheduler.first_chunk(head, budget_tokens, self.scheduler.prefill_cap_tokens())
        if num_new_tokens > budget_tokens:
            return (
                f"request {head.request_id!r} at the head of the queue needs {num_new_tokens} tokens in one step, as"
                f" chunked prefill is off, and the budget is {budget_tokens}"
            )
        if head.num_output_tokens:
            return self._outgrown(head)
        num_blocks = kv_cache.admission_blocks(head, hits, num_new_tokens, keep_watermark=False)
        assert num_blocks > kv_cache.usable_blocks, "refused although it fits"
        return (
            f"request {head.request_id!r} at the head of the queue needs {num_blocks} blocks and the pool has"
            f" {kv_cache.usable_blocks}"
        )

    def _outgrown(self, request: Request) -> str:
        kv_cache = self.scheduler.kv_cache_manager
        return (
            f"request {request.request_id!r} outgrew the pool: its {request.num_tokens} tokens need"
            f" {kv_cache.num_blocks(request.num_tokens)} blocks and the pool has {kv_cache.usable_blocks}"
        )
