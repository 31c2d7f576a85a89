"""A fake that is wrong in one thing is found out: each check can fail."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from gpu_checks.cases import BUDGET, DEFERRED, EVERY_62, PINNED, aborts_after
from gpu_checks.engines import RealEngines
from gpu_checks.led_world import ROOMY
from gpu_checks.replay import RealRun, run_on_vllm, simulate_again
from gpu_checks.schedules import Load, Schedule, first_difference, fixed_loads
from sim.case import Case, Session, Turn
from sim.dialects import Dialect, Grant
from sim.engine import Engine, EngineConfig
from sim.engine.latency import Constant
from sim.engine.timed import TimedEngine
from sim.events import Ended, Event
from sim.faults import AbortAll, AfterSent, AfterTokens, WeightUpdate
from sim.servers.port import Events, Instead, MakeServer, RolloutServer, ServerParts
from sim.servers.server import SimulatedServer
from sim.sut.framework import Sut
from sim.sut.registry import load_sut

# --- the simulated server


class LosesATokenAtAnAbort(NamedTuple):
    """Events of a server whose aborted requests end with a token less than they decoded."""

    events: Events

    def add(self, event: Event) -> None:
        if isinstance(event, Ended) and event.outcome == "abort" and event.tokens:
            event = msgspec.structs.replace(event, tokens=event.tokens - 1)
        self.events.add(event)


def loses_a_token_at_an_abort(parts: ServerParts) -> RolloutServer:
    return SimulatedServer(dataclasses.replace(parts, events=LosesATokenAtAnAbort(parts.events)))


def keeps_its_old_version(parts: ServerParts) -> RolloutServer:
    def make_output(token_ids: Any, log_probs: Any, stop_reason: str | None, version: int) -> Any:
        del version
        return parts.make_output(token_ids, log_probs, stop_reason, 0)

    return SimulatedServer(dataclasses.replace(parts, make_output=make_output))


def refuses_instead_of_parking(parts: ServerParts) -> RolloutServer:
    gate: Any = Instead(parts.gate, rejects=True)
    return SimulatedServer(dataclasses.replace(parts, gate=gate))


def forgets_to_abort(parts: ServerParts) -> RolloutServer:
    """As verl 0.9.0 on vLLM 0.32."""

    async def abort_all(**_: bool) -> list[str]:
        return []

    server: Any = Instead(SimulatedServer(parts), abort_all=abort_all)
    return server  # type: ignore[no-any-return]


SERVERS = (loses_a_token_at_an_abort, keeps_its_old_version, refuses_instead_of_parking, forgets_to_abort)


class OneTokenMore(TimedEngine):
    """Goes one token past its limit."""

    def add(self, now_ns: int, request: int, prompt_ids: Any, max_tokens: int, stop_after: Any, *more: Any) -> None:
        super().add(now_ns, request, prompt_ids, max_tokens + 1, stop_after, *more)


class LengthBeforeStop(TimedEngine):
    """Calls a stop on the last token a length."""

    def add(self, now_ns: int, request: int, prompt_ids: Any, max_tokens: int, stop_after: Any, *more: Any) -> None:
        super().add(now_ns, request, prompt_ids, max_tokens, None if stop_after == max_tokens else stop_after, *more)


def with_dialect(change: Callable[[Dialect], Any]) -> MakeServer:
    """Servers of another dialect than their own."""
    return lambda parts: SimulatedServer(dataclasses.replace(parts, dialect=change(parts.dialect)))


def _grants(difference: int) -> MakeServer:
    def change(right: Dialect) -> Any:
        def take_grant(*args: Any) -> Grant:
            grant = right.take_grant(*args)
            return grant._replace(tokens=grant.tokens + difference)

        return Instead(right, take_grant=take_grant)

    return with_dialect(change)


def _reasons(**changed: str) -> MakeServer:
    return with_dialect(lambda right: dataclasses.replace(right, stop_reasons={**right.stop_reasons, **changed}))


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


def wrong(sut: Sut, make_server: MakeServer) -> Sut:
    return dataclasses.replace(sut, make_server=make_server)


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.__name__)
def test_wrong_server_is_found_out(server: MakeServer, real_run: RealRun) -> None:
    assert simulate_again(real_run, wrong(real_run.sut, server))


@pytest.mark.parametrize("engine", [OneTokenMore, LengthBeforeStop], ids=lambda engine: engine.__name__)
def test_wrong_end_is_found_out(engine: type[TimedEngine], real_run: RealRun) -> None:
    assert simulate_again(real_run, make_engine=lambda: engine(Engine(ROOMY), Constant(1)))


@pytest.mark.parametrize("difference", [1, -1])
def test_grant_off_by_one_is_found_out(difference: int, real_run: RealRun) -> None:
    found = simulate_again(real_run, wrong(real_run.sut, _grants(difference)))
    assert found
    assert "grant" in found


@pytest.mark.parametrize("changed", [{"length": "length"}, {"abort": "abort"}, {"stop": "stop"}], ids=str)
def test_changed_stop_reason_is_found_out(changed: dict[str, str], real_run: RealRun) -> None:
    assert simulate_again(real_run, wrong(real_run.sut, _reasons(**changed)))


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
