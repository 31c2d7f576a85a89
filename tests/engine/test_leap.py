"""Leaping is stepping: the same figures, deliveries, events and states, wherever the steps are cut."""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from sim.engine import Engine, EngineConfig, Run, leap
from sim.engine.kv_cache import KVCacheManager
from sim.engine.prefix_cache import Chain, PrefixCache
from sim.engine.request import Request
from sim.engine.scheduler import Scheduler
from sim.engine.steady import Decodes
from tests.conformance.replay import happen, read_schedules
from tests.conformance.scenarios import Scenario, random_scenario
from tests.engine.audit import audit, found, settle, state
from tests.engine.make import add, add_all, make_engine

SEED = int(os.environ.get("ROLLCAGE_LEAP_SEED", "4"))
COUNT = int(os.environ.get("ROLLCAGE_LEAP_COUNT", "150"))
LAST_STEP = 400
MAX_STEPS_TO_THE_END = 50_000


class Log:
    """An engine, and what came out of it in words that do not depend on how its steps were cut."""

    def __init__(self, scenario: Scenario, *, settles: bool = False) -> None:
        self.engine = Engine(EngineConfig(**scenario["engine"]))
        self.delivered: dict[str, int] = {}
        self.finished: list[tuple[str, str]] = []
        self.answers: list[Any] = []
        self.num_leapt_steps = 0
        self.settles = settles
        """Whether the prefix cache is told of every block at once, and not only when somebody looks."""

    def happen(self, event: dict[str, Any]) -> None:
        if event["op"] == "new_weights":
            self.engine.weight_version += 1
        else:
            # The scenario has no recorded answers: the difference to these made-up ones is the answer.
            self.answers.append(happen(self.engine, {**event, "live": True, "ok": True}))

    def step_to(self, until_step: int) -> None:
        for _ in range(until_step - self.engine.steps_done):
            self._step()

    def advance_to(self, until_step: int) -> None:
        for run in self.engine.advance(until_step):
            assert run.num_tokens > 0
            self._deliver(run.request_id, run.num_tokens)
            assert self.delivered[run.request_id] == run.first_position + run.num_tokens
            if run.finish_reason is not None:
                self.finished.append((run.request_id, run.finish_reason))
        # Where there is nothing to do `advance` stops early, and time does not pass by itself.
        self.step_to(until_step)

    def leap_to(self, until_step: int) -> None:
        """As a server in virtual time does: single steps, and leaps in between."""
        engine = self.engine
        for _ in range(until_step - engine.steps_done):
            num_steps = engine.uneventful_steps(until_step - engine.steps_done)
            if num_steps:
                running = list(state(engine)["running"])
                engine.leap(num_steps)
                self.num_leapt_steps += num_steps
                assert list(state(engine)["running"]) == running, "something happened in an uneventful step"
                assert engine.step_totals.num_decodes == engine.step_totals.num_scheduled_tokens == len(running)
                for request_id in running:
                    self._deliver(request_id, num_steps)
            if engine.steps_done == until_step:
                break
            self._step()

    def step_to_the_end(self) -> Run:
        for _ in range(MAX_STEPS_TO_THE_END):
            if self.engine.stuck is not None or not self.engine.has_work:
                break
            self._step()
        return self.engine.run()

    def summary(self) -> dict[str, Any]:
        engine = self.engine
        return {
            "steps": engine.steps_done,
            "totals": engine.step_totals,
            "scheduled_tokens": engine.scheduled_tokens,
            "preemptions": engine.preemptions,
            "stuck": engine.stuck,
            "delivered": self.delivered,
            "finished": self.finished,
            "answers": self.answers,
            "stale": (engine.stale_cached_tokens, engine.stale_requests()),
            **state(engine),
        }

    def _step(self) -> None:
        step = self.engine.step()
        if self.settles:
            settle(self.engine)
        for request_id, num_tokens in step.emitted.items():
            self._deliver(request_id, num_tokens)
        self.finished += step.finished.items()

    def _deliver(self, request_id: str, num_tokens: int) -> None:
        self.delivered[request_id] = self.delivered.get(request_id, 0) + num_tokens


