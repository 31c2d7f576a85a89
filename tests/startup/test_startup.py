"""vLLM's start-up rules without vLLM: hand-made cases, what the real engine answered on record, planted faults."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from sim.startup import start as starting
from sim.startup.kv_pool import blocks_needed, fit_pool
from sim.startup.model_shape import ModelShape, model_from_config
from sim.startup.rules import Finding, Version
from sim.startup.start import start

PLAIN = ModelShape(max_position_embeddings=4096, derived_max_model_len=4096, num_attention_heads=4)
RECORDED = sorted((Path(__file__).parent.parent / "data" / "startup").glob("vllm-*.json"))


def rules(flags: dict[str, Any], model: ModelShape = PLAIN, **more: Any) -> set[str]:
    return {f.rule for f in start(flags, model, **more).findings}


def refused(flags: dict[str, Any], model: ModelShape = PLAIN, **more: Any) -> set[str]:
    return {f.rule for f in start(flags, model, **more).findings if f.level == "refused"}


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        ({"max_num_batched_tokens": 2048, "enable_chunked_prefill": False}, "batch-below-context"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, "batch-below-seqs"),
        ({"max_model_len": 4097}, "context-above-model"),
        ({"long_prefill_token_threshold": 4097}, "threshold-above-context"),
        ({"tensor_parallel_size": 3}, "heads-not-divisible"),
        ({"max_model_len": 0}, "out-of-range"),
        ({"max_model_len": -2}, "out-of-range"),
        ({"max_num_seqs": 0}, "out-of-range"),
        ({"max_num_batched_tokens": 0}, "out-of-range"),
        ({"gpu_memory_utilization": 0.0}, "out-of-range"),
        ({"gpu_memory_utilization": 1.01}, "out-of-range"),
        ({"watermark": 1.0}, "out-of-range"),
        ({"scheduling_policy": "lifo"}, "unknown-choice"),
        ({"dtype": "fp16"}, "unknown-choice"),
        ({"kv_cache_dtype": "bf16"}, "unknown-choice"),
        ({"watermark": None}, "wrong-null"),
        ({"max_num_active_seqs": 300}, "active-above-seqs"),
        ({"load_format": "nonsense"}, "unknown-load-format"),
        ({"block_size": 7}, "odd-block-size"),
        ({"max_model_len": 4096, "num_gpu_blocks_override": 256}, "pool-below-context"),
    ],
)
def test_refused_for_its_own_reason(flags: dict[str, Any], rule: str) -> None:
    assert refused(flags) == {rule}


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"max_num_batched_tokens": 4096, "enable_chunked_prefill": False},
        {"max_num_batched_tokens": 16, "max_num_seqs": 16},
        {"max_model_len": 4096, "long_prefill_token_threshold": 4096},
        {"tensor_parallel_size": 4, "gpu_memory_utilization": 1.0, "watermark": 0.99},
        {"max_model_len": 4096, "num_gpu_blocks_override": 257},
    ],
)
def test_the_nearest_allowed_case_starts(flags: dict[str, Any]) -> None:
    assert start(flags, PLAIN).starts


def test_unset_null_and_false_are_three_answers() -> None:
    """Unset and null leave chunked prefill on; false turns it off, and the batch default follows the context."""
    unset, null = start({}, PLAIN), start({"enable_chunked_prefill": None}, PLAIN)
    false = start({"enable_chunked_prefill": False}, PLAIN)
    assert unset.final["enable_chunked_prefill"] is null.final["enable_chunked_prefill"] is True
    assert false.final["enable_chunked_prefill"] is False
    assert (unset.final["max_num_batched_tokens"], false.final["max_num_batched_tokens"]) == (2048, 4096)
    assert "wrong-null" in rules({"dtype": None})
    assert "wrong-null" not in rules({})


def test_silent_changes_carry_both_values() -> None:
    changed = {f.setting: (f.given, f.becomes) for f in start({"max_num_batched_tokens": 8}, PLAIN).findings}
    assert changed["max_num_seqs"] == (256, 8)
    changed = {f.setting: (f.given, f.becomes) for f in start({"enable_chunked_prefill": False}, PLAIN).findings}
    assert changed["max_num_batched_tokens"] == (2048, 4096)


def test_stages_tell_what_create_engine_config_lets_through() -> None:
    late = start({"load_format": "nonsense", "block_size": 7, "num_gpu_blocks_override": 2}, PLAIN)
    assert late.accepted
    assert not late.starts
    assert {f.stage for f in late.findings if f.level == "refused"} == {"worker", "engine core"}


def test_unknown_model_gives_a_condition_not_a_guess() -> None:
    open_verdict = start({"enable_chunked_prefill": False, "max_num_batched_tokens": 8192})
    (found,) = (f for f in open_verdict.findings if f.level == "refused")
    assert found.condition == "the model's context length is more than 8192"
    assert open_verdict.final["max_model_len"] is UNSET


def test_pool_rule_by_hand() -> None:
    """10241 tokens in blocks of 128 are 81 blocks; from 0.29 on the null block makes it 82."""
    assert (blocks_needed(10241, 128), blocks_needed(10241, 128, (0, 28))) == (82, 81)
    assert fit_pool(10241, 128, 82)[1] == []
    assert [f.rule for f in fit_pool(10241, 128, 81)[1]] == ["pool-below-context"]
    assert fit_pool(10241, 128, 81, version=(0, 28))[1] == []
    length, (found,) = fit_pool(10241, 128, 41, auto=True)
    assert (length, found.level, found.given, found.becomes) == (40 * 128, "changed", 10241, 5120)
    assert [f.rule for f in fit_pool(10241, 128, 1, auto=True)[1]] == ["pool-below-context"]


@pytest.mark.parametrize(
    ("flags", "last_without", "first_with", "rule"),
    [
        ({"long_prefill_token_threshold": -1}, (0, 24), (0, 25), "out-of-range"),
        ({"long_prefill_token_threshold": 5000}, (0, 26), (0, 27), "threshold-above-context"),
        ({"max_model_len": 4096, "num_gpu_blocks_override": 256}, (0, 28), (0, 29), "pool-below-context"),
    ],
)
def test_rules_begin_with_their_release(
    flags: dict[str, Any], last_without: Version, first_with: Version, rule: str
) -> None:
    assert rule not in rules(flags, version=last_without)
    assert rule in rules(flags, version=first_with)


def test_a_flag_is_unknown_before_its_release() -> None:
    assert rules({"max_num_active_seqs": 8}, version=(0, 30)) == {"unknown-flag"}
    assert not refused({"max_num_active_seqs": 8}, version=(0, 31))


def test_why_people_turned_chunked_prefill_off() -> None:
    """A vision model with chunked prefill on a vLLM of early March 2025 (issue 15185): risky then, not since."""
    vision = ModelShape(derived_max_model_len=4096, is_vision=True)
    assert "vision-with-chunking" in rules({}, vision, version=(0, 8, 1))
    assert "vision-with-chunking" not in rules({"enable_chunked_prefill": False}, vision, version=(0, 8, 1))
    assert "vision-with-chunking" not in rules({}, vision, version=(0, 8, 2))
    assert "vision-with-chunking" not in rules({}, PLAIN, version=(0, 8, 1))


def test_encoder_decoder_runs_without_chunking() -> None:
    answer = start({"enable_chunked_prefill": True}, ModelShape(derived_max_model_len=4096, is_encoder_decoder=True))
    assert answer.final["enable_chunked_prefill"] is False
    assert next(f.rule for f in answer.findings if f.level == "changed") == "encoder-decoder-no-chunking"


def test_model_from_config_reads_both_lengths() -> None:
    """verl reads max_position_embeddings as it stands; vLLM stretches it by linear RoPE scaling."""
    text = {"max_position_embeddings": 4096, "num_attention_heads": 8, "hidden_size": 512, "num_hidden_layers": 2}
    plain = model_from_config(text)
    assert (plain.max_position_embeddings, plain.derived_max_model_len, plain.head_dim) == (4096, 4096, 64)
    assert plain.num_key_value_heads == 8
    stretched = model_from_config({**text, "rope_scaling": {"type": "linear", "factor": 4}})
    assert (stretched.max_position_embeddings, stretched.derived_max_model_len) == (4096, 16384)
    yarn = model_from_config({**text, "rope_scaling": {"rope_type": "yarn", "factor": 4}})
    assert yarn.derived_max_model_len == 4096
    vision = model_from_config({"vision_config": {}, "text_config": text})
    assert (vision.is_vision, vision.max_position_embeddings) == (True, 4096)
    assert model_from_config({}).max_position_embeddings is UNSET
    assert model_from_config({}).derived_max_model_len == 2048


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_the_real_engine_answered(path: Path) -> None:
    """Verdict and final values as vLLM itself gave them, recorded by tests/conformance/record_startup.py."""
    record = json.loads(path.read_text())
    version = tuple(int(part) for part in record["vllm"].split(".")[:2])
    models = {name: model_from_config(config) for name, config in record["models"].items()}
    for case in record["cases"]:
        answer = start(case["flags"], models[case["model"]], version=version, device="cpu", usage=case["usage"])
        assert answer.accepted == (case["held"] is not None), case
        for name, held in (case["held"] or {}).items():
            if name == "max_model_len" and any(f.rule == "context-fitted-to-pool" for f in answer.findings):
                continue  # the record ends before the pool exists
            ours = answer.final.get(name, UNSET)
            assert (None if ours is UNSET else ours) == held, (name, case)


def test_the_record_would_catch_a_forgotten_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a preflight that takes false for unset."""
    assert RECORDED, "no record of the real engine in tests/data/startup"

    def never_off(_given: Any, _is_encoder_decoder: bool) -> tuple[bool, list[Finding]]:
        return True, []

    monkeypatch.setattr(starting, "chunking_in_force", never_off)
    with pytest.raises(AssertionError):
        test_what_the_real_engine_answered(RECORDED[-1])
