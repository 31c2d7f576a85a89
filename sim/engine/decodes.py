"""Running requests that do nothing but decode: one token a step each, and not one of them touched.

Nearly all requests of a rollout are in this state nearly all the time. So a *steady* request is not updated step by
step. Time is counted in *ticks*, the steps in which the steady requests moved, and three things about each are fixed
when it joins:

- its counts are what they were then, plus the ticks since;
- the ticks in which it needs a new block share one remainder modulo block_size, its *phase*; it fills a block in the
  tick before each of them;
- the tick in which it will finish.

So a step asks only for the few requests of one phase and for those that finish, and many steps at once ask no more.
"""

import heapq
from collections.abc import Collection, Iterator

from sim.engine.request import NOT_STEADY, Request


class Decodes:
    """The steady requests. Each is running, has sampled its last known token and has computed all before that one."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.tick = 0
        self.num_blocks = 0
        """Blocks that they hold together, each counting those it shares."""
        self._num_requests = 0
        self._by_phase: list[dict[Request, None]] = [{} for _ in range(block_size)]
        self._finishes: list[tuple[int, int, Request]] = []
        """Heap of (tick, running_order, request); entries of requests that left are skipped when met."""
        self._sum_of_origins_tokens = 0
        """Sum over all of num_computed_tokens minus the tick of joining."""

    def __len__(self) -> int:
        return self._num_requests

    def __iter__(self) -> Iterator[Request]:
        for requests in self._by_phase:
            yield from requests

    @property
    def num_kv_tokens(self) -> int:
        """Tokens in the KV of all of them together."""
        return self._sum_of_origins_tokens + self._num_requests * self.tick

    def join(self, request: Request) -> None:
        assert request.steady_since == NOT_STEADY, "joined twice"
        assert request.num_computed_tokens == request.num_tokens - 1, "a steady request lacks exactly its last token"
        assert request.num_output_tokens < request.final_output_tokens, "a finished request joined"
        request.steady_since = self.tick
        self._num_requests += 1
        self.num_blocks -= -request.num_computed_tokens // self.block_size
        self._sum_of_origins_tokens += request.num_computed_tokens - self.tick
        self._by_phase[self.phase(request)][request] = None
        if len(self._finishes) > 2 * self._num_requests + 64:
            self._drop_stale_finishes()
        heapq.heappush(self._finishes, (self._finish_tick(request), request.running_order, request))

    def leave(self, request: Request) -> None:
        """Bring the request's counts up to date and let it go."""
        assert request.steady_since != NOT_STEADY, "left without having joined"
        del self._by_phase[self.phase(request)][request]
        self._num_requests -= 1
        self._sum_of_origins_tokens -= request.num_computed_tokens - request.steady_since
        progress = self.progress(request)
        request.num_computed_tokens += progress
        request.num_output_tokens += progress
        request.steady_since = NOT_STEADY
        self.num_blocks += -request.num_computed_tokens // self.block_size

    def progress(self, request: Request) -> int:
        """Tokens decoded since the request's counts were last brought up to date."""
        return 0 if request.steady_since == NOT_STEADY else self.tick - request.steady_since

    def phase(self, request: Request) -> int:
        return (request.steady_since - request.num_computed_tokens) % self.block_size

    def needing_block(self) -> Collection[Request]:
        """Those that need one more block in this tick."""
        return self._by_phase[self.tick % self.block_size]

    def filling_block(self) -> Collection[Request]:
        """Those whose last block is full with this tick's token."""
        return self._by_phase[(self.tick + 1) % self.block_size]

    def finish_tick(self) -> list[Request]:
        """End the tick; returns those that it finished, which have left, in running order."""
        self.num_blocks += len(self.needing_block())
        self.tick += 1
        finished: list[Request] = []
        while self._finishes and self._finishes[0][0] < self.tick:
            tick, _, request = heapq.heappop(self._finishes)
            if request.steady_since != NOT_STEADY and self._finish_tick(request) == tick:
                self.leave(request)
                assert request.num_output_tokens == request.final_output_tokens, "finished at the wrong length"
                finished.append(request)
        return finished

    def _finish_tick(self, request: Request) -> int:
        return request.steady_since + request.final_output_tokens - request.num_output_tokens - 1

    def _drop_stale_finishes(self) -> None:
        self._finishes = [(self._finish_tick(request), request.running_order, request) for request in self]
        heapq.heapify(self._finishes)