def difference(scenario: Scenario, rng: random.Random) -> str | None:
    """Where an engine that leaps, cut at random steps, leaves one that steps; None if nowhere."""
    events = [*scenario["events"]]
    for _ in range(rng.choice((0, 0, 0, 1, 5))):
        events.append({"before_step": rng.randint(1, 100), "op": "new_weights"})
    events.sort(key=lambda event: event["before_step"])
    cuts = {event["before_step"] for event in events}
    cuts |= {rng.randint(1, LAST_STEP) for _ in range(rng.choice((0, 3, 20, 100)))}

    stepping, advancing, leaping = Log(scenario, settles=True), Log(scenario), Log(scenario)
    for cut in sorted(cuts):
        stepping.step_to(cut - 1)
        advancing.advance_to(cut - 1)
        leaping.leap_to(cut - 1)
        expected = stepping.summary()
        for name, log in (("advance", advancing), ("leap", leaping)):
            for figure, got in log.summary().items():
                if got != expected[figure]:
                    return f"{scenario['name']}, {name} to step {cut - 1}: {figure} is {got}, not {expected[figure]}"
        audit(leaping.engine)
        if rng.random() < 0.1 and found(advancing.engine) != found(stepping.engine):
            return f"{scenario['name']}, step {cut - 1}: the prefix caches differ"
        for event in events:
            if event["before_step"] == cut:
                for log in (stepping, advancing, leaping):
                    log.happen(event)

    expected_run, run = stepping.step_to_the_end(), advancing.engine.run()
    if run != expected_run or list(run.finish_step) != list(expected_run.finish_step):
        return f"{scenario['name']}, run: {run}, not {expected_run}"
    if state(advancing.engine) != state(stepping.engine):
        return f"{scenario['name']}, after the run: {state(advancing.engine)}, not {state(stepping.engine)}"
    return None


def difference_in(number: int) -> str | None:
    return difference(random_scenario(SEED, number), random.Random(number))


def test_random_loads() -> None:
    """ROLLCAGE_LEAP_COUNT and ROLLCAGE_LEAP_SEED choose how many and which."""
    assert [d for number in range(COUNT) if (d := difference_in(number)) is not None] == []


@pytest.mark.parametrize("name", ["recorded_scenarios", "recorded_stuck", "own", "drift"])
def test_recorded_scenarios(name: str) -> None:
    schedules = read_schedules(name)
    for number, schedule in enumerate(schedules):
        engine = {**schedule["engine"], "vllm_version": schedule["vllm"]}
        assert difference({**schedule, "engine": engine}, random.Random(number)) is None


ticks_within, ticks_to_finish, settle_chain = Decodes.ticks_within, Decodes.ticks_to_finish, PrefixCache._settle


GENERATED_WHILE_IT_WAITS = {
    "name": "generated while it waits",
    "engine": {
        "block_size": 4,
        "num_gpu_blocks": 100,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 100,
        "enable_chunked_prefill": False,
    },
    "events": [
        {**request, "before_step": 1, "op": "add", "stop_at": None, "priority": 0, "arrival": 0}
        for request in (
            {"id": "a", "index": 0, "prompt": range(4), "max_tokens": 60},
            {"id": "b", "index": 1, "prompt": [*range(4), *range(100_000, 100_040)], "max_tokens": 9},
        )
    ],
}


def one_tick_too_many(self: Decodes, free_blocks: int, max_ticks: int) -> tuple[int, int]:
    num_ticks, num_blocks = ticks_within(self, free_blocks, max_ticks)
    return min(num_ticks + 1, max_ticks), num_blocks


def one_tick_later(self: Decodes) -> int:
    return ticks_to_finish(self) + 1


def nobody_preempted(self: Scheduler) -> tuple[list[Request], int]:
    return [], len(self.decodes.needing_block())


