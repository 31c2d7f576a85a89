"""The machinery of gpu_checks itself, on a stub of an engine: what it reproduces, and what it finds out."""

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest

from gpu_checks import real_server
from gpu_checks.cases import CORPUS, DEFERRED, OVERRUNS, PINNED, KeptCase, load, overrun, own_cases
from gpu_checks.points import Name, Point, Points
from gpu_checks.real_world import RealLoop
from gpu_checks.replay import RealReplay, aimed, replay, run_on_vllm, simulate_again, summary, table
from sim.case import Budget, Case, Schedule, ServerSettings, Session
from sim.events import Ended, Event
from sim.faults import AfterTokens, AtTime, ClearSticky, Every, WeightUpdate
from sim.servers.port import Events, RolloutServer, ServerParts
from sim.servers.server import SimulatedServer
from sim.sut.registry import load_sut
from tests.gpu_checks.stub_engine import StubEngine, StubEngines, params

CHOSEN = (
    "abort-at-three",
    "abort-overtakes-request",
    "cancelled-call",
    "hybrid-update",
    "lost-on-resume",
    "overrun-64-256-16",
    "few-tokens",
    "limits-spelled",
    "no-gate",
    "replicas-come-and-go",
    "stops-by-itself",
    "weight-updates",
)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealLoop]:
    monkeypatch.setattr(real_server, "delta_params", params)
    made = RealLoop(speed=150.0)
    yield made
    made.close()


def chosen() -> list[tuple[KeptCase, str]]:
    cases = [kept for kept in (*load([CORPUS]), *own_cases()) if kept.name in CHOSEN]
    assert len(cases) == len(CHOSEN)
    return [(kept, name) for kept in cases for name in kept.expected if name.startswith("reference:")]


@pytest.mark.parametrize(("kept", "sut_name"), chosen(), ids=lambda value: getattr(value, "name", value))
def test_case_is_reproduced(kept: KeptCase, sut_name: str, loop: RealLoop) -> None:
    result = replay(kept.name, kept.case, load_sut(sut_name), StubEngines(loop), kept.expected[sut_name])  # type: ignore[arg-type]
    assert result.verdict in ("reproduced", "not expressible"), result.detail


def test_overrun_comes_to_the_token(loop: RealLoop) -> None:
    engines: Any = StubEngines(loop)
    assert replay("", overrun(16), load_sut(DEFERRED), engines).decoded_tokens == OVERRUNS[16]
    assert replay("", overrun(16), load_sut(PINNED), engines).decoded_tokens == 256


class GoesOnePastItsLimit(StubEngine):
    def length(self, params: Any) -> tuple[int, str]:
        tokens, reason = super().length(params)
        return tokens + 1, reason


class CallsAStopALength(StubEngine):
    def length(self, params: Any) -> tuple[int, str]:
        return super().length(params)[0], "length"


class IgnoresStops(StubEngine):
    def length(self, params: Any) -> tuple[int, str]:
        return params.max_tokens, "length"


class AbortsNobody(StubEngine):
    async def pause_generation(self, mode: str = "abort", clear_cache: bool = True) -> None:
        """Says that it has."""

    async def abort(self, request_id: str) -> None:
        """Says that it has."""


@pytest.mark.parametrize("engine", [GoesOnePastItsLimit, IgnoresStops, CallsAStopALength])
def test_an_engine_that_does_something_else_is_a_miss(engine: type[StubEngine], loop: RealLoop) -> None:
    cases = {kept.name: kept.case for kept in own_cases()}
    engines: Any = StubEngines(loop, engine)
    result = replay("stops-by-itself", cases["stops-by-itself"], load_sut(PINNED), engines)
    assert result.verdict == "missed"
    assert "on vLLM" in result.detail


def test_an_abort_that_ends_nothing_is_an_error(loop: RealLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_server, "ENDING_TIMEOUT_S", 1.0)
    engines: Any = StubEngines(loop, AbortsNobody)
    result = replay("overrun-16", overrun(16), load_sut(PINNED), engines)
    assert result.verdict == "missed"


