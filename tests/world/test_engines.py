"""Worlds on engines of all kinds."""

import pytest

from sim.case import (
    Budget,
    Case,
    EngineSettings,
    FittedLatency,
    RooflineLatency,
    ServerSettings,
    Session,
    Turn,
)
from sim.clock import to_ns
from sim.engine import Engine, EngineConfig
from sim.engine.latency import Constant
from sim.engine.timed import TimedEngine
from sim.events import Prefilled
from sim.faults import (
    AbortAll,
    AfterTokens,
    AtTime,
    WeightUpdate,
)
from sim.invariants.judging import judge
from sim.sut.registry import CLEAN, load_sut
from sim.world import World, run_world
from sim.world.ports import Ports
from tests.world.worlds import BUDGET


def small_pool(case):
    """An engine with a pool that vLLM would not start with, so that a long prompt never fits."""
    config = EngineConfig(num_gpu_blocks=3, block_size=4, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64)
    return TimedEngine(Engine(config), Constant(to_ns(0.01)))


@pytest.mark.parametrize("faults", [(), (AbortAll(AtTime(1.0), 0),)])
def test_a_request_that_never_fits_ends_the_world_with_the_engines_reason(faults):
    """An abort ends it, after 60 s of waiting for its first token, and the client sends it again."""
    case = Case(BUDGET, (Session(4, (Turn(2),)), Session(12)), faults)
    world = World(case, load_sut(CLEAN), ports=Ports(make_engine=small_pool))
    (violation,) = [each for each in judge(case, world.run()) if each.invariant == "V1"]
    assert violation.message.startswith(f"deadlock at {62 if faults else 0.03:g}")
    assert (
        f"replica 0 is stuck: request '{2 if faults else 1}' at the head of the queue needs 3 blocks and the pool"
        in (violation.message)
    )
    assert world.steps < 100_000


@pytest.mark.parametrize("latency", [RooflineLatency("H100-SXM", "Qwen2.5-7B"), FittedLatency(0.01, 1e-5, 1e-8)])
@pytest.mark.parametrize("engine", [EngineSettings(), EngineSettings(6, 16, 4, 64)])
def test_worlds_end_whatever_a_step_takes_and_however_small_the_pool(latency, engine):
    server = ServerSettings(engine=engine, latency=latency)
    sessions = tuple(Session(4, arrival_s=0.01 * index) for index in range(12))
    case = Case(Budget(16, 48, 64), sessions, (WeightUpdate(AfterTokens(3, 20)),), server=server)
    trace = run_world(case, load_sut(CLEAN))
    assert trace.is_done
    assert judge(case, trace) == []
    prefilled = [event for event in trace.events if isinstance(event, Prefilled)]
    assert any(event.recomputed_tokens for event in prefilled) == (engine.num_gpu_blocks is not None)