def grows_unseen(self: PrefixCache, chain: Chain) -> None:
    if len(chain.growing) == 1:
        settle_chain(self, chain)


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (Decodes, "ticks_within", one_tick_too_many),
        (Decodes, "ticks_to_finish", one_tick_later),
        (Scheduler, "preempt_for_steady", nobody_preempted),
        (leap, "stays_out", lambda _: True),
        (KVCacheManager, "may_hit_more", lambda *_: False),
        (PrefixCache, "_settle", grows_unseen),
    ],
    ids=["shortage", "finish", "preemption", "admission", "hit in mid-leap", "equal outputs"],
)
def test_a_wrong_leap_is_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, wrong)

    def is_noticed(scenario: Scenario) -> bool:
        try:
            return difference(scenario, random.Random(0)) is not None
        except (AssertionError, KeyError, IndexError):
            return True

    scenarios = (random_scenario(SEED, number) for number in range(200))
    assert any(is_noticed(scenario) for scenario in (GENERATED_WHILE_IT_WAITS, *scenarios))


def test_most_steps_of_a_rollout_are_leapt() -> None:
    engine = make_engine()
    add_all(engine, {"a": 5, "b": 9}, max_tokens=40)
    engine.step()
    assert engine.uneventful_steps(100) == 38
    assert engine.uneventful_steps(7) == 7
    engine.leap(38)
    assert engine.uneventful_steps(100) == 0
    assert engine.step().finished == {"a": "length", "b": "length"}


def test_a_leap_over_an_event_is_refused() -> None:
    engine = make_engine()
    add(engine, "a", 3, max_tokens=5)
    with pytest.raises(ValueError, match="num_steps=1 is not possible: it must be at most 0"):
        engine.leap(1)
    engine.step()
    with pytest.raises(ValueError, match="num_steps=4 is not possible: it must be at most 3"):
        engine.leap(4)


def test_a_prompt_that_is_generated_while_it_waits_is_admitted_in_its_step() -> None:
    assert difference(GENERATED_WHILE_IT_WAITS, random.Random(0)) is None
    log = Log(GENERATED_WHILE_IT_WAITS)
    for event in GENERATED_WHILE_IT_WAITS["events"]:
        log.happen(event)
    log.step_to(28)
    assert list(state(log.engine)["running"]) == ["a"]
    assert log.engine.uneventful_steps(10) == 0
    log.step_to(29)  # now 32 of its 44 tokens are cached, and 12 fit into the budget
    assert list(state(log.engine)["running"]) == ["a", "b"]


def test_a_head_that_nothing_helps_does_not_stop_a_leap() -> None:
    engine = make_engine(num_gpu_blocks=16)
    add(engine, "a", 8, max_tokens=30)
    add(engine, "b", 56)
    engine.step()
    assert engine.uneventful_steps(100) == 28


def test_leaps_go_on_over_events_that_the_caller_does_not_ask_for() -> None:
    engine = make_engine(num_gpu_blocks=7)
    add_all(engine, {"a": 6, "b": 6, "c": 6})
    runs = engine.advance(until_step=100)
    assert [(run.request_id, run.num_tokens, run.finish_reason) for run in runs] == [
        ("a", 8, "length"),
        ("b", 8, "length"),
        ("c", 8, "length"),
    ]
    assert (engine.steps_done, engine.preemptions) == (14, 2)


def test_a_head_whose_first_chunk_does_not_fit_does_not_stop_a_leap() -> None:
    """It would start with two cached blocks that nobody holds. They go one by one, and with each a free block goes."""
    engine = make_engine(num_gpu_blocks=17, scheduler_reserve_full_isl=False)
    add(engine, "gone", 9, max_tokens=1)
    add(engine, "long", 40, max_tokens=24)
    assert engine.step().finished == {"gone": "length"}
    gone = 1_000_000 * sum(map(ord, "gone"))
    add(engine, "head", 28, prompt_token_ids=(*range(gone, gone + 8), *range(20)))
    assert engine.uneventful_steps(100) == 22
    engine.leap(22)
    assert engine.step().finished == {"long": "length"}
    assert list(engine.step().scheduled) == ["head"]
