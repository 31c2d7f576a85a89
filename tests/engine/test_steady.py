"""Steady requests: nothing about them is touched while they decode, and still all is known."""

from sim.engine import EngineRequest
from sim.engine.request import Request
from sim.engine.steady import Decodes


def steady_request(request_id: str, num_tokens: int, num_more_tokens: int) -> Request:
    """It has sampled its first output token, and computed all before that."""
    request = Request.from_engine_request(
        EngineRequest(request_id=request_id, prompt_token_ids=range(num_tokens - 1)), 1 + num_more_tokens, "length"
    )
    request.num_output_tokens, request.num_computed_tokens = 1, num_tokens - 1
    return request


def tick(decodes: Decodes) -> list[Request]:
    decodes.advance(1, len(decodes.needing_block()))
    return decodes.finish()


def test_counts_come_up_to_date_when_a_request_leaves() -> None:
    decodes, request = Decodes(block_size=4), steady_request("a", 6, num_more_tokens=9)
    decodes.join([request])
    for _ in range(3):
        assert tick(decodes) == []
    assert (request.num_output_tokens, decodes.progress(request)) == (1, 3)
    decodes.leave(request)
    assert (request.num_output_tokens, request.num_computed_tokens, decodes.progress(request)) == (4, 8, 0)
    assert (decodes.num_requests, decodes.num_blocks, decodes.num_kv_tokens) == (0, 0, 0)


def test_a_block_is_needed_in_the_ticks_of_one_phase() -> None:
    decodes, request = Decodes(block_size=4), steady_request("a", 7, num_more_tokens=20)
    decodes.join([request])  # 6 tokens computed, in 2 blocks
    needing, num_blocks = [], []
    for number in range(8):
        needing += [number] * (request in decodes.needing_block())
        tick(decodes)
        num_blocks.append(decodes.num_blocks)
    assert needing == [2, 6]
    assert num_blocks == [2, 2, 3, 3, 3, 3, 4, 4]


def test_requests_finish_in_their_tick() -> None:
    decodes = Decodes(block_size=4)
    requests = [steady_request(str(i), 5, num_more_tokens) for i, num_more_tokens in enumerate((2, 1, 2))]
    for request in requests:
        decodes.join([request])
    assert tick(decodes) == [requests[1]]
    assert tick(decodes) == [requests[0], requests[2]]


def test_those_that_left_leave_nothing_behind() -> None:
    decodes = Decodes(block_size=4)
    for i in range(1000):
        request = steady_request(str(i), 5, num_more_tokens=1000)
        decodes.join([request])
        decodes.leave(request)
    assert len(decodes._finish_ticks) < 100
