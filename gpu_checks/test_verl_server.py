"""verl's own server class on the real engine: its grants against sim/dialects, its gate, its aborts on this vLLM."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_checks.engines import RealEngines, vllm_version
from gpu_checks.real_server import settle_grant
from gpu_checks.verl_server import HOW_TO_INSTALL, VerlServers, VerlUnusable, imported
from sim.case import Budget
from sim.dialects.vllm import VLLM

BUDGET = Budget(prompt_length=8, response_length=12, max_model_len=40)
LONG = Budget(prompt_length=64, response_length=1500, max_model_len=4096)

BRANCHES: dict[str, tuple[int, dict[str, Any]]] = {
    "default": (5, {}),
    "default, the allowance for prompts used up": (8, {}),
    "default, charged with what was generated": (15, {}),
    "default, nothing left": (25, {}),
    "default, cut by the context": (39, {}),
    "max_tokens": (5, {"max_tokens": 7}),
    "max_tokens beyond the response": (5, {"max_tokens": 20}),
    "max_tokens beyond the context": (30, {"max_tokens": 20}),
    "max_tokens of 0": (5, {"max_tokens": 0}),
    "max_tokens below 0": (5, {"max_tokens": -3}),
    "max_new_tokens": (5, {"max_new_tokens": 7}),
    "max_new_tokens of 0": (5, {"max_new_tokens": 0}),
    "max_new_tokens beyond the context": (30, {"max_new_tokens": 20}),
    "max_tokens of None": (5, {"max_tokens": None}),
    "both spellings": (5, {"max_tokens": 7, "max_new_tokens": 9}),
    "a context that the prompt fills": (40, {}),
    "a prompt longer than the context": (41, {"max_tokens": 5}),
}
"""A prompt's length and the limits sent, for each way that the arithmetic can go."""

Arithmetic = Callable[[int, dict[str, Any]], int]

ARITHMETICS: dict[str, Arithmetic] = {
    "sim/dialects": lambda prompt_tokens, params: VLLM.take_grant(BUDGET, prompt_tokens, params).tokens,
    "real_server.py": lambda prompt_tokens, params: settle_grant(BUDGET, prompt_tokens, params).tokens,
}
"""Both statements of what verl's server does."""


class WatchedEngine:
    """The engine, and the max_tokens of the last request that it was given.

    `old_words`: takes what verl passes to pause_generation, as vLLM did up to 0.31.
    """

    def __init__(self, engine: Any, old_words: bool = False) -> None:
        self.max_tokens: int | None = None
        self._engine = engine
        self._old_words = old_words

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, **arguments: Any) -> Any:
        self.max_tokens = arguments["sampling_params"].max_tokens
        return self._engine.generate(**arguments)

    async def pause_generation(self, **words: Any) -> None:
        if self._old_words and words.pop("wait_for_inflight_requests", None) is False:
            words["mode"] = "abort"
        await self._engine.pause_generation(**words)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "verl" in metafunc.fixturenames:
        folders = metafunc.config.getoption("--verl")
        names = [Path(folder).name for folder in folders] or ["installed"]
        metafunc.parametrize("verl", folders or [None], indirect=True, scope="module", ids=names)


@pytest.fixture(scope="module")
def verl(request: pytest.FixtureRequest, engines: RealEngines) -> Iterator[VerlServers]:
    del engines  # vLLM's environment is prepared before verl imports it
    folder = None if request.param is None else Path(request.param)
    if folder is not None and not (folder / "verl").is_dir():
        pytest.fail(f"--verl {folder}: there is no verl in it", pytrace=False)
    manager = imported(folder)
    try:
        servers = manager.__enter__()
    except VerlUnusable as unusable:
        if folder is None:
            pytest.skip(HOW_TO_INSTALL)
        pytest.skip(f"cannot be imported beside vLLM {vllm_version()}: {unusable}")
    yield servers
    manager.__exit__(None, None, None)


def run(engines: RealEngines, coroutine: Coroutine[Any, Any, Any]) -> Any:
    return engines.loop.run_until_complete(coroutine)


def prompt(tokens: int) -> list[int]:
    return [5 + number % 100 for number in range(tokens)]


async def outcome(call: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await call
    except Exception as error:
        return error


def settled(arithmetic: Arithmetic, prompt_tokens: int, limits: dict[str, Any]) -> int | type[Exception]:
    """The grant, or the kind of exception that the caller gets; vLLM knows no limit that is left over."""
    try:
        tokens = arithmetic(prompt_tokens, limits)
    except TypeError:  # first: an ill-formed limit is both, and verl's server fails on its type
        return TypeError
    except ValueError:
        return ValueError
    return TypeError if limits else tokens


@pytest.mark.parametrize("branch", BRANCHES)
def test_grant_is_the_one_in_budget_py(branch: str, verl: VerlServers, engines: RealEngines) -> None:
    prompt_tokens, limits = BRANCHES[branch]
    engine = WatchedEngine(engines.take(1)[0])
    server = verl.make(engine, BUDGET)
    sent = {"temperature": 1.0, "logprobs": True, "ignore_eos": True, **limits}
    output = run(engines, outcome(server.generate(prompt(prompt_tokens), sent, f"branch {branch}")))
    for name, arithmetic in ARITHMETICS.items():
        expected = settled(arithmetic, prompt_tokens, dict(limits))
        if isinstance(expected, type):
            assert isinstance(output, expected), f"{name}: {expected.__name__}, verl: {output!r}"
            assert engine.max_tokens is None
            continue
        assert engine.max_tokens == expected, name
        assert len(output.token_ids) == expected, name
        assert output.stop_reason == "completed"
    assert not {"max_tokens", "max_new_tokens"} & set(sent) or isinstance(output, ValueError | TypeError)


def test_import_beside_this_vllm(verl: VerlServers, findings: list[str]) -> None:
    if verl.refused:
        findings.append(f"verl {verl.version} on vLLM {vllm_version()}: its server does not import: {verl.refused}")


async def begun(server: Any, name: str) -> "asyncio.Task[Any]":
    """A long request of verl's server that is running."""
    states = server.engine.output_processor.request_states
    before = set(states)
    task: asyncio.Task[Any] = asyncio.ensure_future(
        server.generate(prompt(16), {"temperature": 1.0, "ignore_eos": True}, name)
    )
    while not set(states) - before:
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)
    return task


