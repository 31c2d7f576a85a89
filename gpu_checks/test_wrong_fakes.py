"""A fake that is wrong in one thing is found out: each check can fail."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import sim.servers.server
from gpu_checks.cases import BUDGET, DEFERRED, EVERY_62, PINNED, aborts_after
from gpu_checks.engines import RealEngines
from gpu_checks.led_world import LedWorld
from gpu_checks.replay import RealRun, run_on_vllm, simulate_again
from gpu_checks.schedules import Load, Schedule, first_difference, fixed_loads
from sim.faults import AbortAll, AfterSent, AfterTokens, WeightUpdate
from sim.case import Case, Session, Turn
from sim.dialects.grants import Grant, take_grant
from sim.engine import Engine, EngineConfig
from sim.engine.timed import TimedEngine
from sim.servers.server import FakeRolloutServer
from sim.sut.interface import Sut
from sim.sut.registry import load_sut

# --- the simulated server


class LosesATokenAtAnAbort(FakeRolloutServer):
    def _abort(self, request: Any) -> None:
        if request.runs:
            position, tokens, version = request.runs.pop()
            request.runs.append((position, tokens - 1, version))
            request.tokens -= 1
        super()._abort(request)


class KeepsItsOldVersion(FakeRolloutServer):
    async def set_global_steps(self, global_steps: int) -> None:
        await super().set_global_steps(global_steps)
        self.version = 0


class RefusesInsteadOfParking(FakeRolloutServer):
    def _enter(self, request: Any) -> None:
        self._rejecting = True
        super()._enter(request)


class ForgetsToAbort(FakeRolloutServer):
    """As verl 0.9.0 on vLLM 0.32."""

    async def abort_all_requests(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        del args, kwargs
        return {"aborted_count": 0, "request_ids": []}


SERVERS = (LosesATokenAtAnAbort, KeepsItsOldVersion, RefusesInsteadOfParking, ForgetsToAbort)


class OneTokenMore(TimedEngine):
    """Goes one token past its limit."""

    def add(
        self, now_ns: int, request: int, prompt_ids: Any, max_tokens: int, stop_after: Any, base: Any = None
    ) -> None:
        super().add(now_ns, request, prompt_ids, max_tokens + 1, stop_after, base)


class LengthBeforeStop(TimedEngine):
    """Calls a stop on the last token a length."""

    def add(
        self, now_ns: int, request: int, prompt_ids: Any, max_tokens: int, stop_after: Any, base: Any = None
    ) -> None:
        super().add(now_ns, request, prompt_ids, max_tokens, None if stop_after == max_tokens else stop_after, base)


def _grants(difference: int) -> Callable[..., Grant]:
    def grant(*args: Any) -> Grant:
        right = take_grant(*args)
        return right._replace(tokens=right.tokens + difference)

    return grant


def _reasons(**changed: str) -> dict[str, Any]:
    return {**sim.servers.server.STOP_REASONS, "vllm": {**sim.servers.server.STOP_REASONS["vllm"], **changed}}


CASE = Case(
    BUDGET,
    (Session(16), Session(200, turns=(Turn(120), Turn(30)))),
    (
        *aborts_after(EVERY_62[0], pause_s=2.5),
        *aborts_after(EVERY_62[1], pause_s=0.2),
        WeightUpdate(AfterTokens(0, EVERY_62[2]), pause_s=0.2),
        AbortAll(AfterSent(0, 5), 0, pause_s=3.0),
    ),
)
"""Aborts, a weight update, a stop on the last token of a grant, and a request that arrives at a closed gate."""


@pytest.fixture(scope="module")
def real_run(engines: RealEngines) -> RealRun:
    return run_on_vllm(CASE, load_sut(DEFERRED), engines)


def test_right_fake_passes(real_run: RealRun) -> None:
    assert simulate_again(real_run) is None


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.__name__)
def test_wrong_server_is_found_out(server: type[FakeRolloutServer], real_run: RealRun) -> None:
    wrong = Sut(real_run.sut.name, real_run.sut.key, real_run.sut.factory, server)
    assert simulate_again(real_run, wrong)


@pytest.mark.parametrize("engine", [OneTokenMore, LengthBeforeStop], ids=lambda engine: engine.__name__)
def test_wrong_end_is_found_out(engine: type[TimedEngine], real_run: RealRun) -> None:
    class WrongWorld(LedWorld):
        engine_class = engine

    assert simulate_again(real_run, make_world=WrongWorld)


@pytest.mark.parametrize("difference", [1, -1])
def test_grant_off_by_one_is_found_out(difference: int, real_run: RealRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim.servers.server, "take_grant", _grants(difference))
    found = simulate_again(real_run)
    assert found
    assert "grant" in found


@pytest.mark.parametrize("changed", [{"length": "length"}, {"abort": "abort"}, {"stop": "stop"}], ids=str)
def test_changed_stop_reason_is_found_out(
    changed: dict[str, str], real_run: RealRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim.servers.server, "STOP_REASONS", _reasons(**changed))
    assert simulate_again(real_run)


def test_another_client_is_found_out(real_run: RealRun) -> None:
    assert simulate_again(real_run, load_sut(PINNED))


# --- the simulated scheduler

WRONG_SETTINGS: dict[str, Callable[[EngineConfig], dict[str, Any]]] = {
    "one more block": lambda config: {"num_gpu_blocks": config.num_gpu_blocks + 1},
    "one more token a step": lambda config: {"max_num_batched_tokens": config.max_num_batched_tokens + 1},
    "one more seat": lambda config: {"max_num_seqs": config.max_num_seqs + 1},
    "no prefix cache": lambda _: {"enable_prefix_caching": False},
    "a longer context": lambda config: {"max_model_len": config.max_model_len + 1},
}


@pytest.mark.parametrize("wrong", WRONG_SETTINGS)
def test_wrong_scheduler_is_found_out(wrong: str, schedules: Callable[[Load], Schedule]) -> None:
    def make(config: EngineConfig) -> Engine:
        return Engine(msgspec.structs.replace(config, **WRONG_SETTINGS[wrong](config)))

    assert any(first_difference(schedules(load), make) for load in fixed_loads())
