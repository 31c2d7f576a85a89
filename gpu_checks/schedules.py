"""Schedules, step by step: an in-process vLLM engine with a model, and sim.engine, on the same workload.

The engine is vLLM's EngineCore as an LLM object holds it: scheduler, KV cache manager, executor and model runner. What
it schedules is read off its scheduler before and after each of its own steps.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpu_checks.engines import TINY_MODEL, on_cuda
from gpu_checks.extra_args import OUTPUT_BASE
from sim.engine import Engine, EngineConfig, EngineRequest

SETTINGS: dict[str, Any] = {
    "num_gpu_blocks": 9,
    "block_size": 32,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 160,
}
"""A pool in which four responses do not fit, four seats, and a budget below most sums of prompts."""

STEPS_MAX = 600

FIELDS = ("scheduled", "cached", "preempted", "running", "waiting", "emitted", "finished", "free_blocks")

_FIRST_OUTPUT = 64
_OUTPUTS_APART = 64
"""Prompts are written in the tokens below, outputs of up to so many in those above: 512 have room for 7."""


@dataclass(frozen=True)
class Load:
    """Requests and what happens to them; each event comes before the step it names (from 1)."""

    name: str
    events: tuple[tuple[int, str, dict[str, Any]], ...]


class _Writer:
    def __init__(self) -> None:
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self._requests = 0

    def add(self, step: int, name: str, prompt: list[int], max_tokens: int, stop_at: int | None = None) -> None:
        base = _FIRST_OUTPUT + _OUTPUTS_APART * self._requests
        assert base + _OUTPUTS_APART <= TINY_MODEL["vocab_size"]
        assert max_tokens <= _OUTPUTS_APART
        self._requests += 1
        request = {"request_id": name, "prompt": prompt, "max_tokens": max_tokens, "stop_at": stop_at, "base": base}
        self.events.append((step, "add", request))

    def abort(self, step: int, name: str) -> None:
        self.events.append((step, "abort", {"request_id": name}))

    def reset(self, step: int, *, running: bool) -> None:
        self.events.append((step, "reset", {"reset_running_requests": running}))

    def load(self, name: str) -> Load:
        return Load(name, tuple(sorted(self.events, key=lambda event: event[0])))


def _prompt(length: int, first: int = 0, step: int = 1) -> list[int]:
    return [3 + (first + step * position) % (_FIRST_OUTPUT - 3) for position in range(length)]


def fixed_loads() -> Iterator[Load]:
    """One for each thing that a schedule can be about."""
    writer = _Writer()
    for number, length in enumerate((30, 40, 50, 35)):
        writer.add(1, f"p{number}", _prompt(length, 7 * number), 60)
    yield writer.load("preemption")

    writer = _Writer()
    for number in range(4):
        writer.add(1 + 2 * number, f"s{number}", _prompt(36) + _prompt(4 + number, 11 * number, 3), 30)
    yield writer.load("shared prefix")

    writer = _Writer()
    for number in range(6):
        writer.add(1, f"a{number}", _prompt(20 + 5 * number, 9 * number), 40)
    writer.abort(3, "a5")
    writer.abort(9, "a0")
    writer.abort(25, "a2")
    writer.abort(30, "nobody")
    yield writer.load("aborts: waiting, running, at the end")

    writer = _Writer()
    for number, stop_at in enumerate((0, 5, 19, 20, None)):
        writer.add(1, f"e{number}", _prompt(18, 5 * number), 20, stop_at)
    yield writer.load("stops: first token, last token, beyond")

    writer = _Writer()
    for number in range(7):
        writer.add(1, f"n{number}", _prompt(10, 3 * number), 6 + 3 * number)
    yield writer.load("more requests than seats")

    writer = _Writer()
    writer.add(1, "l0", _prompt(20), 30)
    writer.abort(12, "l0")
    yield writer.load("an abort that leaves nothing")

    writer = _Writer()
    for number, length in enumerate((130, 158, 140)):
        writer.add(1, f"c{number}", _prompt(length, 17 * number), 60)
    yield writer.load("the end of the context")

    writer = _Writer()
    for number in range(3):
        writer.add(1, f"r{number}", _prompt(33, 13 * number), 30)
    writer.reset(10, running=False)
    writer.reset(15, running=True)
    yield writer.load("cache reset under running requests")


def random_load(seed: int) -> Load:
    """A load of all of these things at once."""
    draw = random.Random(seed)
    writer = _Writer()
    shared = _prompt(draw.randrange(16, 50), draw.randrange(50), draw.choice((1, 2)))
    for number in range(7):
        own = _prompt(draw.randrange(1, 40), draw.randrange(50), draw.choice((1, 2, 5)))
        prompt = (shared + own)[:90] if draw.random() < 0.5 else own
        stop_at = draw.randrange(50) if draw.random() < 0.3 else None
        writer.add(draw.randrange(1, 40), f"x{number}", prompt, draw.randrange(1, 61), stop_at)
        if draw.random() < 0.25:
            writer.abort(draw.randrange(2, 80), f"x{number}")
    if draw.random() < 0.3:
        writer.reset(draw.randrange(2, 60), running=draw.random() < 0.5)
    return writer.load(f"random, seed {seed}")


class RealCore:
    """vLLM's engine core, taken one step at a time."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._scheduler = core.scheduler
        self._seen: set[str] = set()
        self._next_token: dict[str, int] = {}

    def add(self, request_id: str, prompt: list[int], max_tokens: int, stop_at: int | None, base: int) -> None:
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            stop_token_ids=None if stop_at is None else [base + stop_at],
            extra_args={OUTPUT_BASE: base},
        )
        request = EngineCoreRequest(request_id, prompt, None, params, None, 0.0, None, None, None)
        self._core.add_request(*self._core.preprocess_add_request(request))
        self._seen.discard(request_id)
        self._next_token[request_id] = base

    def abort(self, request_id: str) -> None:
        self._core.abort_requests([request_id])

    def reset(self, reset_running_requests: bool) -> bool:
        return bool(self._core.reset_prefix_cache(reset_running_requests))

    @property
    def has_work(self) -> bool:
        return bool(self._scheduler.has_unfinished_requests())

    def step(self) -> dict[str, Any]:
        """One step of the engine; what it scheduled and what came of it."""
        step: dict[str, Any] = dict.fromkeys(FIELDS)
        schedule = self._scheduler.schedule

        def watched(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            step["scheduled"] = dict(output.num_scheduled_tokens)
            step["cached"] = {
                new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs if self._is_new(new)
            }
            step["preempted"] = sorted(output.preempted_req_ids or ())
            step["running"] = [request.request_id for request in self._scheduler.running]
            step["waiting"] = [request.request_id for request in self._scheduler.waiting]
            return output

        self._scheduler.schedule = watched
        try:
            outputs, _ = self._core.step()
        finally:
            self._scheduler.schedule = schedule
        made = [output for batch in outputs.values() for output in batch.outputs]
        for output in made:
            self._check_script(output.request_id, output.new_token_ids)
        step["emitted"] = {output.request_id: len(output.new_token_ids) for output in made if output.new_token_ids}
        step["finished"] = {
            output.request_id: str(output.finish_reason) for output in made if output.finish_reason is not None
        }
        step["free_blocks"] = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return step

    def _check_script(self, request_id: str, token_ids: list[int]) -> None:
        """Caching and stops depend on the tokens: they must be those that the simulation is told of."""
        first = self._next_token[request_id]
        self._next_token[request_id] += len(token_ids)
        written = list(range(first, self._next_token[request_id]))
        assert list(token_ids) == written, f"{request_id} was to write {written} and wrote {list(token_ids)}"

    def _is_new(self, new: Any) -> bool:
        """Whether it is admitted for the first time: vLLM's second runner lists preempted ones as new again."""
        first = new.req_id not in self._seen
        self._seen.add(new.req_id)
        return first


@contextmanager
def real_core(model_folder: str) -> Iterator[RealCore]:
    """An engine core in this process, with the tiny model and a pool of `SETTINGS`."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    from gpu_checks.processors import PROCESSORS

    settings = dict(SETTINGS)
    args = EngineArgs(
        model=model_folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        disable_log_stats=True,
        num_gpu_blocks_override=settings.pop("num_gpu_blocks"),
        logits_processors=PROCESSORS,
        async_scheduling=False,
        distributed_executor_backend="uni",
        **({"gpu_memory_utilization": 0.05} if on_cuda() else {}),
        **settings,
    )
    config = args.create_engine_config()
    core = EngineCore(config, Executor.get_class(config), log_stats=False)
    try:
        assert config.cache_config.block_size == SETTINGS["block_size"]
        yield RealCore(core)
    finally:
        core.shutdown()


@dataclass(frozen=True)
class Schedule:
    """What the real engine did with a load: its steps, what came of each event before them, and when they came."""

    load: Load
    happened: tuple[tuple[int, str, dict[str, Any], Any], ...]
    """(the step before which, kind, arguments, answer)"""
    steps: tuple[dict[str, Any], ...]

    @property
    def preemptions(self) -> int:
        return sum(len(step["preempted"]) for step in self.steps)

    @property
    def cached_tokens(self) -> int:
        return sum(sum(step["cached"].values()) for step in self.steps)

    @property
    def most_running(self) -> int:
        return max(len(step["running"]) for step in self.steps)

    @property
    def finish_reasons(self) -> set[str]:
        return {reason for step in self.steps for reason in step["finished"].values()}


def schedule_of(load: Load, core: RealCore) -> Schedule:
    """The real engine's schedule, from an empty cache until it is idle. Idle steps are left out."""
    core.reset(reset_running_requests=True)
    events = list(load.events)
    happened: list[tuple[int, str, dict[str, Any], Any]] = []
    steps: list[dict[str, Any]] = []
    for number in range(1, STEPS_MAX + 1):
        while events and events[0][0] <= number:
            _, kind, arguments = events.pop(0)
            happened.append((len(steps), kind, arguments, getattr(core, kind)(**arguments)))
        if core.has_work:
            steps.append(core.step())
        elif not events:
            return Schedule(load, tuple(happened), tuple(steps))
    raise AssertionError(f"load {load.name!r} does not end within {STEPS_MAX} steps")


MakeEngine = Callable[[EngineConfig], Engine]


def first_difference(real: Schedule, make_engine: MakeEngine = Engine) -> str | None:
    """Where sim.engine's schedule leaves the real one; None where every step is equal."""
    engine = make_engine(EngineConfig(**SETTINGS))
    events = list(real.happened)
    # After the last step, too: an abort may leave both idle.
    for number, step in enumerate([*real.steps, None]):
        while events and events[0][0] <= number:
            _, kind, arguments, answer = events.pop(0)
            ours = _happen(engine, kind, arguments)
            if ours != answer:
                return f"before step {number + 1}: {kind} answers {answer} on vLLM, {ours} simulated"
        if step is None:
            break
        simulated = engine.step()
        for name in FIELDS:
            ours = getattr(simulated, name)
            if step[name] != ours:
                return f"step {number + 1}: {name} is {step[name]} on vLLM, {ours} simulated"
    return "vLLM is idle and the simulation is not" if engine.has_work else None


def _happen(engine: Engine, kind: str, arguments: dict[str, Any]) -> bool | None:
    """Lets an event happen; what a cache reset answers. vLLM says nothing of the others."""
    match kind:
        case "add":
            engine.add(
                EngineRequest(
                    request_id=arguments["request_id"],
                    prompt_token_ids=arguments["prompt"],
                    max_tokens=arguments["max_tokens"],
                    stop_at=arguments["stop_at"],
                    output_base=arguments["base"],
                )
            )
        case "abort":
            engine.abort(**arguments)
        case "reset":
            return engine.reset_prefix_cache(**arguments)
    return None
