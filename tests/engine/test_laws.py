"""What must hold in every scenario: conservation, one way of stepping for another, and stuck said only of the stuck."""

from collections.abc import Iterator
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sim.engine import Engine, EngineConfig, TokenRun
from tests.conformance.replay import happen
from tests.conformance.scenarios import Scenario, random_scenario
from tests.engine.audit import audit

scenarios = st.builds(random_scenario, st.just(0), st.integers(0, 10**9))
LAST_STEP = 400


def engine_for(scenario: Scenario) -> Engine:
    return Engine(EngineConfig(**scenario["engine"]))


def let_happen(engine: Engine, event: dict[str, Any]) -> None:
    """Without judging what comes of it, as the scenario has no recorded answers."""
    happen(engine, {**event, "live": None, "ok": None})


def steps_with_events(scenario: Scenario) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    for number in range(1, LAST_STEP + 1):
        yield number, [event for event in scenario["events"] if event["before_step"] == number]


@given(scenarios)
@settings(max_examples=40, deadline=None)
def test_nothing_is_lost_or_invented(scenario: Scenario) -> None:
    engine, config = engine_for(scenario), EngineConfig(**scenario["engine"])
    emitted: dict[str, int] = {}
    for _, events in steps_with_events(scenario):
        for event in events:
            let_happen(engine, event)
            audit(engine)
        step = engine.step()
        audit(engine)
        assert sum(step.scheduled.values()) == step.totals.num_scheduled_tokens <= config.max_num_batched_tokens
        assert step.totals.num_decodes <= len(step.running) <= config.max_num_seqs
        assert set(step.scheduled) <= set(step.running)
        assert not set(step.running) & set(step.waiting)
        assert set(step.finished) <= set(step.emitted)
        for request_id in step.emitted:
            emitted[request_id] = emitted.get(request_id, 0) + 1
    for event in scenario["events"]:
        if event["op"] == "add":
            assert emitted.get(event["id"], 0) <= event["max_tokens"]


@given(scenarios, st.data())
@settings(max_examples=100, deadline=None)
def test_advancing_is_stepping(scenario: Scenario, data: st.DataObject) -> None:
    stepping, advancing = engine_for(scenario), engine_for(scenario)
    cuts = data.draw(st.sets(st.integers(1, LAST_STEP)))
    stepped: dict[str, int] = {}
    advanced: dict[str, int] = {}
    finished_stepping: dict[str, str] = {}
    finished_advancing: dict[str, str] = {}

    def advance(until_step: int) -> None:
        for run in advancing.advance(until_step):
            assert isinstance(run, TokenRun)
            assert run.first_position == advanced.get(run.request_id, 0)
            assert run.num_tokens > 0
            advanced[run.request_id] = run.first_position + run.num_tokens
            if run.finish_reason is not None:
                finished_advancing[run.request_id] = run.finish_reason

    for number, events in steps_with_events(scenario):
        if events or number in cuts:
            advance(number - 1)
            # Where there is nothing to do `advance` stops early, and time does not pass by itself.
            for _ in range(number - 1 - advancing.steps_done):
                assert not advancing.step().emitted
            assert advanced == stepped
            assert finished_advancing == finished_stepping
        for event in events:
            let_happen(stepping, event)
            let_happen(advancing, event)
        step = stepping.step()
        for request_id in step.emitted:
            stepped[request_id] = stepped.get(request_id, 0) + 1
        finished_stepping.update(step.finished)


def can_ever_finish(event: dict[str, Any], config: EngineConfig) -> bool:
    """Whether the pool and the budget could hold the request if it were alone."""
    length = min(event["max_tokens"], config.max_model_len - len(event["prompt"]))
    stop_at = event["stop_at"]
    stops = stop_at is not None and stop_at < length
    num_output_tokens = stop_at + 1 if stops else length
    # The KV of the last token is never needed, unless a stop comes while another token is being computed.
    unseen = 0 if config.async_scheduling and stops and num_output_tokens < length else 1
    num_tokens = len(event["prompt"]) + num_output_tokens - unseen
    return -(-num_tokens // config.block_size) <= config.usable_blocks


@given(scenarios)
@example(random_scenario(0, 6433))  # three that preempt one another, async, recomputing a token a step
@settings(max_examples=150, deadline=None)
def test_stuck_is_said_of_those_that_cannot_finish_and_of_no_other(scenario: Scenario) -> None:
    # With chunked prefill off a budget below max_model_len is another reason to be stuck, tested by itself.
    config = EngineConfig(**{**scenario["engine"], "max_num_batched_tokens": scenario["engine"]["max_model_len"]})
    engine = Engine(config)
    adds = [event for event in scenario["events"] if event["op"] == "add"]
    for event in adds:
        let_happen(engine, event)
    engine.advance(until_step=50_000)
    if engine.stuck is None:
        engine.advance(until_step=2_000_000)  # forty long prompts, a token of one of them a step
        assert not engine.has_work
        assert all(can_ever_finish(event, config) for event in adds)
    else:
        assert engine.steps_done < 50_000
        assert "preempt one another" in engine.stuck or not all(can_ever_finish(event, config) for event in adds)
        assert not any(engine.step().emitted for _ in range(300))
