"""vLLM's flags and verl's overrides as words."""

from typing import Any

import pytest

from sim.preflight.launch import UNKNOWN, PreflightError, Word
from sim.preflight.read_flags import read_overrides, read_vllm_command, read_words


def values(texts: list[str]) -> dict[str, Any]:
    (launch,) = read_words(texts)
    return {name: setting.value for name, setting in launch.settings.items()}


def test_vllm_spellings() -> None:
    assert values(["--max-num-batched-tokens", "8192", "--no-enable-chunked-prefill"]) == {
        "max_num_batched_tokens": 8192,
        "enable_chunked_prefill": False,
    }
    assert values(["--max_model_len=32K", "-tp", "2", "--watermark", "0"]) == {
        "max_model_len": 32_768,
        "tensor_parallel_size": 2,
        "watermark": 0.0,
    }
    assert values(["--max-model-len", "auto"]) == {"max_model_len": -1}
    assert values(["--max-model-len", "-1"]) == {"max_model_len": -1}
    assert values(["--max-num-batched-tokens", "25.6k"]) == {"max_num_batched_tokens": 25_600}
    assert values(["--enable-chunked-prefill", "--no-enable-chunked-prefill"]) == {"enable_chunked_prefill": False}


def test_a_whole_command_line() -> None:
    launch = read_vllm_command("vllm serve org/model \\\n  --max-model-len 4096 --port 8000  # local")
    assert launch.model == "org/model"
    assert launch.settings["max_model_len"].value == 4096
    assert launch.ignored == ("--port",)


def test_verl_spellings() -> None:
    path = "actor_rollout_ref.rollout"
    assert values([f"{path}.max_model_len=null", f"++{path}.enable_chunked_prefill=False"]) == {
        "max_model_len": None,
        "enable_chunked_prefill": False,
    }
    assert values(["max_num_batched_tokens=8192"]) == {"max_num_batched_tokens": 8192}
    assert values([f"+{path}.engine_kwargs.vllm.block_size=32"]) == {"engine_kwargs.vllm.block_size": 32}
    assert values([f"{path}.max_model_len=4096", f"~{path}.max_model_len"]) == {}
    assert values(["data.max_prompt_length=1024", f"{path}.response_length=2048"]) == {
        "prompt_length": 1024,
        "response_length": 2048,
    }


def test_the_last_override_wins() -> None:
    path = "actor_rollout_ref.rollout.enable_chunked_prefill"
    assert values([f"{path}=False", f"{path}=True"]) == {"enable_chunked_prefill": True}


def test_each_engine_is_a_launch_of_its_own() -> None:
    words = [
        Word("actor_rollout_ref.rollout.max_model_len=4096"),
        Word("reward.reward_model.rollout.max_model_len=8192"),
        Word("actor_rollout_ref.model.path=org/model"),
    ]
    policy, reward = read_overrides(words)
    assert (policy.engine, policy.model) == ("actor_rollout_ref.rollout", "org/model")
    assert (reward.engine, reward.model) == ("reward.reward_model.rollout", None)


def test_what_is_not_known_is_kept_apart() -> None:
    (launch,) = read_overrides([Word(f"actor_rollout_ref.rollout.max_model_len={UNKNOWN}")])
    assert launch.settings == {}
    assert list(launch.unknown) == ["max_model_len"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["--max-model-len", "many"], "--max-model-len many: expected an integer"),
        (["--max-model-len"], "--max-model-len needs a value"),
        (["--max-num-batched-tokens", "1.5K"], "expected an integer"),
        (["--enable-chunked-prefill", "false"], "write --no-enable-chunked-prefill"),
        (["--max-modellen", "1"], "did you mean max_model_len"),
        (["4096"], "4096: expected flags of vLLM"),
        (["--max-model-len", "1", "rollout.max_model_len=2"], "use one of the two"),
        (["a.rollout.max_model_len=None"], "expected an integer or null; None is a word here, write null"),
        (["a.rollout.enable_chunked_prefill='False'"], "any quoted word counts as true"),
        (
            ["a.rollout.enable_chunked_prefill=0"],
            "a.rollout.enable_chunked_prefill = 0: expected true or false or null",
        ),
        (["a.rollout.max_num_batched_tokens=false"], "a.rollout.max_num_batched_tokens = false: expected an integer"),
        (["a.rollout.max_num_batched_tokens=8192.0"], "expected an integer or null"),
        (["a.rollout.gpu_memory_utilization=null"], "gpu_memory_utilization = null: expected a number"),
        (["a.rollout.max_num_batch_tokens=1"], "did you mean max_num_batched_tokens"),
        (["trainer.epochs=1"], "no rollout setting"),
    ],
)
def test_bad_words_name_the_thing_and_what_is_allowed(texts: list[str], message: str) -> None:
    with pytest.raises(PreflightError) as caught:
        read_words(texts)
    assert message in str(caught.value)
