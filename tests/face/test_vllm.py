"""vLLM's HTTP face: limits, answers, aborts, pauses, and whose a request is."""

import asyncio
from typing import Any

import pytest

from sim.case import CaseError, Session, Transport
from sim.case import Turn as CaseTurn
from sim.clock import NS_PER_S
from sim.events import Ended, Sent
from sim.faults import AtTime, CancelClient, CrashReplica, FailRequest, LoseAnswer
from sim.settings import ServerSettings
from sim.tokens import first_token

aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed (extra http)")
pytest.importorskip("h11", reason="h11 is not installed (extra http)")

from tests.face.worlds import SERVER, Http, in_a_world  # noqa: E402

NEXT = first_token(0) + 4
"""The first token behind the prompt."""


def of(trace: Any, kind: type) -> list[Any]:
    return [event for event in trace.events if isinstance(event, kind)]


def test_a_request_brings_tokens_and_their_log_probs_where_asked_for() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        plain, with_log_probs = (
            await http.generate(prompt, max_tokens=2),
            await http.generate(prompt, max_tokens=2, logprobs=0),
        )
        assert plain["logprobs"] is None
        content = with_log_probs.pop("logprobs")["content"]
        assert [each["token_id"] for each in content] == plain["token_ids"]
        assert all(each["logprob"] < 0 for each in content)
        return plain

    found = in_a_world(turn).found
    assert (found["token_ids"], found["finish_reason"], found["index"]) == ([NEXT, NEXT + 1], "length", 0)


def test_the_model_may_stop_by_itself() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        return await http.generate(prompt, max_tokens=9)

    found = in_a_world(turn, sessions=(Session(4, (CaseTurn(3),)),)).found
    assert (len(found["token_ids"]), found["finish_reason"]) == (3, "stop")


@pytest.mark.parametrize(
    ("params", "tokens"),
    [({}, 60), ({"max_tokens": None}, 60), ({"max_tokens": 1000}, 60), ({"max_tokens": 1}, 1)],
)
def test_a_limit_is_at_most_the_room_which_is_the_default(params: dict[str, Any], tokens: int) -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        return await http.generate(prompt, **params)

    found = in_a_world(turn).found
    assert (len(found["token_ids"]), found["finish_reason"]) == (tokens, "length")


