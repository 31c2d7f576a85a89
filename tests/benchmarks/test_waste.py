"""Wasted tokens of fixed seeded loads under each policy and update interval, and how fast the simulator gets them.

Tokens are compared exactly with `waste_baseline.json`; ROLLCAGE_WRITE_BASELINE=1 writes it anew. Times are only
compared within one run.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.case import Budget
from sim.waste import lengths
from sim.waste.ledger import LOSSES
from sim.waste.loads import LOADS
from sim.waste.variants import parse
from sim.waste.what_if import Comparison, Conditions, compare

BASELINE = Path(__file__).with_name("waste_baseline.json")
POLICIES = ("deferred", "pinned", "partial-off")
ON_ENGINES = ("deferred", "pinned", "pinned+cache-kept", "pinned+keep", "pinned+keep+cache-kept", "pinned+wait")
"""Policies that differ in what becomes of the KV, on simulated engines."""
INTERVALS = (1000, 4000, 16_000)
COUNT = {"seed": 40, "reasoning": 24, "groups": 64, "tools": 24}
"""Responses of each load: enough for its tail, few enough for the simulator."""

PREFILL = ("recomputed_tokens", "preempted_tokens", "cached_tokens", "stale_kv_tokens")

LEAST_SPEED_UP = 10
"""Computing a load of 10,000 is at least so many times as fast, a response, as simulating one of it."""


def conditions(name: str) -> Conditions:
    named = LOADS[name]
    budget = Budget(named.prompt_length, named.response_length, max_position_embeddings=40_960)
    return Conditions(budget=budget, replicas=8)


def load(name: str, count: int) -> lengths.Lengths:
    return lengths.named(name, count, 0, most_prompt=LOADS[name].prompt_length)


def wasted(comparison: Comparison) -> dict[str, dict[str, dict[str, int]]]:
    """policy → update interval → tokens by name."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for row in comparison.rows:
        tokens = {"decoded": row.waste.decoded.tokens, "kept": row.waste.kept_tokens}
        tokens |= {loss: row.waste.fates[loss].tokens for loss in LOSSES if row.waste.fates[loss].tokens}
        tokens |= {count: getattr(row.waste, count) for count in PREFILL if getattr(row.waste, count)}
        found.setdefault(row.variant, {})[str(row.update_tokens)] = tokens
    return found


def compared(name: str, *, simulate: bool = True, with_engine: bool = False) -> Comparison:
    chosen = msgspec.structs.replace(conditions(name), simulate=simulate, with_engine=with_engine)
    policies = [parse(policy) for policy in (ON_ENGINES if with_engine else POLICIES)]
    return compare(chosen, load(name, COUNT[name]), policies, list(INTERVALS))


def check(name: str, found: dict[str, Any]) -> None:
    baseline = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    if os.environ.get("ROLLCAGE_WRITE_BASELINE"):
        baseline[name] = found
        BASELINE.write_text(json.dumps(baseline, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert found == baseline[name]


@pytest.mark.parametrize("name", COUNT)
def test_wasted_tokens_as_in_the_baseline(name: str) -> None:
    check(name, wasted(compared(name, simulate=False)))


@pytest.mark.parametrize("with_engine", [False, True], ids=["constant-rate", "engines"])
@pytest.mark.parametrize("name", COUNT)
def test_the_simulator_on(benchmark: Any, name: str, with_engine: bool) -> None:
    found = benchmark.pedantic(lambda: compared(name, with_engine=with_engine), rounds=1, warmup_rounds=0)
    tokens = wasted(found)
    check(f"{name} on engines" if with_engine else name, tokens)
    decoded = sum(row.waste.decoded.tokens for row in found.rows)
    benchmark.extra_info |= {
        "responses": COUNT[name] * len(found.rows),
        "decode_tokens_per_s": round(decoded / benchmark.stats["mean"]),
        "wasted_tokens": {
            policy: {interval: row["decoded"] - row["kept"] for interval, row in rows.items()}
            for policy, rows in tokens.items()
        },
        "prefilled_again_tokens": {
            policy: {
                interval: row.get("recomputed_tokens", 0) + row.get("preempted_tokens", 0)
                for interval, row in rows.items()
            }
            for policy, rows in tokens.items()
        },
    }


def test_computing_a_load_against_simulating_it(benchmark: Any) -> None:
    """The issue's size: 10,000 responses, mean 2,000 tokens, 8 replicas, 20 intervals × 4 policies."""
    policies = [parse(name) for name in (*POLICIES, "pinned+not-sticky")]
    intervals: list[int | None] = list(range(500, 500 + 20 * 750, 750))
    whole = benchmark.pedantic(
        lambda: compare(conditions("chat"), load("chat", 10_000), policies, intervals), rounds=1, warmup_rounds=0
    )
    assert {row.how for row in whole.rows} == {"computed"}
    assert whole.sampled == 80 * 40
    few = msgspec.structs.replace(conditions("chat"), simulate=True)
    started = time.perf_counter()
    simulated = compare(few, load("chat", 40), policies, intervals[:5])
    of_simulation_s = (time.perf_counter() - started) / (40 * len(simulated.rows))
    of_computing_s = benchmark.stats["mean"] / (10_000 * len(whole.rows))
    benchmark.extra_info |= {
        "responses": 10_000 * len(whole.rows),
        "speed_up": round(of_simulation_s / of_computing_s),
    }
    print(
        f"\n{benchmark.stats['mean']:.1f} s for 800,000 responses, {of_simulation_s / of_computing_s:.0f} × simulating"
    )
    assert of_simulation_s / of_computing_s >= LEAST_SPEED_UP