async def is_waiting(task: "asyncio.Task[Any]") -> bool:
    done, _ = await asyncio.wait([task], timeout=3.0)
    return not done


def test_gate_does_what_the_fakes_gate_does(verl: VerlServers, engines: RealEngines) -> None:
    """On an engine that takes verl's words: abort, park or queue, resume; and reject, where this verl can."""

    async def check() -> None:
        server = verl.make(WatchedEngine(engines.take(1)[0], old_words=True), LONG)
        await server.set_global_steps(3)
        running = await begun(server, "running")
        answer = await server.abort_all_requests()
        assert answer["aborted_count"] == 1
        cut = await running
        assert cut.stop_reason == "aborted"
        assert 0 < len(cut.token_ids) < 1500
        assert cut.extra_fields["global_steps"] == 3
        late = asyncio.ensure_future(server.generate(prompt(4), {"max_tokens": 5}, "late"))
        assert await is_waiting(late)
        await server.resume_generation()
        assert (await late).stop_reason == "completed"
        if verl.version >= "0.9.1":
            await server.abort_all_requests(reject_request=True)
            refused = await server.generate(prompt(4), {"max_tokens": 5}, "refused")
            assert (refused.token_ids, refused.stop_reason) == ([], "aborted")
            await server.resume_generation()

    run(engines, check())


def test_abort_all_on_this_vllm(verl: VerlServers, engines: RealEngines, findings: list[str]) -> None:
    """vLLM 0.32 refuses the word that verl passes to pause_generation: what becomes of the update and the requests."""

    async def check() -> str:
        engine = engines.take(1)[0]
        server = verl.make(engine, LONG)
        await server.set_global_steps(0)
        running = await begun(server, "survivor")
        answer = await outcome(server.abort_all_requests())
        assert not await engine.is_paused()
        assert not running.done()
        late = asyncio.ensure_future(server.generate(prompt(4), {"max_tokens": 5}, "late"))
        parked = await is_waiting(late)
        if isinstance(answer, Exception):
            assert isinstance(answer, TypeError)
            assert "wait_for_inflight_requests" in str(answer)
            survivor = await running
            assert (len(survivor.token_ids), survivor.stop_reason) == (1500, "completed")
            assert parked
            assert not await engine.is_paused()
            assert await is_waiting(late), "the gate opened by itself"
            await server.resume_generation()
            assert (await late).stop_reason == "completed"
            return (
                f"abort_all_requests raises TypeError, so the update stops; the gate stays closed while the engine "
                f"runs: the live request went on to its end ({len(survivor.token_ids)} tokens, "
                f"{survivor.stop_reason}) and a new one parked until somebody called resume_generation"
            )
        if answer["aborted_count"]:
            await server.resume_generation()
            await asyncio.wait([running, late])
            return ""
        assert "wait_for_inflight_requests" in answer["error"]
        assert not parked
        await server.set_global_steps(1)
        survivor = await running
        assert (len(survivor.token_ids), survivor.stop_reason) == (1500, "completed")
        assert survivor.extra_fields["global_steps"] == 1
        await server.resume_generation()
        return (
            f"abort_all_requests reports 0 aborted and goes on: the live request decoded across the update "
            f"({len(survivor.token_ids)} tokens, {survivor.stop_reason}) and all of its tokens bear the new version"
        )

    finding = run(engines, check())
    if finding:
        findings.append(f"verl {verl.version} on vLLM {vllm_version()}: {finding}")


def test_abort_of_one_request_on_this_vllm(verl: VerlServers, engines: RealEngines, findings: list[str]) -> None:
    """verl looks a request up by the id it gave; vLLM keeps it under one of its own."""

    async def check() -> str:
        server = verl.make(engines.take(1)[0], LONG)
        running = await begun(server, "named")
        answer = await server.abort_request("named")
        if answer.get("aborted"):
            await running
            return ""
        assert not running.done()
        result = await running
        assert (len(result.token_ids), result.stop_reason) == (1500, "completed")
        return (
            f"abort_request of a live request answers {answer.get('error')!r}, and the request goes on to its end "
            f"({len(result.token_ids)} tokens): vLLM gives ids a suffix"
        )

    finding = run(engines, check())
    if finding:
        findings.append(f"verl {verl.version} on vLLM {vllm_version()}: {finding}")
