"""Running requests that do nothing but decode: one token a step each, and not one of them touched.

Nearly all requests of a rollout are in this state nearly all the time. So a *steady* request is not updated step by
step. Time is counted in *ticks*, the steps in which the steady requests moved, and three things about each are fixed
when it joins:

- its counts are what they were then, plus the ticks since;
- the ticks in which it needs a new block share one remainder modulo block_size, its *phase*;
- the tick in which it will finish.

So a step asks only for the few requests of one phase and for those that finish, and many steps at once ask no more.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator

from sim.engine.request import NOT_STEADY, Request

NOBODY, EVERYBODY = 0, 2**63
"""For served_to; running_order counts from 1."""


class Decodes:
    """The steady requests. Each is running, has sampled its last known token and has computed all before that one."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.tick = 0
        self.num_blocks = 0
        """Blocks that they hold together, each counting those it shares."""
        self.served_to = NOBODY
        """Within a step: the running_order up to which all have been scheduled."""
        self.num_requests = 0
        self._by_phase: list[dict[Request, None]] = [{} for _ in range(block_size)]
        self._phases_twice = self._by_phase * 2
        """To be cut where a search begins."""
        self._by_finish_tick: dict[int, dict[Request, None]] = {}
        self._finish_ticks: list[int] = []
        """Heap of the keys of _by_finish_tick. Where all have left, the key stays until it is met."""
        self._sum_of_origins_tokens = 0
        """Sum over all of num_computed_tokens minus the tick of joining."""

    def __iter__(self) -> Iterator[Request]:
        for requests in self._by_phase:
            yield from requests

    @property
    def num_kv_tokens(self) -> int:
        """Tokens in the KV of all of them together."""
        return self._sum_of_origins_tokens + self.num_requests * self.tick

    def join(self, requests: Iterable[Request]) -> None:
        tick, block_size, by_phase, by_finish_tick = self.tick, self.block_size, self._by_phase, self._by_finish_tick
        finish_ticks = self._finish_ticks
        num_requests = num_tokens = num_blocks = 0
        for request in requests:
            num_computed_tokens, num_output_tokens = request.num_computed_tokens, request.num_output_tokens
            assert request.steady_since == NOT_STEADY, "joined twice"
            assert num_computed_tokens == request.num_prompt_tokens + num_output_tokens - 1, (
                "a steady request lacks exactly its last token"
            )
            request.steady_since = tick
            num_requests += 1
            num_tokens += num_computed_tokens
            num_blocks -= -num_computed_tokens // block_size
            by_phase[(tick - num_computed_tokens) % block_size][request] = None
            finish_tick = tick + request.final_output_tokens - num_output_tokens
            if finish_tick in by_finish_tick:
                by_finish_tick[finish_tick][request] = None
            else:
                assert finish_tick > tick, "a finished request joined"
                by_finish_tick[finish_tick] = {request: None}
                heapq.heappush(finish_ticks, finish_tick)
        self.num_requests += num_requests
        self.num_blocks += num_blocks
        self._sum_of_origins_tokens += num_tokens - num_requests * tick
        if len(self._finish_ticks) > 2 * self.num_requests + 64:
            self._drop_empty_finish_ticks()

    def leave(self, request: Request) -> None:
        """Bring the request's counts up to date and let it go."""
        since = request.steady_since
        assert since != NOT_STEADY, "left without having joined"
        num_computed_tokens, progress = request.num_computed_tokens, self.tick - since
        del self._by_phase[(since - num_computed_tokens) % self.block_size][request]
        del self._by_finish_tick[since + request.final_output_tokens - request.num_output_tokens][request]
        self.num_requests -= 1
        self._sum_of_origins_tokens -= num_computed_tokens - since
        request.num_computed_tokens = num_computed_tokens = num_computed_tokens + progress
        request.num_output_tokens += progress
        request.steady_since = NOT_STEADY
        self.num_blocks += -num_computed_tokens // self.block_size

    def progress(self, request: Request) -> int:
        """Tokens decoded since the request's counts were last brought up to date."""
        return 0 if request.steady_since == NOT_STEADY else self.tick - request.steady_since

    def num_scheduled_tokens(self, request: Request) -> int:
        """Tokens computed, with that of the step which is being scheduled."""
        num_tokens = request.num_computed_tokens
        if request.steady_since != NOT_STEADY:
            num_tokens += self.tick - request.steady_since + (request.running_order <= self.served_to)
        return num_tokens

    def needing_block(self) -> Collection[Request]:
        """Those that need one more block in this tick."""
        return self._by_phase[self.tick % self.block_size]

    def ticks_within(self, free_blocks: int, max_ticks: int) -> tuple[int, int]:
        """How many ticks, at most max_ticks, these free blocks are enough for, and how many of them that takes."""
        block_size, num_ticks, num_blocks = self.block_size, 0, 0
        if free_blocks >= self.num_requests and max_ticks >= block_size:
            # In block_size ticks each request takes one block, wherever they begin.
            rounds = min(free_blocks // self.num_requests, max_ticks // block_size)
            num_ticks, num_blocks = rounds * block_size, rounds * self.num_requests
        phase = self.tick % block_size
        for requests in self._phases_twice[phase : phase + block_size]:
            num_needing = len(requests)
            if num_blocks + num_needing > free_blocks or num_ticks == max_ticks:
                break
            num_blocks += num_needing
            num_ticks += 1
        return num_ticks, num_blocks

    def ticks_to_finish(self) -> int:
        """Ticks until, and with, the one that finishes somebody. There must be somebody."""
        finish_tick = self._finish_ticks[0]
        while not self._by_finish_tick[finish_tick]:
            del self._by_finish_tick[heapq.heappop(self._finish_ticks)]
            finish_tick = self._finish_ticks[0]
        return finish_tick - self.tick

    def advance(self, num_ticks: int, num_blocks: int) -> None:
        """Let ticks pass, in which they take these blocks. To be followed by `finish`."""
        self.tick += num_ticks
        self.num_blocks += num_blocks

    def finish(self) -> list[Request]:
        """Those that the last tick finished; they have left."""
        self.served_to = NOBODY
        finished: list[Request] = []
        while self._finish_ticks and self._finish_ticks[0] <= self.tick:
            finish_tick = heapq.heappop(self._finish_ticks)
            for request in list(self._by_finish_tick[finish_tick]):
                self.leave(request)
                assert request.num_output_tokens == request.final_output_tokens, "finished at the wrong length"
                finished.append(request)
            del self._by_finish_tick[finish_tick]
        return finished

    def _drop_empty_finish_ticks(self) -> None:
        self._by_finish_tick = {tick: requests for tick, requests in self._by_finish_tick.items() if requests}
        self._finish_ticks = list(self._by_finish_tick)
        heapq.heapify(self._finish_ticks)
