"""Record schedules of the real vLLM scheduler, driven with no model.

    python -m tests.conformance.record --seed 7 --count 100 --out schedules.jsonl

Needs an importable vLLM (0.24 to 0.32, CPU build or other). Configuration, KV cache and requests are built by hand;
then each step is one ``schedule()`` and one ``update_from_output()`` with made-up tokens. Under async scheduling the
update is that of the step before, as in ``EngineCore.step_with_batch_queue`` at depth 2.

A schedule is one JSON object: `name`, `vllm` (its version), `engine` (settings; num_gpu_blocks includes the null
block), `events` (each happens before the step it names, in order; `live` says whether an aborted request was there,
`ok` what a cache reset returned), `steps` (see `sim.engine.Step`), `preemptions` and `complete` (whether all requests
had ended when the recording did).
"""

import argparse
import json
import logging
import os
import random
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from tests.conformance.scenarios import MAX_STEPS, Scenario, output_base, random_scenario

TINY_MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 65536,
    "torch_dtype": "float32",
}


class Recorder:
    """The real scheduler. Making one imports vLLM, which takes seconds; a scheduler takes milliseconds."""

    def __init__(self) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        logging.getLogger("vllm").setLevel(logging.ERROR)
        import vllm
        from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import init_none_hash

        init_none_hash(sha256)
        self.version: str = vllm.__version__
        longest = TINY_MODEL["max_position_embeddings"]
        with tempfile.TemporaryDirectory() as model:
            Path(model, "config.json").write_text(json.dumps(TINY_MODEL))
            self.vllm_config = VllmConfig(
                model_config=ModelConfig(
                    model=model, tokenizer=model, skip_tokenizer_init=True, max_model_len=longest, dtype="float32"
                ),
                scheduler_config=SchedulerConfig(
                    max_model_len=longest, is_encoder_decoder=False, max_num_batched_tokens=longest
                ),
                cache_config=CacheConfig(block_size=16),
            )

    def record(self, scenario: Scenario) -> Scenario:
        """The scenario with the steps that the real scheduler took."""
        return _Recording(self, scenario).run()

    def scheduler(self, engine: dict[str, Any]) -> Any:
        import torch
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        config = self.vllm_config
        config.model_config.max_model_len = engine["max_model_len"]
        config.cache_config.block_size = engine["block_size"]
        config.cache_config.num_gpu_blocks = engine["num_gpu_blocks"]
        config.cache_config.enable_prefix_caching = engine["enable_prefix_caching"]
        settings = config.scheduler_config
        settings.max_num_seqs = engine["max_num_seqs"]
        settings.max_num_batched_tokens = engine["max_num_batched_tokens"]
        settings.max_num_encoder_input_tokens = engine["max_num_batched_tokens"]
        settings.encoder_cache_size = engine["max_num_batched_tokens"]
        settings.enable_chunked_prefill = engine["enable_chunked_prefill"]
        settings.policy = engine["scheduling_policy"]
        settings.long_prefill_token_threshold = engine["long_prefill_token_threshold"]
        settings.watermark = engine["watermark"]
        settings.scheduler_reserve_full_isl = engine["scheduler_reserve_full_isl"]
        settings.async_scheduling = engine.get("async_scheduling", False)
        spec = FullAttentionSpec(block_size=engine["block_size"], num_kv_heads=2, head_size=32, dtype=torch.float32)
        return (AsyncScheduler if settings.async_scheduling else Scheduler)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=engine["num_gpu_blocks"],
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=engine["block_size"],
            log_stats=False,
        )


