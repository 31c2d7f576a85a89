"""The simplest engine: a constant token time, no steps, no KV."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sim.engine.port import Burst, Finish, Left, Moment, Stale


@dataclass(slots=True)
class _Decoding:
    request: int
    end_tokens: int
    finish: Finish
    start_ns: int
    """When it would have decoded its zeroth token; without meaning while it waits for a resume."""
    waiting: bool
    decoded_tokens: int = 0
    watched_tokens: int = 0


class ConstantRate:
    """No engine: every request decodes a token each `token_ns` after `prefill_ns`, however many there are.

    Requests know nothing of one another, so what becomes of them can be computed without a simulation, as
    `sim.waste.independent` does. It has no steps and no KV.
    """

    stuck: str | None = None

    def __init__(self, token_ns: int, prefill_ns: int) -> None:
        self._token_ns = token_ns
        self._prefill_ns = prefill_ns
        self._live: dict[int, _Decoding] = {}
        self._due: list[tuple[int, int]] = []
        self._paused = False

    def add(
        self,
        now_ns: int,
        request: int,
        prompt_ids: Sequence[int],
        max_tokens: int,
        stop_after: int | None,
        output_base: int | None = None,
        priority: int = 0,
    ) -> None:
        assert request not in self._live, f"request {request} is already in the engine"
        del prompt_ids, output_base, priority
        stops = stop_after is not None and stop_after <= max_tokens
        end_tokens = stop_after if stops and stop_after is not None else max_tokens
        live = _Decoding(request, end_tokens, "stop" if stops else "length", now_ns + self._prefill_ns, self._paused)
        self._live[request] = live
        if not live.waiting:
            self._expect(live, end_tokens)

    def _expect(self, live: _Decoding, tokens: int) -> None:
        heapq.heappush(self._due, (live.start_ns + tokens * self._token_ns, live.request))

    def watch(self, request: int, tokens: int) -> None:
        live = self._live.get(request)
        if live is not None and live.decoded_tokens < tokens < live.end_tokens:
            live.watched_tokens = tokens
            if not live.waiting:
                self._expect(live, tokens)

    def abort(self, request: int) -> Left:
        self._live.pop(request, None)
        return Left(0, None)

    def pause(self, now_ns: int, mode: Literal["wait", "keep"] = "wait") -> None:
        assert not self._live, "a pause comes after the abort of all requests"
        del now_ns, mode
        self._paused = True

    def resume(self, now_ns: int) -> None:
        self._paused = False
        for live in self._live.values():
            if live.waiting:
                live.waiting = False
                live.start_ns = now_ns + self._prefill_ns
                self._expect(live, live.end_tokens)
                if live.watched_tokens:
                    self._expect(live, live.watched_tokens)

    def step_end_ns(self, now_ns: int) -> None:
        """There are no steps."""

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        del reset_running_requests
        return not self._live

    def set_weight_version(self, version: int) -> Stale:
        del version
        return Stale(0, 0)

    def next_moment(self) -> Moment | None:
        while self._due and self._due[0][1] not in self._live:
            heapq.heappop(self._due)
        return Moment(self._due[0][0], False) if self._due else None

    def start(self, now_ns: int) -> None:
        """Nothing to do: there are no steps."""

    def advance(self, now_ns: int) -> list[Burst]:
        bursts = []
        while self._due and self._due[0][0] <= now_ns:
            live = self._live.get(heapq.heappop(self._due)[1])
            burst = None if live is None else self._decode(live, now_ns)
            if burst is not None:
                bursts.append(burst)
        return bursts

    def flush(self, now_ns: int) -> list[Burst]:
        bursts = [self._decode(live, now_ns) for live in list(self._live.values())]
        return [burst for burst in bursts if burst is not None]

    def _decode(self, live: _Decoding, now_ns: int) -> Burst | None:
        """What one request has decoded since its last burst; None: nothing."""
        if live.waiting or now_ns < live.start_ns:
            return None
        decoded_tokens = live.end_tokens
        if self._token_ns:
            decoded_tokens = min(decoded_tokens, (now_ns - live.start_ns) // self._token_ns)
        done = decoded_tokens == live.end_tokens
        if decoded_tokens == live.decoded_tokens and not done:
            return None
        burst = Burst(live.request, decoded_tokens - live.decoded_tokens, live.finish if done else None)
        live.decoded_tokens = decoded_tokens
        if done:
            del self._live[live.request]
        return burst