class LosesATokenAtAnAbort(NamedTuple):
    """Events of a server whose aborted requests end with a token less than they decoded."""

    events: Events

    def add(self, event: Event) -> None:
        if isinstance(event, Ended) and event.outcome == "abort" and event.tokens:
            event = msgspec.structs.replace(event, tokens=event.tokens - 1)
        self.events.add(event)


def loses_a_token_at_an_abort(parts: ServerParts) -> RolloutServer:
    return SimulatedServer(dataclasses.replace(parts, events=LosesATokenAtAnAbort(parts.events)))


def test_a_wrong_fake_is_found_out(loop: RealLoop) -> None:
    sut = load_sut(DEFERRED)
    engines: Any = StubEngines(loop)
    real = run_on_vllm(overrun(16), sut, engines)
    assert simulate_again(real) is None
    found = simulate_again(real, dataclasses.replace(sut, make_server=loses_a_token_at_an_abort))
    assert found
    assert "tokens in its end" in found


def test_a_simulation_that_leaves_the_points_says_where(loop: RealLoop) -> None:
    engines: Any = StubEngines(loop)
    real = run_on_vllm(overrun(16), load_sut(DEFERRED), engines)
    last_ns = real.points.order[-1].t_ns
    more = Points([*real.points.order, Point(Name("resumed", (7,), 0), last_ns)], real.points.held_tokens)
    found = simulate_again(replace(real, points=more))
    assert found
    assert f"never came to point {len(real.points.order)} of {len(more.order)}: resumed 7" in found


@pytest.mark.parametrize(
    ("case", "sut_name", "reason"),
    [
        (Case(Budget(8, 8), (Session(1),), (ClearSticky(AtTime(1.0)),)), PINNED, "waits for a time"),
        (Case(Budget(8, 8), (Session(1),), (WeightUpdate(Every(1.0)),)), PINNED, "waits for a time"),
        (Case(Budget(8, 8), (Session(1),), server=ServerSettings(dialect="sglang")), PINNED, "sglang"),
        (Case(Budget(8, 8), (Session(1), Session(1, shares_prompt_with=0))), PINNED, "share a prompt"),
        (
            Case(Budget(8, 8), (Session(1),), (WeightUpdate(AfterTokens(0, 1), pause_mode="keep"),)),
            PINNED,
            "pauses with mode keep",
        ),
        (Case(Budget(8, 8), (Session(1),)), "reference:deaf-server", "in the simulated server"),
        (Case(Budget(8, 8), (Session(1),), replicas=4), PINNED, "4 replicas"),
        (Case(Budget(8, 8), (Session(1),), schedule=Schedule("random", 1)), PINNED, "order of callbacks"),
        (Case(Budget(8, 8, max_position_embeddings=65_536), (Session(1),)), PINNED, "exceeds the model's"),
    ],
)
def test_what_cannot_be_expressed_says_why(case: Case, sut_name: str, reason: str, loop: RealLoop) -> None:
    engines: Any = StubEngines(loop)
    result = replay("case", case, load_sut(sut_name), engines)
    assert result.verdict == "not expressible"
    assert reason in result.detail


def test_aimed_triggers_are_one_token_early_but_for_the_first() -> None:
    case = Case(Budget(8, 8), (Session(1),), tuple(ClearSticky(AfterTokens(0, tokens)) for tokens in (1, 2, 7)))
    assert [fault.at for fault in aimed(case).faults] == [AfterTokens(0, tokens) for tokens in (1, 1, 6)]


def test_summary_counts_only_what_ran() -> None:
    replays = [
        RealReplay("a", PINNED, "reproduced", decoded_tokens=3, attempts=1),
        RealReplay("b", PINNED, "missed", "grant: 3 on vLLM, 4 simulated"),
        RealReplay("c", PINNED, "not expressible", "it waits for a time"),
        RealReplay("d", PINNED, "left out", "decodes 10104 tokens"),
    ]
    counts = summary(replays)
    assert (counts["reproduced"], counts["of"], counts["not_expressible"], counts["left_out"]) == (1, 2, 1, 1)
    assert "grant: 3 on vLLM, 4 simulated" in table(replays)
