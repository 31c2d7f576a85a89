"""A fake vLLM engine whose every scheduling step equals that of vLLM's V1 scheduler. It knows no clock and no asyncio.

    engine = Engine(EngineConfig(num_gpu_blocks=20, block_size=4, max_num_seqs=4, max_num_batched_tokens=24,
                                 max_model_len=48))
    engine.add(EngineRequest(request_id="a", prompt_token_ids=range(10), max_tokens=8))
    engine.step().scheduled     # {"a": 10}

Read `scheduler` first: a step is there. `kv_cache` has the blocks, `decodes` the reason why it is fast.

Left out, as they need a model or another worker: speculative decoding, images, LoRA, structured output, streaming
input, KV connectors, sliding windows and Mamba layers (more than one kind of KV block), pipeline and data parallelism;
and the settings max_num_active_seqs and long_prefill_token_threshold_adaptive, which are off by default.
"""

from sim.engine.config import VERSION_RULES, EngineConfig, VersionRules
from sim.engine.engine import Engine, Run, Step, StepTotals, TokenRun
from sim.engine.request import EngineRequest

__all__ = [
    "VERSION_RULES",
    "Engine",
    "EngineConfig",
    "EngineRequest",
    "Run",
    "Step",
    "StepTotals",
    "TokenRun",
    "VersionRules",
]
