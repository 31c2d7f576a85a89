"""The start-up rules against vLLM's own `create_engine_config` and `get_kv_cache_configs`: same verdict, same values.

Runs on any release from 0.24 on, CPU build included; the rules are asked for the release that is installed.
ROLLCAGE_LIVE_DRAWS sets the number of random draws (2000).
"""

import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
pytest.importorskip(
    "vllm",
    reason="start-up rules are held against the real engine where vLLM is installed (pip install '.[vllm]')",
)

import vllm
from msgspec import UNSET
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext

from sim.preflight import vllm_config_file
from sim.preflight.read_yaml import read_yaml
from sim.startup import batch
from sim.startup import start as starting
from sim.startup.kv_pool import blocks_needed
from sim.startup.model_shape import model_from_config
from sim.startup.start import start

VERSION = tuple(int(part) for part in vllm.__version__.split(".")[:2])
DRAWS = int(os.environ.get("ROLLCAGE_LIVE_DRAWS", "2000"))
USAGES = {"engine": None, "serve": UsageContext.OPENAI_API_SERVER, "llm": UsageContext.LLM_CLASS}

TINY = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "intermediate_size": 256,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
MODELS: dict[str, dict[str, Any]] = {
    "plain": TINY,
    "stretched": {**TINY, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "yarn": {
        **TINY,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    },
    "long": {**TINY, "max_position_embeddings": 131072},
    "own length": {**TINY, "model_max_length": 2000},
}
COMPARED = (
    "max_model_len", "max_num_batched_tokens", "max_num_seqs", "max_num_active_seqs", "enable_chunked_prefill",
    "enable_prefix_caching", "long_prefill_token_threshold", "scheduling_policy", "watermark", "tensor_parallel_size",
    "pipeline_parallel_size", "gpu_memory_utilization", "num_gpu_blocks_override", "block_size",
)  # fmt: skip


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for name, config in MODELS.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    return {name: root / name for name in MODELS}


def real(flags: dict[str, Any], model_dir: Path, usage: str) -> tuple[dict[str, Any] | None, str]:
    """vLLM's own answer: the final values, or None and its error."""
    fixed = {"model": str(model_dir), "skip_tokenizer_init": True, "enforce_eager": True}
    try:
        args = EngineArgs(**{"load_format": "dummy"} | fixed | flags)
        config = args.create_engine_config(usage_context=USAGES[usage])
    except (ValueError, TypeError, AssertionError) as error:
        return None, str(error)
    held = {name: getattr(config.scheduler_config, name, None) for name in COMPARED}
    held |= {name: getattr(config.cache_config, name) for name in COMPARED if hasattr(config.cache_config, name)}
    held |= {name: getattr(config.parallel_config, name) for name in COMPARED if hasattr(config.parallel_config, name)}
    held |= {"max_model_len": config.model_config.max_model_len, "scheduling_policy": config.scheduler_config.policy}
    return held, ""


def difference(flags: dict[str, Any], model: str, model_dirs: dict[str, Path], usage: str) -> str | None:
    """None when both agree, else a line that says how they do not."""
    held, error = real(flags, model_dirs[model], usage)
    ours = start(flags, model_from_config(MODELS[model]), version=VERSION, device="cpu", usage=usage)
    case = f"{flags} on {model!r} as {usage}"
    if (held is not None) != ours.accepted:
        return f"{case}: vLLM {'accepts' if held else 'refuses'}, we say {ours.findings}; {error[:300]}"
    if held is None:
        settings = {f.setting for f in ours.findings if f.level == "refused"}
        words = error.replace("policy", "scheduling_policy").replace("cache_dtype", "kv_cache_dtype")
        words = words.replace("tensor parallel size", "tensor_parallel_size").replace("unexpected keyword", "")
        return None if any(s in words for s in settings) else f"{case}: vLLM says {error[:300]}, we blame {settings}"
    expected = {n: None if ours.final.get(n, UNSET) is UNSET else ours.final[n] for n in COMPARED}
    # The pool rule bites later, in the engine core, and is held against get_kv_cache_configs below.
    if any(f.rule == "context-fitted-to-pool" for f in ours.findings):
        expected["max_model_len"] = held["max_model_len"]
    wrong = {n: (held[n], expected[n]) for n in COMPARED if held[n] != expected[n]}
    return f"{case}: (vLLM, ours) {wrong}" if wrong else None


GRID = {
    "max_model_len": (UNSET, None, -1, 0, 1, 64, 4096, 5000),
    "max_num_batched_tokens": (UNSET, None, 0, 8, 64, 2048, 4096, 100_000),
    "max_num_seqs": (UNSET, None, 1, 16, 128, 3000),
    "enable_chunked_prefill": (UNSET, None, True, False),
}


def test_every_combination_of_the_grid_agrees(model_dirs: dict[str, Path]) -> None:
    combinations = list(itertools.product(*GRID.values()))
    assert len(combinations) >= 500
    wrong = []
    for values in combinations:
        flags = {name: value for name, value in zip(GRID, values, strict=True) if value is not UNSET}
        wrong.append(difference(flags, "plain", model_dirs, "engine"))
    assert not any(wrong), "\n".join(line for line in wrong if line)


POOL: dict[str, tuple[Any, ...]] = {
    **GRID,
    "max_model_len": (*GRID["max_model_len"], -2, 1500, 2000, 2001, 4097, 8192, 8193, 131072, 131073),
    "max_num_seqs": (*GRID["max_num_seqs"], 0, -1, 256, 257),
    "max_num_batched_tokens": (*GRID["max_num_batched_tokens"], -5, 1, 127, 1500, 8192, 131072),
    "max_num_active_seqs": (UNSET, UNSET, UNSET, None, 0, 1, 128, 500),
    "enable_prefix_caching": (UNSET, None, True, False),
    "long_prefill_token_threshold": (UNSET, UNSET, UNSET, 0, 64, 4096, 5000, -1, None),
    "scheduling_policy": (UNSET, UNSET, UNSET, UNSET, "fcfs", "priority", "lifo", None),
    "watermark": (UNSET, UNSET, UNSET, UNSET, 0.0, 0.5, 0.99, 1.0, -0.1, None),
    "tensor_parallel_size": (UNSET, UNSET, UNSET, 1, 2, 3, 4, 8, 0, None),
    "pipeline_parallel_size": (UNSET, UNSET, UNSET, UNSET, 1, 2),
    "gpu_memory_utilization": (UNSET, UNSET, UNSET, UNSET, 0.5, 1.0, 1.01, 0.0, None),
    "num_gpu_blocks_override": (UNSET, UNSET, None, 1, 3, 32, 33, 34, 1000),
    "block_size": (UNSET, UNSET, UNSET, None, 7, 16, 32, 128, 0),
    "kv_cache_dtype": (UNSET, UNSET, UNSET, UNSET, UNSET, "auto", "fp8", "bf16", None, "nvfp4_4over6"),
    "dtype": (UNSET, UNSET, UNSET, UNSET, UNSET, "auto", "bfloat16", "float16", "fp16", None),
    "load_format": (UNSET, UNSET, UNSET, "dummy", "nonsense"),
}


def test_random_draws_agree(model_dirs: dict[str, Path]) -> None:
    draw = random.Random(7632)
    wrong = []
    started = 0
    for _ in range(DRAWS):
        # Two in three settings left alone, or nearly every draw is refused for one of its sixteen values.
        flags = {name: draw.choice(values) for name, values in POOL.items() if draw.random() < 0.34}
        flags = {name: value for name, value in flags.items() if value is not UNSET}
        model, usage = draw.choice(list(MODELS)), draw.choice(list(USAGES))
        wrong.append(difference(flags, model, model_dirs, usage))
        started += start(flags, model_from_config(MODELS[model]), version=VERSION).accepted
    assert not any(wrong), "\n".join([f"{sum(map(bool, wrong))} differ", *[line for line in wrong if line][:40]])
    # Both verdicts must be common, or agreement would mean little.
    assert 0.2 * DRAWS < started < 0.8 * DRAWS


@pytest.mark.parametrize(
    ("flags", "forgotten"),
    [
        ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, "check_batch"),
        ({"max_num_batched_tokens": 64, "enable_chunked_prefill": False}, "check_batch"),
        ({"tensor_parallel_size": 3}, "check_ranks"),
        ({"max_num_seqs": 0}, "check_flags"),
    ],
)
def test_a_forgotten_rule_shows(
    flags: dict[str, Any], forgotten: str, model_dirs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: rules that find nothing. The comparison must tell."""
    assert difference(flags, "plain", model_dirs, "engine") is None
    monkeypatch.setattr(starting, forgotten, lambda *_: [])
    told = difference(flags, "plain", model_dirs, "engine")
    assert told is not None
    assert "vLLM refuses" in told


def test_a_wrong_final_value_shows(model_dirs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(batch.BATCH_DEFAULTS, ("cpu", "serve"), batch.BatchDefaults(2048, 127, per_rank=True))
    told = difference({}, "plain", model_dirs, "serve")
    assert told is not None
    assert "'max_num_seqs': (128, 127)" in told


def test_longer_context_by_environment(model_dirs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    held, _ = real({"max_model_len": 5000}, model_dirs["plain"], "serve")
    model = model_from_config(TINY)
    ours = start({"max_model_len": 5000}, model, version=VERSION, device="cpu", allow_longer_context=True)
    assert held is not None
    assert ours.accepted
    assert held["max_model_len"] == ours.final["max_model_len"] == 5000


CONFIG_FILES = (
    "enable-chunked-prefill: false",
    "enable_chunked_prefill: false",
    "no-enable-chunked-prefill: true",
    "enable-chunked-prefill: true",
    "enable_prefix_caching: false",
    "max-model-len: null",
    "max_num_seqs: null",
    "max-num-batched-tokens: 8k",
    "max-model-len: 32K",
    "max_model_len: 4096",
)


@pytest.mark.parametrize("text", CONFIG_FILES)
def test_config_file_agrees(text: str, tmp_path: Path) -> None:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    file = tmp_path / "serve.yaml"
    file.write_text(text + "\n")
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    try:
        parsed = vars(parser.parse_args(parser.load_config_file(str(file))))
    except SystemExit:
        parsed = {}
    (launch,) = read_yaml(text + "\nmodel: tiny\n", "serve.yaml", {})
    passed, found = vllm_config_file.forward(launch.settings, VERSION)
    refused = any(f.level == "refused" for f in found)
    assert refused == (not parsed)
    for name in launch.settings if parsed else ():
        assert parsed[name] == passed.get(name), f"{text}: vLLM has {parsed[name]}, we {passed}"


@pytest.mark.parametrize("block_size", [16, 32, 128])
@pytest.mark.parametrize("max_model_len", [-1, 1, 127, 128, 129, 1000, 4096])
def test_pool_rule_agrees(block_size: int, max_model_len: int, model_dirs: dict[str, Path]) -> None:
    """One block less is refused, and what is needed is enough; with -1 the length shrinks to the same value."""
    import torch
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    full = 4096 if max_model_len == -1 else max_model_len
    needed = blocks_needed(full, block_size, VERSION)
    for blocks in {1, 2, needed - 1, needed, needed + 1, 3 * needed}:
        if blocks < 1:
            continue
        flags = {"max_model_len": max_model_len, "block_size": block_size, "num_gpu_blocks_override": blocks}
        args = EngineArgs(model=str(model_dirs["plain"]), load_format="dummy", skip_tokenizer_init=True, **flags)
        config = args.create_engine_config()
        if hasattr(config.cache_config, "kv_cache_layout") and config.cache_config.kv_cache_layout is None:
            config.cache_config.kv_cache_layout = "LBNHC"
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
        try:
            get_kv_cache_configs(config, [{"layer.0": spec, "layer.1": spec}], [1 << 30])
            real_length: int | None = config.model_config.max_model_len
        except ValueError:
            real_length = None
        ours = start(flags, model_from_config(TINY), version=VERSION, device="cpu")
        pool_ok = not any(f.rule == "pool-below-context" for f in ours.findings)
        assert (real_length is not None) == pool_ok, (blocks, needed)
        if pool_ok:
            assert ours.final["max_model_len"] == real_length
