"""Run a recorded schedule on our engine and say where the two differ."""

import json
import lzma
from pathlib import Path
from typing import Any

import msgspec

from sim.engine import Engine, EngineConfig, EngineRequest
from tests.conformance.scenarios import Scenario, output_base

STEP_FIELDS = ("scheduled", "cached", "preempted", "running", "waiting", "emitted", "finished", "free_blocks")


def read_schedules(name: str) -> list[Scenario]:
    """The schedules in tests/data/schedules/."""
    path = Path(__file__).parent.parent / "data" / "schedules" / f"{name}.jsonl.xz"
    with lzma.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def happen(engine: Engine, event: dict[str, Any]) -> str | None:
    """Let an event happen to the engine; the difference to what was recorded, if any."""
    match event["op"]:
        case "add":
            engine.add(
                EngineRequest(
                    request_id=event["id"],
                    prompt_token_ids=event["prompt"],
                    max_tokens=event["max_tokens"],
                    min_tokens=event.get("min_tokens", 0),
                    stop_at=event["stop_at"],
                    priority=event["priority"],
                    arrival_time=event["arrival"],
                    output_base=output_base(event["index"]),
                )
            )
        case "abort":
            live = engine.abort(event["id"])
            if live != event["live"]:
                return f"abort of {event['id']}: live {live}, recorded {event['live']}"
        case "reset_prefix_cache":
            ok = engine.reset_prefix_cache(event.get("reset_running_requests", False))
            if ok != event["ok"]:
                return f"cache reset: {ok}, recorded {event['ok']}"
        case "pause":
            engine.pause(event["mode"])
        case "resume":
            engine.resume()
        case other:
            raise ValueError(f"op={other!r} is not possible")
    return None


def first_difference(schedule: Scenario, **other_settings: Any) -> str | None:
    """Where the engine first differs from a schedule; None if every step is equal.

    Args:
        schedule: what was recorded.
        other_settings: settings to replace, so that a difference is to be expected.
    """
    config = EngineConfig(**schedule["engine"], vllm_version=schedule["vllm"])
    engine = Engine(msgspec.structs.replace(config, **other_settings))
    events = iter(schedule["events"])
    event = next(events, None)
    for number, recorded in enumerate(schedule["steps"], start=1):
        while event is not None and event["before_step"] <= number:
            difference = happen(engine, event)
            if difference is not None:
                return f"{schedule['name']}, before step {number}: {difference}"
            event = next(events, None)
        step = engine.step()
        for field in STEP_FIELDS:
            ours = getattr(step, field)
            if ours != recorded[field]:
                return f"{schedule['name']}, step {number}: {field} is {ours}, recorded {recorded[field]}"
    if engine.preemptions != schedule["preemptions"]:
        return f"{schedule['name']}: {engine.preemptions} preemptions, recorded {schedule['preemptions']}"
    return None
