"""An engine whose steps take time: what a server runs on.

A step starts when the one before it has ended and there is work. What arrives meanwhile waits for the next one, and
its tokens are there when it ends. At one instant, a step starts only when everything else has happened: a fault that
token k sets off acts before token k + 1 is under way.

Steps that only decode are planned many at a time and taken when their time has passed. Whatever interferes cuts the
plan: the steps that have ended are taken, the one under way goes on, and the rest is planned anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from sim.engine.engine import Engine
from sim.engine.latency import Latency, Stretch
from sim.engine.port import Burst, Finish, Left, Moment, Prefill, Stale
from sim.engine.request import EngineRequest
from sim.engine.scheduler import SchedulerOutput

NS_PER_S = 10**9
MAX_PLANNED_STEPS = 10**9


@dataclass(slots=True, eq=False)
class _InEngine:
    """A request, from `add` to its last token or its abort."""

    request: int
    order: int
    delivered_tokens: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    stale_tokens: int = 0
    reached_tokens: int = 0
    """Positions, from the first, whose KV it has had: computed, or found in the cache. Decoded ones count apart."""

    def prefill(self) -> Prefill:
        return Prefill(self.computed_tokens, self.cached_tokens, self.recomputed_tokens, self.stale_tokens)


class _UnderWay(NamedTuple):
    """One step that has begun, or several that are planned and not taken yet."""

    start_ns: int
    stretch: Stretch
    num_steps: int
    begun: bool
    end_ns: int
    last: bool
    """Nobody waits for a token of its last step."""


class TimedEngine:
    """See `sim.engine.port.DecodeEngine`."""

    def __init__(self, engine: Engine, latency: Latency) -> None:
        self._engine = engine
        self._latency = latency
        self._live: dict[str, _InEngine] = {}
        """In the order in which they were added."""
        self._num_added = 0
        self._watched: dict[str, int] = {}
        self._under_way: _UnderWay | None = None
        self._free_ns = 0
        """Between two steps: when the next one may start."""
        self._aborted: list[str] = []
        """Aborted while a step is under way that they are part of: they leave the engine when it ends."""
        self._due: list[tuple[int, Burst]] = []
        """(order, burst) of what has come to a finish or a watched moment and was not handed over yet."""

    # --- what a server calls --------------------------------------------------------------------------------------

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
        self._interrupt(now_ns)
        request_id = str(request)
        assert request_id not in self._live, f"request {request} is already in the engine"
        live = _InEngine(request, self._num_added)
        self._num_added += 1
        if max_tokens == 0:
            self._due.append((live.order, Burst(request, 0, "length", live.prefill())))
            return
        self._live[request_id] = live
        self._engine.add(
            EngineRequest(
                request_id=request_id,
                prompt_token_ids=prompt_ids,
                max_tokens=max_tokens,
                stop_at=None if stop_after is None else stop_after - 1,
                output_base=prompt_ids[-1] + 1 if output_base is None else output_base,
                priority=priority,
                arrival_time=now_ns / NS_PER_S,
            )
        )

    def watch(self, request: int, tokens: int) -> None:
        request_id = str(request)
        live = self._live.get(request_id)
        if live is None or tokens <= live.delivered_tokens:
            return
        self._watched[request_id] = tokens
        under_way = self._under_way
        if under_way is not None and not under_way.begun:
            distance = max(1, tokens - self._engine.num_output_tokens(request_id))
            if distance <= under_way.num_steps:
                self._plan(under_way.start_ns, under_way.stretch, distance, last=False)

    def abort(self, request: int) -> Left:
        request_id = str(request)
        live = self._live.pop(request_id, None)
        if live is None:
            return Left(0, None)
        self._watched.pop(request_id, None)
        assert self._under_way is None or self._under_way.begun, "aborts come after a flush at the same instant"
        if self._under_way is None:
            self._engine.abort(request_id)
            return Left(0, live.prefill())
        self._aborted.append(request_id)
        return Left(self._engine.num_tokens_under_way(request_id), live.prefill())

    def pause(self, now_ns: int, mode: Literal["wait", "keep"] = "wait") -> None:
        self._interrupt(now_ns)
        assert self._under_way is None, "vLLM pauses between steps"
        self._engine.pause(mode)

    def resume(self, now_ns: int) -> None:
        self._interrupt(now_ns)
        self._engine.resume()

    def step_end_ns(self, now_ns: int) -> int | None:
        self._interrupt(now_ns)
        return None if self._under_way is None else self._under_way.end_ns

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        assert self._under_way is None, "vLLM resets its cache between steps"
        return self._engine.reset_prefix_cache(reset_running_requests)

    def set_weight_version(self, version: int) -> Stale:
        assert self._under_way is None, "weights change between steps"
        self._engine.weight_version = version
        stale = self._engine.stale_requests()
        return Stale(len(stale), sum(map(self._engine.num_computed_tokens, stale)))

    @property
    def stuck(self) -> str | None:
        return self._engine.stuck

    def next_moment(self) -> Moment | None:
        if self._due:
            return Moment(0, False)
        if self._under_way is not None:
            return Moment(self._under_way.end_ns, self._under_way.last)
        if self._has_work():
            return Moment(self._free_ns, True)
        return None

    def advance(self, now_ns: int) -> list[Burst]:
        self._catch_up(now_ns)
        return self._hand_over()

    def start(self, now_ns: int) -> None:
        self._catch_up(now_ns)
        if self._under_way is None and self._has_work():
            self._start(now_ns)

    def flush(self, now_ns: int) -> list[Burst]:
        self._interrupt(now_ns)
        for request_id, live in self._live.items():
            self._deliver(live, self._engine.num_output_tokens(request_id))
        return self._hand_over()

    # --- steps ----------------------------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        return self._engine.stuck is None and self._engine.has_work

    def _catch_up(self, now_ns: int) -> None:
        """Take the steps that have ended by now. One that would start now waits for `start`."""
        # Ends: each turn ends a step, and no request takes more steps than it can have tokens.
        while True:
            if self._under_way is None:
                if self._free_ns >= now_ns:
                    return
                if not self._has_work():
                    self._free_ns = now_ns
                    return
                self._start(self._free_ns)
            assert self._under_way is not None
            if self._under_way.end_ns > now_ns:
                return
            self._end(self._under_way)

    def _start(self, now_ns: int) -> None:
        """Begin one step, or plan several that only decode."""
        self._free_ns = now_ns
        distances = [tokens - self._engine.num_output_tokens(each) for each, tokens in self._watched.items()]
        nearest = min(distances, default=MAX_PLANNED_STEPS)
        num_steps, finishes = self._engine.decode_steps(nearest)
        if not num_steps:
            self._begin(now_ns)
            return
        stretch = self._latency.stretch(self._engine.decode_totals())
        if stretch.num_steps is not None and stretch.num_steps < num_steps:
            num_steps, finishes = stretch.num_steps, False
        self._plan(now_ns, stretch, num_steps, last=not finishes and num_steps < nearest)

    def _plan(self, start_ns: int, stretch: Stretch, num_steps: int, *, last: bool) -> None:
        end_ns = start_ns + stretch.total_ns(num_steps)
        self._under_way = _UnderWay(start_ns, stretch, num_steps, False, end_ns, last)

    def _begin(self, now_ns: int) -> None:
        output = self._engine.begin_step()
        self._count_prefills(output)
        stretch = self._latency.stretch(self._engine.step_totals)
        self._under_way = _UnderWay(now_ns, stretch, 1, True, now_ns + stretch.step_ns, False)

    def _end(self, ended: _UnderWay) -> None:
        self._under_way = None
        self._free_ns = ended.end_ns
        finished = self._engine.end_step() if ended.begun else self._engine.take_decode_steps(ended.num_steps)
        for request in finished:
            live = self._live.pop(request.request_id, None)
            if live is not None:  # else it was aborted, and this was its token in flight
                self._watched.pop(request.request_id, None)
                self._deliver(live, request.num_output_tokens, cast(Finish, request.finish_reason))
        for request_id in self._aborted:
            self._engine.abort(request_id)
        self._aborted.clear()
        reached = [each for each, tokens in self._watched.items() if self._engine.num_output_tokens(each) >= tokens]
        for request_id in reached:
            del self._watched[request_id]
            self._deliver(self._live[request_id], self._engine.num_output_tokens(request_id))

    def _interrupt(self, now_ns: int) -> None:
        """Catch up, and cut what is planned beyond the step under way."""
        self._catch_up(now_ns)
        plan = self._under_way
        if plan is None or plan.begun:
            return
        num_ended = plan.stretch.ended_steps(now_ns - plan.start_ns, plan.num_steps)
        self._under_way = None
        self._free_ns = plan.start_ns + plan.stretch.total_ns(num_ended)
        if num_ended:
            self._engine.take_decode_steps(num_ended)
        if self._free_ns < now_ns or not num_ended:
            self._begin(self._free_ns)

    # --- tokens ---------------------------------------------------------------------------------------------------

    def _deliver(self, live: _InEngine, decoded_tokens: int, finish: Finish | None = None) -> None:
        num_tokens = decoded_tokens - live.delivered_tokens
        if num_tokens or finish is not None:
            live.delivered_tokens = decoded_tokens
            prefill = None if finish is None else live.prefill()
            self._due.append((live.order, Burst(live.request, num_tokens, finish, prefill)))

    def _hand_over(self) -> list[Burst]:
        due, self._due = self._due, []
        if len(due) > 1:
            due.sort(key=lambda ordered: ordered[0])
        return [burst for _, burst in due]

    def _count_prefills(self, output: SchedulerOutput) -> None:
        for request, num_tokens in output.scheduled.items():
            num_known_tokens = request.num_prompt_tokens + request.num_output_tokens
            if request.num_output_tokens and num_tokens == 1 and request.num_computed_tokens == num_known_tokens:
                continue  # decodes
            live = self._live[request.request_id]
            seen = num_known_tokens if request.num_output_tokens else live.reached_tokens
            start = request.num_computed_tokens - num_tokens
            num_again = min(num_tokens, max(0, seen - start))
            live.recomputed_tokens += num_again
            live.computed_tokens += num_tokens - num_again
            live.cached_tokens += max(0, start - seen)
            live.reached_tokens = max(seen, request.num_computed_tokens)
        for request, num_tokens in output.stale_cached_tokens.items():
            self._live[request.request_id].stale_tokens += num_tokens
        self._engine.stale_cached_tokens.clear()
