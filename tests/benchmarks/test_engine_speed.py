"""Decode tokens a second of plain stepping, one core, assertions on.

    python -m pytest tests/benchmarks/test_engine_speed.py --benchmark-only

The real scheduler does 0.05 to 0.07 million on the same loads (`recorder_seconds` in the recorded loads).
"""

from typing import Any

import pytest

from sim.engine import Engine
from tests.conformance.loads import LOADS, engine_with_load

FLOOR_TOKENS_PER_S = {"W1": 1_000_000, "RL": 1_000_000}


def step_to_the_end(load: dict[str, Any]) -> Engine:
    engine = engine_with_load(load)
    for _ in range(load["steps"]):
        engine.step()
    return engine


@pytest.mark.parametrize("name", LOADS)
def test_plain_stepping(benchmark: Any, name: str) -> None:
    load = LOADS[name]
    engine = benchmark.pedantic(step_to_the_end, args=(load,), rounds=5)
    assert not engine.has_work
    benchmark.extra_info["decode_tokens_per_s"] = tokens_per_s = load["decode_tokens"] / benchmark.stats["median"]
    benchmark.extra_info["times_the_real_scheduler"] = load["recorder_seconds"] / benchmark.stats["median"]
    print(f"\n{name}: {tokens_per_s / 1e6:.2f}M decode tokens/s")
    assert tokens_per_s >= FLOOR_TOKENS_PER_S.get(name, 0)
