"""Worlds of the size of a training run, and what one costs. As a program: runs one, in a process of its own.

python -m tests.benchmarks.large_worlds '{"requests": 1000000, "replicas": 64}'
"""

import json
import resource
import sys
import time

import msgspec

from sim.case import Budget, Case, EngineSettings, ServerSettings, Session, Turn
from sim.engine.config import PauseMode
from sim.faults import Every, WeightUpdate
from sim.invariants.judging import SITTING_EVENTS, Judge
from sim.sut.registry import CLEAN, load_sut
from sim.world import World
from tests.conformance.loads import LOADS

TOKEN_S = 0.01


class Size(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which world."""

    requests: int
    """In whole rounds of the thousand of load GRPO."""
    replicas: int = 1
    live_per_replica: int = 128
    times_longer: int = 1
    """How much longer than in GRPO the responses are."""
    update_every_steps: int | None = None
    pause_mode: PauseMode = "abort"
    reset_prefix_cache: bool = True


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What it took, invariants and digest included."""

    cpu_s: float
    most_memory_mb: float
    """The most that the process has had."""
    requests: int
    """Attempts: a request that is resumed counts again."""
    decoded_tokens: int
    most_live: int
    violations: dict[str, int]


def case_of(size: Size) -> Case:
    """GRPO's lengths, eight at a time with one prompt; on each replica the settings of the load."""
    load = LOADS["GRPO"]
    lengths = zip(load["prompt_lengths"], load["response_lengths"], strict=True)
    group = load["prompts_shared_by"]
    sessions = tuple(
        Session(
            prompt, (Turn(size.times_longer * response),), shares_prompt_with=None if i % group == 0 else i - i % group
        )
        for i, (prompt, response) in enumerate(lengths)
    )
    response_length = size.times_longer * max(load["response_lengths"])
    update = WeightUpdate(
        Every((size.update_every_steps or 1) * TOKEN_S),
        pause_s=0.5,
        pause_mode=size.pause_mode,
        reset_prefix_cache=size.reset_prefix_cache,
    )
    context = max(load["max_model_len"], 2048 + response_length)
    return Case(
        budget=Budget(2048, response_length, context, context),
        sessions=sessions,
        faults=() if size.update_every_steps is None else (update,),
        replicas=size.replicas,
        server=ServerSettings(
            token_time_s=TOKEN_S,
            engine=EngineSettings(
                num_gpu_blocks=size.times_longer * load["usable_blocks"] + 1,
                block_size=load["block_size"],
                max_num_seqs=load["max_num_seqs"],
                max_num_batched_tokens=load["max_num_batched_tokens"],
            ),
        ),
        repeat=size.requests // len(sessions),
        max_concurrent_sessions=size.replicas * size.live_per_replica,
    )


def cost_of(size: Size) -> Cost:
    """Runs the world on the reference client."""
    case, clock = case_of(size), time.process_time
    start_s = clock()
    judge = Judge(case, sitting_events=SITTING_EVENTS)
    trace = World(case, load_sut(CLEAN), observers=[judge]).run()
    cpu_s = clock() - start_s
    findings = judge.findings
    assert trace.is_done
    assert findings.sessions == case.num_sessions
    return Cost(
        cpu_s=cpu_s,
        most_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        / (1 << (20 if sys.platform == "darwin" else 10)),
        requests=findings.attempts,
        decoded_tokens=findings.decoded_tokens,
        most_live=findings.most_live,
        violations=dict(findings.counts),
    )


if __name__ == "__main__":
    json.dump(msgspec.to_builtins(cost_of(msgspec.json.decode(sys.argv[1], type=Size))), sys.stdout)