class _Recording:
    def __init__(self, recorder: Recorder, scenario: Scenario) -> None:
        self.vllm_version = recorder.version
        self.scenario = scenario
        self.scheduler = recorder.scheduler(scenario["engine"])
        self.depth = 2 if scenario["engine"].get("async_scheduling") else 1
        self.in_flight: deque[tuple[Any, Any]] = deque()
        self.indices = {e["id"]: e["index"] for e in scenario["events"] if e["op"] == "add"}
        self.seen: set[str] = set()
        self.preemptions: dict[str, int] = {}

    def run(self) -> Scenario:
        pending = deque(dict(event) for event in self.scenario["events"])
        events, steps = [], []
        for number in range(1, MAX_STEPS + 1):
            while pending and pending[0]["before_step"] <= number:
                event = pending.popleft()
                self.happen(event)
                events.append(event)
            if not pending and not self.scheduler.requests and not self.in_flight:
                break
            steps.append(self.step())
        return {
            **self.scenario,
            "vllm": self.vllm_version,
            "events": events,
            "steps": steps,
            "preemptions": sum(self.preemptions.values()),
            "complete": not pending and not self.scheduler.requests,
        }

    def happen(self, event: dict[str, Any]) -> None:
        from vllm.v1.core.sched.interface import PauseState
        from vllm.v1.request import RequestStatus

        scheduler = self.scheduler
        match event["op"]:
            case "add":
                scheduler.add_request(self.request(event))
            case "abort":
                event["live"] = event["id"] in scheduler.requests
                scheduler.finish_requests(event["id"], RequestStatus.FINISHED_ABORTED)
            case "reset_prefix_cache":
                event["ok"] = scheduler.reset_prefix_cache(event.get("reset_running_requests", False))
                self.count_preemptions()
            case "pause":
                if event["mode"] == "abort":
                    scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
                keep = event["mode"] == "keep"
                scheduler.set_pause_state(PauseState.PAUSED_ALL if keep else PauseState.PAUSED_NEW)
            case "resume":
                scheduler.set_pause_state(PauseState.UNPAUSED)
            case other:
                raise ValueError(f"op={other!r} is not possible")

    def request(self, event: dict[str, Any]) -> Any:
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.request import Request

        base, stop_at = output_base(event["index"]), event["stop_at"]
        block_hasher = None
        if self.scenario["engine"]["enable_prefix_caching"]:
            block_hasher = get_request_block_hasher(self.scenario["engine"]["block_size"], sha256)
        return Request(
            request_id=event["id"],
            prompt_token_ids=list(event["prompt"]),
            sampling_params=SamplingParams(
                max_tokens=event["max_tokens"],
                min_tokens=event.get("min_tokens", 0),
                stop_token_ids=None if stop_at is None else [base + stop_at],
                ignore_eos=True,
            ),
            pooling_params=None,
            arrival_time=event["arrival"],
            priority=event["priority"],
            block_hasher=block_hasher,
        )

    def step(self) -> dict[str, Any]:
        scheduler = self.scheduler
        output = scheduler.schedule()
        self.count_preemptions()
        new = {data.req_id: data.num_computed_tokens for data in output.scheduled_new_reqs}
        cached = {id_: tokens for id_, tokens in new.items() if id_ not in self.seen}
        self.seen |= cached.keys()
        waiting = [*scheduler.waiting, *getattr(scheduler, "skipped_waiting", ())]
        step = {
            "scheduled": dict(output.num_scheduled_tokens),
            "cached": cached,
            "preempted": sorted(output.preempted_req_ids or ()),
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in waiting],
        }
        self.in_flight.append((output, self.model_output(output)))
        outputs = []
        if len(self.in_flight) == self.depth:
            for of_client in scheduler.update_from_output(*self.in_flight.popleft()).values():
                outputs += of_client.outputs
        emitted = {o.request_id: len(o.new_token_ids) for o in outputs if o.new_token_ids}
        finished = {o.request_id: str(o.finish_reason) for o in outputs if o.finish_reason is not None}
        free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return {**step, "emitted": emitted, "finished": finished, "free_blocks": free_blocks}

    def count_preemptions(self) -> None:
        for id_, request in self.scheduler.requests.items():
            self.preemptions[id_] = request.num_preemptions

    def model_output(self, output: Any) -> Any:
        """A token for each request that has nothing left to compute, none for an unfinished prefill."""
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        sampled = []
        for id_ in ids:
            request = self.scheduler.requests[id_]
            position = request.num_output_tokens + max(request.num_output_placeholders - 1, 0)
            sampled.append([] if request.is_prefill_chunk else [output_base(self.indices[id_]) + position])
        return ModelRunnerOutput(
            req_ids=ids, req_id_to_index={id_: i for i, id_ in enumerate(ids)}, sampled_token_ids=sampled
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Record schedules of the real vLLM scheduler on random scenarios.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9), help="default: a fresh one")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file")
    args = parser.parse_args()
    print(f"seed {args.seed}", file=sys.stderr)
    recorder = Recorder()
    with args.out.open("w") as out:
        for number in range(args.count):
            out.write(json.dumps(recorder.record(random_scenario(args.seed, number)), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
