"""SGLang's HTTP face: limits, answers, aborts by the beginning of an id, and pauses."""

import asyncio
from typing import Any

import pytest

from sim.settings import ServerSettings
from sim.tokens import first_token

pytest.importorskip("aiohttp", reason="aiohttp is not installed (extra http)")
pytest.importorskip("h11", reason="h11 is not installed (extra http)")

from tests.face import worlds
from tests.face.worlds import Http

SERVER = ServerSettings(dialect="plain-sglang", face="sglang", token_time_s=1.0)
NEXT = first_token(0) + 4


def in_a_world(turn: worlds.Turn, **settings: Any) -> Any:
    return worlds.in_a_world(turn, server=SERVER, **settings).found


async def generate(http: Http, prompt: list[int], rid: str | None = None, **params: Any) -> Any:
    """What the answer says, or the error's message."""
    body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True}
    status, answer = await http.post("/generate", body if rid is None else {**body, "rid": rid})
    return answer if status == 200 else answer["error"]["message"]


def test_a_request_brings_tokens_and_what_there_is_to_know_of_them() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        return await generate(http, prompt, rid="mine", max_new_tokens=2)

    answer = in_a_world(turn)
    meta = answer["meta_info"]
    assert answer["output_ids"] == [NEXT, NEXT + 1] == [each[1] for each in meta.pop("output_token_logprobs")]
    assert meta == {
        "id": "mine",
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 4,
        "completion_tokens": 2,
        "weight_version": "0",
    }


def test_128_tokens_are_the_default_where_they_fit() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        return len((await generate(http, prompt))["output_ids"])

    assert in_a_world(turn) == 58  # two tokens of the context are kept back
    assert in_a_world(turn, budget=worlds.Budget(8, 10, 1000)) == 128


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"max_new_tokens": 61}, "4 tokens of prompt and max_new_tokens 61 exceed the context of 64 tokens"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1; it must be at least 0"),
        ({"max_tokens": 5}, "unexpected keyword argument 'max_tokens'"),
    ],
)
def test_what_is_refused(params: dict[str, Any], says: str) -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        assert (await http.post("/generate", {"text": "hello"}))[0] == 400
        return await generate(http, prompt, **params)

    assert says in in_a_world(turn)


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        ({"rid": "a"}, ["abort", "abort", "length"]),
        ({"rid": "a-2"}, ["length", "abort", "length"]),
        ({"abort_all": True}, ["abort", "abort", "abort"]),
        ({}, ["length", "length", "length"]),
    ],
)
def test_aborts_go_by_the_beginning_of_an_id(body: Any, ends: list[str]) -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        rids = ("a-1", "a-2", "b-1")
        running = [asyncio.create_task(generate(http, prompt, rid, max_new_tokens=9)) for rid in rids]
        await asyncio.sleep(3.5)
        assert await http.post("/abort_request", body) == (200, None)
        return [answer["meta_info"]["finish_reason"]["type"] for answer in await asyncio.gather(*running)]

    assert in_a_world(turn) == ends


@pytest.mark.parametrize(
    ("mode", "tokens", "end"),
    [(None, 4, "abort"), ("abort", 4, "abort"), ("retract", 9, "length"), ("in_place", 9, "length")],
)
def test_pauses_abort_retract_or_keep_in_place(mode: str | None, tokens: int, end: str) -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        running = asyncio.create_task(generate(http, prompt, max_new_tokens=9))
        await asyncio.sleep(3.5)
        assert (await http.post("/pause_generation", {} if mode is None else {"mode": mode}))[0] == 200
        waiting = asyncio.create_task(generate(http, prompt, max_new_tokens=1))
        await asyncio.sleep(100)
        assert not waiting.done()
        flushed = (await http.post("/flush_cache"))[0]
        assert (await http.post("/continue_generation", {}))[0] == 200
        await waiting
        answer = await running
        return len(answer["output_ids"]), answer["meta_info"]["finish_reason"]["type"], flushed

    assert in_a_world(turn) == (tokens, end, 400 if mode == "in_place" else 200)


def test_an_update_of_the_weight_version_ends_everything_unless_told_not_to() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        told = []
        for more in ({"abort_all_requests": False}, {}):
            running = asyncio.create_task(generate(http, prompt, max_new_tokens=9))
            await asyncio.sleep(3.5)
            await http.post("/update_weight_version", {"new_version": "7", **more})
            meta = (await running)["meta_info"]
            told.append((meta["finish_reason"]["type"], meta["weight_version"]))
        assert (await http.get("/get_model_info"))[1]["weight_version"] == "7"
        return told

    assert in_a_world(turn) == [("length", "7"), ("abort", "7")]


def test_what_it_says_of_itself() -> None:
    async def turn(http: Http, _: list[int]) -> Any:
        assert (await http.get("/health_generate"))[0] == 200
        assert (await http.post("/pause_generation", {"mode": "sleep"}))[0] == 400
        return (await http.get("/server_info"))[1]["context_length"]

    assert in_a_world(turn) == 64
