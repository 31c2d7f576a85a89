"""Recognising that no step will ever do anything again, and why."""

from sim.engine.request import Request
from sim.engine.scheduler import Scheduler, SchedulerOutput


class StuckWatch:
    """There are two ways to get nowhere.

    *Refused*: nothing runs, so all blocks are free, and still the head of the queue cannot be admitted. The next step
    would find the same.

    *Going round*: requests run, are preempted and start over, and nobody gets a token. One that needs more blocks than
    there are does this by itself, unless its whole prompt is reserved at admission. Under the priority policy requests
    that are equal in priority and arrival can do it to one another. As a step depends on nothing but the state, the
    engine is stuck once a state comes back with no token in between, and not before.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._remembered: object = None
        """A state after a step that preempted, since when nobody got a token."""
        self._states_seen = 0
        self._states_until_next = 1
        """Remember another state then. Twice as many each time, which finds a round of any length (Brent, 1980)."""

    def forget(self) -> None:
        """Somebody got a token, or something happened from outside."""
        self._remembered = None
        self._states_seen = 0
        self._states_until_next = 1

    def look(self, output: SchedulerOutput) -> str | None:
        """The reason why the engine is stuck, if it is. To be asked after each step that got nobody a token, with none
        in flight."""
        scheduler = self.scheduler
        if not scheduler.has_unfinished_requests():
            return None
        if not output.num_running and not output.num_preemptions:
            return self._why_refused(scheduler.waiting[0])
        if not output.num_preemptions:
            return None  # computing a prompt goes on
        state = self._state()
        if state == self._remembered:
            return self._why_round()
        self._states_seen += 1
        if self._states_seen == self._states_until_next:
            self._remembered = state
            self._states_seen = 0
            self._states_until_next *= 2
        return None

    def _state(self) -> object:
        """All that the next steps depend on, when no request is steady."""
        scheduler, kv_cache = self.scheduler, self.scheduler.kv_cache_manager
        return (
            [(request.request_id, request.num_computed_tokens) for request in scheduler.running],
            [request.request_id for request in scheduler.waiting],
            kv_cache.prefix_cache.next_evicted(),
            kv_cache.prefix_cache.references(),
        )

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
        num_blocks = kv_cache.admission_blocks(head, hits, num_new_tokens, False)
        assert num_blocks > kv_cache.usable_blocks, "refused although it fits"
        return (
            f"request {head.request_id!r} at the head of the queue needs {num_blocks} blocks and the pool has"
            f" {kv_cache.usable_blocks}"
        )

    def _why_round(self) -> str:
        scheduler, kv_cache = self.scheduler, self.scheduler.kv_cache_manager
        for request in scheduler.requests.values():
            if kv_cache.num_blocks(request.num_tokens) > kv_cache.usable_blocks:
                return self._outgrown(request)
        ids = ", ".join(repr(request_id) for request_id in scheduler.requests)
        return f"requests {ids} preempt one another for ever and none gets a token"

    def _outgrown(self, request: Request) -> str:
        kv_cache = self.scheduler.kv_cache_manager
        return (
            f"request {request.request_id!r} outgrew the pool: its {request.num_tokens} tokens need"
            f" {kv_cache.num_blocks(request.num_tokens)} blocks and the pool has {kv_cache.usable_blocks}"
        )
