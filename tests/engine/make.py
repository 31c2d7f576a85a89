"""Small engines for tests that read as documentation."""

from collections.abc import Mapping
from typing import Any

from sim.engine import Engine, EngineConfig, EngineRequest


def make_engine(**settings: Any) -> Engine:
    """A pool of 100 usable blocks of 4 tokens, and room for all that a test does, unless it says otherwise."""
    defaults: dict[str, Any] = {
        "num_gpu_blocks": 101,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
    }
    return Engine(EngineConfig(**(defaults | settings)))


def add(engine: Engine, request_id: str, num_prompt_tokens: int, max_tokens: int = 8, **fields: Any) -> None:
    """A request whose tokens are like no other's."""
    base = 1_000_000 * sum(ord(letter) for letter in request_id)
    fields = {"prompt_token_ids": range(base, base + num_prompt_tokens), "output_base": base + 500_000} | fields
    engine.add(EngineRequest(request_id=request_id, max_tokens=max_tokens, **fields))


def add_all(engine: Engine, prompts: Mapping[str, int], max_tokens: int = 8) -> None:
    for request_id, num_prompt_tokens in prompts.items():
        add(engine, request_id, num_prompt_tokens, max_tokens)


def scheduled(engine: Engine, num_steps: int) -> list[dict[str, int]]:
    return [engine.step().scheduled for _ in range(num_steps)]
