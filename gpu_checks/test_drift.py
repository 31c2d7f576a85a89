"""What the harness and verl rely on in vLLM's interface, one small test each: an upgrade that breaks one says which.

`RELIES` says who would notice, and since which vLLM it has been so, as far as that was looked at.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

import pytest

from gpu_checks.engines import RealEngines, vllm_version

RELIES = {
    "pause's words": "verl passes wait_for_inflight_requests: taken up to 0.31, a TypeError from 0.32; mode= from 0.24",
    "pause(abort)": "a weight update counts on partial tokens and on nothing being left when it returns",
    "pause(wait)": "requests run to their end before the pause is there",
    "pause(keep)": "requests stand still, and go on after the resume",
    "paused": "what arrives waits, without an error, until the resume",
    "zero tokens": "a request aborted before its first token gives one output, with none",
    "abort by id": "the named request ends with what it has; an unknown name is no error",
    "shared id": "two live requests may have one id; an abort of it ends both",
    "cache reset": "False while requests run, unless they are reset too; S3 needs to know",
    "limits": "max_tokens below 1 is a VLLMValidationError, a ValueError up to 0.24, none from 0.28; the default is 16",
    "unknown parameter": "a second spelling of the limit is a TypeError",
    "long prompts": "one that fills the context is refused, and a longer one with another message",
    "context's end": "prompt + max_tokens beyond the context is cut there, and called length",
    "stop": "a stop token on the last token allowed is called stop, and is part of the output",
    "internal ids": "requests are kept under an id with a suffix from 0.16 on; verl looks them up by the name it gave",
}


class Result(NamedTuple):
    tokens: int
    finish_reason: str | None
    outputs: int


def run(engines: RealEngines, coroutine: Coroutine[Any, Any, Any]) -> Any:
    return engines.loop.run_until_complete(coroutine)


def params(max_tokens: int | None = 8, **more: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, detokenize=False, **more)


async def generate(engine: Any, name: str, prompt_tokens: int = 16, **more: Any) -> Result:
    """One request to its end."""
    calls = engine.generate({"prompt_token_ids": [5] * prompt_tokens}, params(**more), name)
    return _result([output async for output in calls])


def _result(outputs: list[Any]) -> Result:
    (completion,) = outputs[-1].outputs
    return Result(len(completion.token_ids), completion.finish_reason, len(outputs))


async def started(engine: Any, name: str, max_tokens: int = 4000) -> "asyncio.Task[Result]":
    """A long request that has delivered its first tokens."""
    first = asyncio.Event()

    async def follow() -> Result:
        outputs = []
        async for output in engine.generate({"prompt_token_ids": [5] * 16}, params(max_tokens), name):
            outputs.append(output)
            first.set()
        return _result(outputs)

    task = asyncio.ensure_future(follow())
    await asyncio.wait_for(first.wait(), 600)
    return task


@pytest.fixture
def engine(engines: RealEngines, request: pytest.FixtureRequest) -> Any:
    """The first engine. A check that fails says what depends on it, and in which vLLM it failed."""
    promise = request.node.get_closest_marker("promise").args[0]
    request.node.user_properties.append(("vLLM", f"{vllm_version()}: {promise}: {RELIES[promise]}"))
    return engines.take(1)[0]


def promise(name: str) -> pytest.MarkDecorator:
    """Marks a test with what it is about."""
    assert name in RELIES
    return pytest.mark.promise(name)


@promise("pause's words")
def test_pause_takes_a_mode_and_not_verls_word(engine: Any, engines: RealEngines) -> None:
    async def check() -> None:
        with pytest.raises(TypeError, match="wait_for_inflight_requests"):
            await engine.pause_generation(wait_for_inflight_requests=False)
        assert not await engine.is_paused()
        await engine.pause_generation(mode="abort", clear_cache=True)
        assert await engine.is_paused()
        await engine.resume_generation()
        assert not await engine.is_paused()

    run(engines, check())


@promise("pause(abort)")
def test_pause_abort_leaves_partial_tokens_and_nothing_running(engine: Any, engines: RealEngines) -> None:
    async def check() -> None:
        task = await started(engine, "cut")
        await engine.pause_generation(mode="abort")
        assert not engine.output_processor.request_states
        result = await task
        assert result.finish_reason == "abort"
        assert 0 < result.tokens < 4000
        await engine.resume_generation()

    run(engines, check())


@promise("pause(wait)")
def test_pause_wait_lets_requests_end(engine: Any, engines: RealEngines) -> None:
    async def check() -> None:
        task = await started(engine, "waited for", max_tokens=60)
        await engine.pause_generation(mode="wait")
        assert not engine.output_processor.request_states
        assert (await task)[:2] == (60, "length")
        await engine.resume_generation()

    run(engines, check())


@promise("pause(keep)")
def test_pause_keep_stands_still_and_goes_on(engine: Any, engines: RealEngines) -> None:
    async def check() -> None:
        task = await started(engine, "kept", max_tokens=120)
        await engine.pause_generation(mode="keep")
        done, _ = await asyncio.wait([task], timeout=3)
        assert not done, "it went on in the pause"
        await engine.resume_generation()
        assert (await task)[:2] == (120, "length")

    run(engines, check())


@promise("paused")
def test_what_arrives_in_a_pause_waits(engine: Any, engines: RealEngines) -> None:
    async def check() -> None:
        await engine.pause_generation(mode="abort")
        task = asyncio.ensure_future(generate(engine, "late"))
        done, _ = await asyncio.wait([task], timeout=3)
        assert not done
        await engine.resume_generation()
        assert (await task)[:2] == (8, "length")

    run(engines, check())


@promise("zero tokens")
def test_abort_before_the_first_token_gives_one_empty_output(engine: Any, engines: RealEngines) -> None:
    async def check() -> None:
        await engine.pause_generation(mode="abort")
        task = asyncio.ensure_future(generate(engine, "never begun"))
        await asyncio.wait([task], timeout=1)
        await engine.pause_generation(mode="abort")
        assert await task == Result(0, "abort", 1)
        await engine.resume_generation()

    run(engines, check())


@promise("abort by id")
def test_abort_by_id(engine: Any, engines: RealEngines) -> None:
    async def check() -> None:
        task = await started(engine, "named")
        await engine.abort("no such request")
        await engine.abort("named")
        result = await task
        assert result.finish_reason == "abort"
        assert 0 < result.tokens < 4000

    run(engines, check())


@promise("shared id")
def test_abort_of_a_shared_id_ends_both(engine: Any, engines: RealEngines) -> None:
    async def check() -> None:
        tasks = [await started(engine, "twins") for _ in range(2)]
        await engine.abort("twins")
        assert [(await task).finish_reason for task in tasks] == ["abort", "abort"]

    run(engines, check())


@promise("cache reset")
def test_cache_reset_is_refused_while_requests_run(engine: Any, engines: RealEngines) -> None:
    async def check() -> None:
        assert await engine.reset_prefix_cache()
        task = await started(engine, "in the way", max_tokens=600)
        assert not await engine.reset_prefix_cache()
        assert await engine.reset_prefix_cache(reset_running_requests=True)
        assert (await task)[:2] == (600, "length")

    run(engines, check())


@promise("limits")
def test_limits(engine: Any, engines: RealEngines) -> None:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError) as refused:
        params(max_tokens=0)
    assert not isinstance(refused.value, ValueError)
    assert SamplingParams().max_tokens == 16
    context = engine.model_config.max_model_len
    result = run(engines, generate(engine, "unlimited", context - 6, max_tokens=None))
    assert result[:2] == (6, "length")


@promise("unknown parameter")
def test_a_second_spelling_of_the_limit_is_refused(engine: Any) -> None:
    del engine
    with pytest.raises(TypeError):
        params(max_new_tokens=8)


@promise("long prompts")
def test_long_prompts_are_refused(engine: Any, engines: RealEngines) -> None:
    from vllm.exceptions import VLLMValidationError

    context = engine.model_config.max_model_len
    texts = []
    for prompt_tokens in (context, context + 1):
        with pytest.raises(VLLMValidationError) as refused:
            run(engines, generate(engine, "too long", prompt_tokens))
        texts.append(str(refused.value).split("(parameter")[0])
    assert texts[0] != texts[1]


@promise("context's end")
def test_the_context_cuts_a_request_off(engine: Any, engines: RealEngines) -> None:
    context = engine.model_config.max_model_len
    assert run(engines, generate(engine, "cut short", context - 12, max_tokens=100))[:2] == (12, "length")


@promise("stop")
def test_a_stop_on_the_last_token_is_a_stop(engine: Any, engines: RealEngines) -> None:
    stopping: dict[str, Any] = {"stop_token_ids": [7], "logit_bias": {7: 100.0}, "min_tokens": 4}
    assert run(engines, generate(engine, "stops", max_tokens=5, **stopping))[:2] == (5, "stop")
    assert run(engines, generate(engine, "stops", max_tokens=9, **stopping))[:2] == (5, "stop")
    assert run(engines, generate(engine, "goes on", max_tokens=4, **stopping))[:2] == (4, "length")


@promise("internal ids")
def test_requests_are_kept_under_ids_of_vllms_own(engine: Any, engines: RealEngines) -> None:
    async def check() -> None:
        task = await started(engine, "outer name")
        states = engine.output_processor.request_states
        assert "outer name" not in states
        assert [name.rpartition("-")[0] for name in states] == ["outer name"]
        await engine.abort("outer name")
        await task

    run(engines, check())
