"""The recorded loads: a thousand requests each, all there before the first step."""

from typing import Any

from sim.engine import Engine, EngineConfig, EngineRequest
from tests.conformance.replay import read_schedules
from tests.conformance.scenarios import Scenario

LOADS: dict[str, dict[str, Any]] = {load["name"]: load for load in read_schedules("loads")}


def settings_of_load(load: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_gpu_blocks": load["usable_blocks"] + 1,
        "block_size": load["block_size"],
        "max_num_seqs": load["max_num_seqs"],
        "max_num_batched_tokens": load["max_num_batched_tokens"],
        "max_model_len": load["max_model_len"],
        "enable_prefix_caching": load["enable_prefix_caching"],
    }


def engine_with_load(load: dict[str, Any]) -> Engine:
    engine = Engine(EngineConfig(**settings_of_load(load)))
    lengths = zip(load["prompt_lengths"], load["response_lengths"], strict=True)
    for i, (num_prompt_tokens, num_output_tokens) in enumerate(lengths):
        first = 100_000 * (i // load["prompts_shared_by"] + 1)
        engine.add(
            EngineRequest(
                request_id=f"q{i}",
                prompt_token_ids=range(first, first + num_prompt_tokens),
                max_tokens=num_output_tokens,
                output_base=10**9 + 10**6 * i,
            )
        )
    return engine


def scenario_of_load(load: dict[str, Any]) -> Scenario:
    """The load as a scenario. Its output tokens are others, which matters to no figure."""
    config = EngineConfig(**settings_of_load(load))
    settings = {field: getattr(config, field) for field in config.__struct_fields__ if field != "vllm_version"}
    lengths = zip(load["prompt_lengths"], load["response_lengths"], strict=True)
    events = []
    for i, (num_prompt_tokens, num_output_tokens) in enumerate(lengths):
        first = 100_000 * (i // load["prompts_shared_by"] + 1)
        events.append(
            {
                "before_step": 1,
                "op": "add",
                "id": f"q{i}",
                "index": i,
                "prompt": range(first, first + num_prompt_tokens),
                "max_tokens": num_output_tokens,
                "stop_at": None,
                "priority": 0,
                "arrival": i,
            }
        )
    return {"name": load["name"], "engine": settings, "events": events}
