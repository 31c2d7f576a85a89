"""The engine's laws, counted anew from scratch. The engine itself asserts a cheaper form of them at every step."""

from collections import Counter
from typing import Any

from sim.engine import Engine
from sim.engine.kv_cache import Block
from sim.engine.request import Request, RequestStatus


def audit(engine: Engine) -> None:
    scheduler = engine._scheduler
    kv_cache, decodes, config = scheduler.kv_cache_manager, scheduler.decodes, engine.config

    steady = set(decodes)
    assert steady | scheduler.singles.keys() == scheduler.running.keys()
    assert not steady & scheduler.singles.keys()
    assert len(steady) == len(decodes)
    orders = [request.running_order for request in scheduler.running]
    assert orders == sorted(set(orders)), "the running list is not in order of admission"
    for status, requests in ((RequestStatus.RUNNING, scheduler.running), (None, scheduler.waiting)):
        for request in requests:
            assert scheduler.requests[request.request_id] is request
            assert (request.status is RequestStatus.RUNNING) == (status is RequestStatus.RUNNING)
    assert len(scheduler.requests) == len(scheduler.running) + len(scheduler.waiting)
    assert all(request.num_computed_tokens == 0 and not request.blocks for request in scheduler.waiting)

    references: Counter[Block] = Counter()
    held_blocks = num_kv_tokens = 0
    for request in scheduler.running:
        num_computed_tokens = request.num_computed_tokens + decodes.progress(request)
        num_tokens = request.num_tokens + decodes.progress(request)
        assert num_computed_tokens <= num_tokens + request.num_output_placeholders
        assert num_tokens < config.max_model_len
        num_kv_tokens += num_computed_tokens if request in steady else 0
        held_blocks += kv_cache.num_blocks(num_computed_tokens)
        references.update(request.blocks)
        if config.enable_prefix_caching and not config.async_scheduling:
            assert len(request.blocks) == num_computed_tokens // config.block_size
        assert [block.block_hash for block in request.blocks] == request.block_hashes[: len(request.blocks)]
    assert num_kv_tokens == decodes.num_kv_tokens

    assert held_blocks - sum(references.values()) + len(references) + kv_cache.free_blocks == config.usable_blocks
    assert all(block.ref_cnt == count for block, count in references.items())
    assert all(block.ref_cnt == 0 for block in kv_cache.cached_free_blocks)
    known = [*kv_cache.cached_blocks.values(), *(b for blocks in kv_cache.duplicates.values() for b in blocks)]
    assert len(known) == len(set(known))
    assert set(known) == references.keys() | kv_cache.cached_free_blocks.keys()
    assert all(kv_cache.cached_blocks[block_hash].block_hash == block_hash for block_hash in kv_cache.duplicates)


def state(engine: Engine) -> dict[str, Any]:
    """All that decides what an engine does next, in words that do not depend on how it got there."""
    scheduler = engine._scheduler
    kv_cache, decodes = scheduler.kv_cache_manager, scheduler.decodes

    def counts(request: Request) -> tuple[int, ...]:
        progress = decodes.progress(request)
        return (
            request.num_computed_tokens + progress,
            request.num_output_tokens + progress,
            request.num_output_placeholders,
            request.kv_weight_version,
        )

    return {
        "running": {request.request_id: counts(request) for request in scheduler.running},
        "waiting": {request.request_id: counts(request) for request in scheduler.waiting},
        "nameless": kv_cache.num_nameless_free_blocks,
        "evicted next": [(block.block_hash, block.weight_version) for block in kv_cache.cached_free_blocks],
    }