@pytest.mark.parametrize(
    ("prompt_tokens", "params", "says"),
    [
        (4, {"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        (4, {"max_tokens": 1.5}, "max_tokens must be an integer, not 1.5"),
        (64, {}, "leaves no room to generate"),
        (0, {}, "a list of at least one token id is needed"),
    ],
)
def test_what_is_refused(prompt_tokens: int, params: dict[str, Any], says: str) -> None:
    async def turn(http: Http, _: list[int]) -> Any:
        prompt = [first_token(0) + n for n in range(prompt_tokens)]
        status, answer = await http.post("/inference/v1/generate", {"token_ids": prompt, "sampling_params": params})
        assert (status, answer["error"]["type"], answer["error"]["code"]) == (400, "BadRequestError", 400)
        return answer["error"]["message"]

    assert says in in_a_world(turn).found


def test_completions_take_prompts_of_tokens_and_16_tokens_by_default() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        lengths = []
        for body in ({}, {"max_tokens": None}, {"max_tokens": 2}):
            status, answer = await http.post("/v1/completions", {"prompt": prompt, "logprobs": 0, **body})
            assert (status, answer["object"], answer["choices"][0]["finish_reason"]) == (
                200,
                "text_completion",
                "length",
            )
            lengths.append(answer["usage"]["completion_tokens"])
            names = answer["choices"][0]["logprobs"]["tokens"]
            assert names[0] == f"token_id:{NEXT}"
        _, answer = await http.post("/v1/completions", {"prompt": [prompt], "return_token_ids": True})
        assert answer["choices"][0]["prompt_token_ids"] == prompt
        assert answer["choices"][0]["token_ids"][0] == NEXT
        for body in ({"prompt": "text"}, {"prompt": prompt, "stream": True}):
            assert (await http.post("/v1/completions", body))[0] == 400
        return lengths

    assert in_a_world(turn).found == [16, 16, 2]


def test_a_pause_aborts_unless_told_otherwise_and_what_comes_meanwhile_waits() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        running = asyncio.create_task(http.generate(prompt, max_tokens=9))
        await asyncio.sleep(3.5)
        assert await http.get("/is_paused") == (200, {"is_paused": False})
        assert (await http.post("/pause", {"mode": "keep"}))[0] == 200  # a body is ignored
        assert await http.get("/is_paused") == (200, {"is_paused": True})
        aborted = await running
        waiting = asyncio.create_task(http.generate(prompt, max_tokens=1))
        await asyncio.sleep(100)
        assert not waiting.done()
        assert (await http.post("/resume"))[0] == 200
        await waiting
        assert await http.get("/is_paused") == (200, {"is_paused": False})
        return aborted["finish_reason"], len(aborted["token_ids"]), aborted["stop_reason"]

    assert in_a_world(turn).found == ("abort", 4, None)  # the step under way ends first


@pytest.mark.parametrize(("mode", "tokens"), [("keep", 9), ("wait", 9)])
def test_a_pause_may_keep_or_wait_for_what_runs(mode: str, tokens: int) -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        running = asyncio.create_task(http.generate(prompt, max_tokens=9))
        await asyncio.sleep(3.5)
        await http.post(f"/pause?mode={mode}&clear_cache=false")
        await asyncio.sleep(1)
        assert running.done() == (mode == "wait")
        await http.post("/resume")
        return len((await running)["token_ids"])

    assert in_a_world(turn).found == tokens


def test_an_unknown_mode_is_refused() -> None:
    async def turn(http: Http, _: list[int]) -> Any:
        return await http.post("/pause?mode=sleep")

    status, answer = in_a_world(turn).found
    assert (status, answer["error"]["message"]) == (400, "mode is 'sleep'; abort, wait or keep is needed")


@pytest.mark.parametrize("body", [{}, {"request_ids": ["mine"]}])
def test_requests_are_aborted_by_id_or_all_of_them(body: Any) -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        named = {"token_ids": prompt, "sampling_params": {}, "request_id": "mine"}
        mine = asyncio.create_task(http.post("/inference/v1/generate", named))
        other = asyncio.create_task(http.generate(prompt, max_tokens=9))
        await asyncio.sleep(3.5)
        await http.post("/abort_requests", body)
        _, answer = await mine
        assert answer["request_id"] == "generate-tokens-mine"
        return answer["choices"][0]["finish_reason"], (await other)["finish_reason"]

    assert in_a_world(turn).found == ("abort", "length" if body else "abort")


def test_the_cache_is_reset_unless_blocks_of_it_are_held() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        running = asyncio.create_task(http.generate(prompt, max_tokens=9))
        await asyncio.sleep(3.5)
        answers = [await http.post("/reset_prefix_cache")]
        answers += [await http.post("/reset_prefix_cache?reset_running_requests=true")]
        assert len((await running)["token_ids"]) == 9
        answers += [await http.post("/reset_prefix_cache")]
        return [answer["success"] for _, answer in answers]

    assert in_a_world(turn).found == [False, True, True]


def test_what_it_says_of_itself() -> None:
    async def turn(http: Http, _: list[int]) -> Any:
        assert await http.get("/health") == (200, None)
        assert (await http.get("/nowhere"))[0] == 404
        assert (await http.get("/pause"))[0] == 405
        assert (await http.post("/v1/completions", [1]))[0] == 400
        return (await http.get("/v1/models"))[1]["data"][0]["max_model_len"]

    assert in_a_world(turn).found == 64


def test_a_client_that_goes_aborts_its_request() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.5):
                await http.generate(prompt, max_tokens=50)
        await asyncio.sleep(20)

    (ended,) = of(in_a_world(turn).trace, Ended)
    assert (ended.outcome, ended.tokens) == ("abort", 3)
    assert ended.t_ns < 5 * NS_PER_S


def test_a_cancelled_session_decodes_no_more() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        await http.generate(prompt, max_tokens=50)

    trace = in_a_world(turn, faults=(CancelClient(AtTime(3.5), 0),)).trace
    (ended,) = of(trace, Ended)
    assert (ended.outcome, ended.tokens) == ("abort", 3)


def test_a_dead_replica_hangs_up_and_a_request_that_fails_is_500() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        failed = await http.generate(prompt, max_tokens=50)
        with pytest.raises(aiohttp.ClientError):
            await http.generate(prompt, max_tokens=50)
        with pytest.raises(aiohttp.ClientError):
            await http.get("/health")
        await asyncio.sleep(2)
        assert await http.get("/health") == (200, None)
        return failed

    faults = (FailRequest(AtTime(3.5), 0), CrashReplica(AtTime(6.5), 0, down_s=1.0))
    assert in_a_world(turn, faults=faults).found == "replica 0 failed at the request"


def test_a_lost_answer_is_a_lost_connection() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        with pytest.raises(aiohttp.ClientError):
            await http.generate(prompt, max_tokens=2)
        return len((await http.generate(prompt, max_tokens=2))["token_ids"])

    assert in_a_world(turn, faults=(LoseAnswer(AtTime(0.5), 0),)).found == 2


def test_requests_belong_to_the_turn_of_the_session_that_their_tokens_name() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        await asyncio.gather(*(http.generate(prompt, replica, max_tokens=1) for replica in (0, 1)))
        return await http.generate([7], max_tokens=1)

    ran = in_a_world(turn, sessions=(Session(4), Session(4, (CaseTurn(1), CaseTurn(1)))), replicas=2)
    sent = sorted((each.session, each.turn, each.attempt, each.replica) for each in of(ran.trace, Sent))
    assert sent == [(s, t, n, n) for s, t in ((0, 0), (1, 0), (1, 1)) for n in (0, 1)]
    assert ran.found == "token 7 belongs to no session that has begun"


def test_the_networks_delay_is_that_of_the_case() -> None:
    async def turn(http: Http, prompt: list[int]) -> Any:
        await http.get("/health")
        begin_s = asyncio.get_running_loop().time()
        await http.generate(prompt, max_tokens=2)
        return asyncio.get_running_loop().time() - begin_s

    assert in_a_world(turn, transport=Transport(server_delay_s=0.5)).found == pytest.approx(1 + 2)


def test_a_face_goes_with_its_engines_dialect() -> None:
    with pytest.raises(CaseError, match=r"server.dialect is 'vllm'; with server.face 'vllm' it is 'plain-vllm'"):
        ServerSettings(face="vllm")
    assert SERVER.rules.name == "plain-vllm"
