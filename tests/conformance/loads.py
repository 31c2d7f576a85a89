"""The recorded loads: a thousand requests each, all there before the first step."""

from typing import Any

from sim.engine import Engine, EngineConfig, EngineRequest
from tests.conformance.replay import read_schedules

LOADS: dict[str, dict[str, Any]] = {load["name"]: load for load in read_schedules("loads")}


def engine_with_load(load: dict[str, Any]) -> Engine:
    engine = Engine(
        EngineConfig(
            num_gpu_blocks=load["usable_blocks"] + 1,
            block_size=load["block_size"],
            max_num_seqs=load["max_num_seqs"],
            max_num_batched_tokens=load["max_num_batched_tokens"],
            max_model_len=load["max_model_len"],
            enable_prefix_caching=load["enable_prefix_caching"],
        )
    )
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
