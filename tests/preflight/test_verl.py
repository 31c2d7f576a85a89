"""verl's rules by hand, by release, and against the installed package's own code."""

from typing import Any

import msgspec
import pytest
import yaml
from msgspec import UNSET

from sim.preflight import installed, verl
from sim.preflight.launch import PreflightError
from sim.startup.model_shape import ModelShape

VL_3B = ModelShape(max_position_embeddings=128_000, derived_max_model_len=128_000, num_attention_heads=16)
V080, V090, V091 = (verl.release_for(v) for v in ((0, 8, 0), (0, 9, 0), (0, 9, 1)))
STALE = {"name": "vllm", "enable_chunked_prefill": False}


def found(rollout: dict[str, Any], model: ModelShape = VL_3B, **more: Any) -> dict[str, str]:
    return {f.rule: f.level for f in verl.start(rollout, model, **more).findings if f.level != "note"}


def test_the_reports_configuration_by_release() -> None:
    """Chunked prefill off, verl's 8192, a 128000-token model: ignored, ignored, and refused by a frozen field."""
    assert found(STALE, release=V080) == {"false-not-forwarded": "changed"}
    assert found(STALE, release=V090) == {"false-not-forwarded": "changed"}
    assert found(STALE, release=V091) == {"net-on-frozen-field": "refused"}
    (net,) = (f for f in verl.start(STALE, VL_3B, release=V091).findings if f.level == "refused")
    assert (net.given, net.becomes, net.condition) == (8192, 128_000, None)


def test_without_the_net_vllm_itself_refuses() -> None:
    """A release that passes false on and has no net: the crash of the report."""
    crashing = msgspec.structs.replace(V091, has_net=False)
    assert found(STALE, release=crashing) == {"batch-below-context": "refused"}


@pytest.mark.parametrize("release", [V080, V090, V091])
@pytest.mark.parametrize("backend", verl.BACKENDS)
def test_context_rule_on_every_backend(release: verl.Release, backend: str) -> None:
    assert "context-above-positions" in found({"name": backend, "max_model_len": 128_001}, release=release)
    assert "context-above-positions" not in found({"name": backend, "max_model_len": 128_000}, release=release)
    for unset in (UNSET, None):
        outcome = verl.start({"name": backend, "max_model_len": unset}, VL_3B, release=release)
        assert outcome.final["max_model_len"] == 128_000


def test_an_explicit_context_survives() -> None:
    """BUD-4: 4096 asked of a 131072-token model stays 4096."""
    model = ModelShape(max_position_embeddings=131_072, derived_max_model_len=131_072)
    assert verl.start({"name": "vllm", "max_model_len": 4096}, model).final["max_model_len"] == 4096


@pytest.mark.parametrize("backend", ["sglang", "trtllm"])
def test_other_backends_are_left_alone(backend: str) -> None:
    outcome = verl.start({**STALE, "name": backend}, VL_3B)
    assert outcome.final["max_num_batched_tokens"] == 8192
    assert outcome.starts
    assert outcome.engine is None


def test_null_is_neither_true_nor_false() -> None:
    assert found({"name": "vllm", "enable_chunked_prefill": None, "max_model_len": 4096}) == {
        "null-chunking": "changed"
    }
    assert found({"name": "vllm", "enable_chunked_prefill": None}) == {
        "net-on-frozen-field": "refused",
        "null-chunking": "changed",
    }
    assert found({"name": "vllm", "max_num_batched_tokens": None}) == {}
    assert found({**STALE, "max_num_batched_tokens": None}) == {"null-batch-in-net": "refused"}
    null = verl.start({"name": "vllm", "max_num_batched_tokens": None}, VL_3B, device="gpu-70gib")
    assert null.final["max_num_batched_tokens"] == 8192  # vLLM's own default for such a card, not verl's


def test_engine_kwargs_come_after_the_net() -> None:
    """A pass-through is not netted: the crash is back, on every release that forwards false."""
    batched, chunking = f"{verl.PASSED_ON}max_num_batched_tokens", f"{verl.PASSED_ON}enable_chunked_prefill"
    rollout = {**STALE, "max_model_len": 8192}
    assert found({**rollout, batched: 4096}) == {
        "overridden-by-engine-kwargs": "changed",
        "batch-below-context": "refused",
    }
    assert found({**rollout, batched: None}) == {}
    off = found({"name": "vllm", chunking: False})
    assert off["batch-below-context"] == "refused"
    assert found({"name": "vllm", chunking: False}, release=V090) == {
        "overridden-by-engine-kwargs": "changed",
        "false-not-forwarded": "changed",
    }


