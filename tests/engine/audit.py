"""The engine's laws, counted anew from scratch. The engine itself asserts a cheaper form of them at every step."""

from bisect import bisect_right
from collections import Counter
from operator import itemgetter
from typing import Any

from sim.engine import Engine
from sim.engine.prefix_cache import BlockRun
from sim.engine.request import Request, RequestStatus


def audit(engine: Engine) -> None:
    scheduler = engine._scheduler
    kv_cache, decodes, config = scheduler.kv_cache_manager, scheduler.decodes, engine.config
    cache = kv_cache.prefix_cache

    steady = set(decodes)
    assert steady | scheduler.singles.keys() == scheduler.running.keys()
    assert not steady & scheduler.singles.keys()
    assert len(steady) == decodes.num_requests
    orders = [request.running_order for request in scheduler.running]
    assert orders == sorted(set(orders)), "the running list is not in order of admission"
    for status, requests in ((RequestStatus.RUNNING, scheduler.running), (None, scheduler.waiting)):
        for request in requests:
            assert scheduler.requests[request.request_id] is request
            assert (request.status is RequestStatus.RUNNING) == (status is RequestStatus.RUNNING)
    assert len(scheduler.requests) == len(scheduler.running) + len(scheduler.waiting)
    assert all(request.num_computed_tokens == 0 and not request.num_cached_blocks for request in scheduler.waiting)

    references: Counter[BlockRun] = Counter()
    held_blocks = num_kv_tokens = 0
    for request in scheduler.running:
        num_computed_tokens = request.num_computed_tokens + decodes.progress(request)
        num_tokens = request.num_tokens + decodes.progress(request)
        assert num_computed_tokens <= num_tokens + request.num_output_placeholders
        assert num_tokens < config.max_model_len
        num_kv_tokens += num_computed_tokens if request in steady else 0
        held_blocks += kv_cache.num_blocks(num_computed_tokens)
        if config.enable_prefix_caching:
            runs = cache.held[request]
            references.update(runs)
            assert request.num_cached_blocks == sum(map(len, runs))
            if not config.async_scheduling:
                num_growing_blocks = num_computed_tokens // config.block_size - request.num_cached_blocks
                assert num_growing_blocks >= 0 if request in steady else num_growing_blocks == 0
            number = 0
            for run in runs:
                # The chain by the request's own account; that its names are right is tested by themselves.
                first_block, name = chain_of(request, number)
                assert (run.chain.name, run.start) == (name, number - first_block)
                number += len(run)
                assert chain_of(request, number - 1) == (first_block, name)
    assert num_kv_tokens == decodes.num_kv_tokens

    num_references = sum(count * len(run) for run, count in references.items())
    num_distinct = sum(map(len, references))
    assert cache.num_shared_references == num_references - num_distinct
    assert held_blocks - cache.num_shared_references + kv_cache.free_blocks == config.usable_blocks
    assert all(len(run.holders) == count for run, count in references.items())
    assert all(request in run.holders for request, runs in cache.held.items() for run in runs)

    free = list(cache.free_queue)
    assert sum(map(len, free)) == cache.free_queue.num_blocks
    assert not any(run.holders for run in free)
    known = [run for chain in cache.chains.values() for run in chain.runs]
    assert all(len(run) > 0 for run in known)
    assert len(known) == len(set(known))
    assert set(known) == references.keys() | set(free)
    assert all(run.chain is chain for chain in cache.chains.values() for run in chain.runs)
    assert all(cache.chains[name] is chain and chain.name == name for name, chain in cache.chains.items())
    assert all(chain.runs or chain.growing for chain in cache.chains.values())


def chain_of(request: Request, block_number: int) -> tuple[int, int]:
    return request.chains[bisect_right(request.chains, block_number, key=itemgetter(0)) - 1]


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
        "evicted next": kv_cache.prefix_cache.next_evicted(),
        "weights": [run.weight_version for run in kv_cache.prefix_cache.free_queue for _ in range(len(run))],
    }


def found(engine: Engine) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Of each cached block its copies in the order in which a lookup prefers them: how many hold it, how old it is."""
    settle(engine)
    cache = engine._scheduler.kv_cache_manager.prefix_cache
    copies: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for chain in cache.chains.values():
        for run in chain.runs:
            for position in range(run.start, run.end):
                copies.setdefault((chain.name, position), []).append((len(run.holders), run.weight_version))
    return copies


def settle(engine: Engine) -> None:
    """Let the prefix cache write down what steady requests have filled."""
    engine._scheduler.kv_cache_manager.prefix_cache.settle()