@pytest.mark.parametrize(
    ("rollout", "rule"),
    [
        ({"name": "hf"}, "unknown-backend"),
        ({"mode": "sync"}, "sync-mode-removed"),
        ({"pipeline_model_parallel_size": 2}, "pipeline-parallel-missing"),
        ({"expert_parallel_size": 8}, "expert-parallel-mismatch"),
        ({"tensor_model_parallel_size": 3}, "heads-not-divisible"),
        ({"max_num_seqs": 10_000}, "batch-below-seqs"),
        ({"prompt_length": 2048, "response_length": 8192, "max_model_len": 10_239}, "context-below-lengths"),
    ],
)
def test_other_rules_bite(rollout: dict[str, Any], rule: str) -> None:
    assert list(found({"name": "vllm", **rollout})) == [rule]


def test_nothing_to_say_about_the_defaults() -> None:
    for release in verl.RELEASES:
        assert found({"name": "vllm"}, release=release) == {}


def test_unknown_release_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"0\.7\.0 is older than .*0\.8\.0, 0\.9\.0, 0\.9\.1"):
        verl.release_for((0, 7, 0))


# Against the package.


@pytest.fixture(scope="module")
def release() -> verl.Release:
    try:
        return installed.release()
    except PreflightError:
        pytest.skip("the table of releases is held against verl where that is installed (pip install '.[verl]')")


def test_the_table_says_what_the_package_does(release: verl.Release) -> None:
    assert release == verl.release_for(release.version)


def test_defaults_are_the_packages(release: verl.Release) -> None:
    text = (installed.verl_dir() / "trainer" / "config" / "rollout" / "rollout.yaml").read_text()
    document = yaml.safe_load(text)
    ours = verl.compose({}, release)
    differing = {n: (v, document[n]) for n, v in ours.items() if v is not UNSET and document[n] != v}
    # Both follow data.max_prompt_length and data.max_response_length, 512 where those are unset.
    assert set(differing) == {"prompt_length", "response_length"}
    assert all(str(theirs).endswith(",512}") for _, theirs in differing.values())


def test_false_on_the_command_line(release: verl.Release) -> None:
    """Whether `enable_chunked_prefill: false` reaches vLLM, by verl's own builder of arguments."""
    build = installed.build_cli_args(_optional_bool_vllm_args=lambda: {"enable_chunked_prefill"}, json=None)
    arguments = build({"enable_chunked_prefill": False, "max_model_len": None, "max_num_seqs": 16})
    passed, _ = verl.forward(verl.compose({"enable_chunked_prefill": False}, release), {}, release)
    assert ("--no-enable_chunked_prefill" in arguments) == (passed.get("enable_chunked_prefill") is False)
    assert "--max_model_len" not in arguments
    assert arguments[-2:] == ["--max_num_seqs", "16"]


@pytest.mark.parametrize(
    "rollout",
    [
        {"mode": "sync"},
        {"pipeline_model_parallel_size": 2},
        {"expert_parallel_size": 8},
        {"expert_parallel_size": 2},
        {"expert_parallel_size": 8, "name": "trtllm"},
        {},
    ],
)
def test_rollout_config_refuses_the_same(release: verl.Release, rollout: dict[str, Any]) -> None:
    config = pytest.importorskip("verl.workers.config", reason="verl cannot be imported here")
    values = verl.compose({"name": "vllm", **rollout}, release)
    try:
        config.RolloutConfig(**values)
        refused = False
    except (ValueError, NotImplementedError, AssertionError):
        refused = True
    assert refused == bool(verl.check_rollout_config(values))


def test_the_released_net_dies_on_the_real_path(release: verl.Release) -> None:
    """From the package's own rollout.yaml through omegaconf to RolloutConfig: the very object its server validates."""
    import dataclasses
    import logging
    from types import SimpleNamespace

    omegaconf = pytest.importorskip("omegaconf", reason="omegaconf is not installed")
    config_utils = pytest.importorskip("verl.utils.config", reason="verl cannot be imported here")
    path = installed.verl_dir() / "trainer" / "config" / "rollout" / "rollout.yaml"
    root = omegaconf.OmegaConf.create({"actor_rollout_ref": {"rollout": omegaconf.OmegaConf.load(path)}})
    section = root.actor_rollout_ref.rollout
    section.name, section.enable_chunked_prefill = "vllm", False
    section.pop("mtp"), section.pop("qat"), section.pop("profiler")
    config = config_utils.omega_conf_to_dataclass(section)
    server = SimpleNamespace(
        config=config, model_config=SimpleNamespace(hf_config=SimpleNamespace(max_position_embeddings=128_000))
    )
    validate = installed.validate_configs(
        get_max_position_embeddings=lambda hf: hf.max_position_embeddings, logger=logging.getLogger("quiet")
    )
    if release.has_net and release.batch_is_frozen:
        with pytest.raises(dataclasses.FrozenInstanceError, match="max_num_batched_tokens"):
            validate(server)
    else:
        validate(server)
    assert config.max_num_batched_tokens == (128_000 if release.has_net and not release.batch_is_frozen else 8192)
