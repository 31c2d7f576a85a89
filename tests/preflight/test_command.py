"""The command line: exit codes, both reports, errors that name the thing."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cli.preflight import preflight

LAUNCH = Path(__file__).parent.parent / "data" / "launch"
ROLLOUT = "actor_rollout_ref.rollout"
STALE = [f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.enable_chunked_prefill=False"]


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(preflight, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def as_json(*arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run("--json", *arguments).stdout)
    return answer


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((f"{ROLLOUT}.name=vllm",), 0),
        (("--max-model-len", "4096", "--max-num-batched-tokens", "8192", "--no-enable-chunked-prefill"), 0),
        (("--max-model-len", "32K", "--max-num-batched-tokens", "8192", "--no-enable-chunked-prefill"), 1),
        ((*STALE,), 1),
        ((*STALE, "--target", "verl==0.9.0"), 0),
        ((*STALE, "--max-position-embeddings", "8192"), 0),
        ((*STALE, f"{ROLLOUT}.max_model_len=8192"), 0),
        ((str(LAUNCH),), 1),
        ((str(LAUNCH / "serve" / "run_serve.sh"),), 0),
        (("--from", str(LAUNCH / "configs" / "grpo_stale.yaml")), 1),
        (("--from", str(LAUNCH / "configs" / "grpo.yaml")), 0),
        (("--from", str(LAUNCH / "configs" / "grpo_stale.yaml"), f"{ROLLOUT}.enable_chunked_prefill=True"), 0),
        ((), 2),
        (("no/such/dir",), 2),
        (("--from", "no/such/file"), 2),
        ((*STALE, "--target", "verl==0.1"), 2),
        ((*STALE, "--target", "sglang==0.5"), 2),
        ((*STALE, "--target", "vllm==new"), 2),
        ((*STALE, "--model", "no/such/model"), 2),
        ((f"{ROLLOUT}.max_model_len=many",), 2),
    ],
)
def test_exit_codes(arguments: tuple[str, ...], code: int) -> None:
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    if code == 2:
        assert result.stderr.startswith("preflight: ")
        assert result.stdout == ""


def test_a_launch_in_words(tmp_path: Path) -> None:
    """The report's own case: who is to blame, both values, the rule and its release, the remedy, the cost."""
    config = {
        "max_position_embeddings": 128_000,
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vision_config": {},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    single = f"{ROLLOUT}.tensor_model_parallel_size=1"
    text = run(*STALE, single, "--model", str(tmp_path), "--target", "verl==0.9.1", "--target", "vllm==0.32").stdout
    for words in (
        "refused  command line  actor_rollout_ref.rollout.enable_chunked_prefill=false",
        "net-on-frozen-field (verl server; verl==0.9.1, vllm==0.32)",
        "max_num_batched_tokens: 8192 → 128000",
        "raising by 119808 tokens; about 8.28 GiB more activation memory a rank",
        "room for 241280 tokens of KV cache gone with it",
        "one request of full length needs 4.39 GiB of KV cache",
        "drop the stale enable_chunked_prefill=False, or set max_model_len explicitly",
        "would be refused: 1 of 1 launch (1 refused)",
    ):
        assert words in text


def test_json_keeps_unset_null_and_false_apart() -> None:
    answer = as_json(*STALE, f"{ROLLOUT}.max_model_len=null", "--target", "verl==0.9.0")
    (launch,) = answer["launches"]
    findings = {finding["rule"]: finding for finding in launch["findings"]}
    assert findings["false-not-forwarded"]["given"] is False
    assert findings["false-not-forwarded"]["becomes"] is True
    assert findings["context-is-models"]["given"] is None
    assert "becomes" not in findings["context-is-models"]
    assert launch["final"]["max_model_len"] == "unset"
    assert answer["verdict"] == launch["verdict"] == "starts"


def test_json_of_a_scan_names_file_and_line() -> None:
    answer = as_json(str(LAUNCH))
    assert answer["verdict"] == "refused"
    places = {f"{o['places'][0]['file']}:{o['places'][0]['line']}" for o in answer["offenders"]}
    assert f"{LAUNCH}/examples/run_vl_7b_stale.sh:15" in places


def test_json_is_json_even_when_nothing_can_be_read() -> None:
    result = run("--json", "no/such/dir")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["errors"] == ["no/such/dir: no such file or directory"]


def test_environment_feeds_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHUNKED", "true")
    assert run("--from", str(LAUNCH / "configs" / "grpo_stale.yaml")).exit_code == 0


def test_dated_rules_say_so() -> None:
    flags = ("--max-num-active-seqs", "300", "--max-num-seqs", "256")
    assert "active-above-seqs (config; from vllm 0.31 on; vllm==0.32)" in run(*flags).stdout


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.sampled_from(("--max-model-len", "rollout.max_model_len", "vllm", "serve", "--from", "-1", "--json"))
        | st.text(alphabet="=-.~+ab0'nul", max_size=12),
        max_size=5,
    )
)
def test_any_words_give_an_answer_and_no_traceback(words: list[str]) -> None:
    with contextlib.chdir(LAUNCH / "serve"):  # a word may name the working directory, all of which is read then
        result = run(*words)
    assert result.exit_code in (0, 1, 2)
    assert "Traceback" not in result.output


def test_vllms_switch_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--max-model-len", "5000", "--max-position-embeddings", "4096")
    assert run(*flags).exit_code == 1
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    assert run(*flags).exit_code == 0


def test_the_setting_that_decides_is_blamed() -> None:
    """A pass-through over the rollout setting, and vLLM's name for a setting that verl names otherwise."""
    passed_on = f"+{ROLLOUT}.engine_kwargs.vllm.max_num_batched_tokens=4096"
    (refused,) = (
        o for o in as_json(*STALE, f"{ROLLOUT}.max_model_len=8192", passed_on)["offenders"] if o["level"] == "refused"
    )
    assert refused["spelled"] == f"{ROLLOUT}.enable_chunked_prefill=false"
    (seqs,) = as_json(f"{ROLLOUT}.max_num_seqs=64", passed_on.replace("4096", "32"))["offenders"][:1]
    assert seqs["spelled"] == f"{ROLLOUT}.engine_kwargs.vllm.max_num_batched_tokens=32"
    (ranks,) = as_json(f"{ROLLOUT}.tensor_model_parallel_size=0")["offenders"]
    assert ranks["spelled"] == f"{ROLLOUT}.tensor_model_parallel_size=0"


def test_a_value_not_known_softens_the_verdict(tmp_path: Path) -> None:
    """max_model_len from a command's output: nobody can say that it is too long."""
    script = tmp_path / "run.sh"
    script.write_text(f"python3 -m verl.x {' '.join(STALE)} {ROLLOUT}.max_model_len=$(cat length)\n")
    result = run(str(script))
    assert result.exit_code == 0
    assert "max_model_len is set to something not known here" in result.stdout


def test_help_says_that_a_file_works_too() -> None:
    assert "one file (a launch script, YAML, a CI workflow)" in " ".join(run("--help").stdout.split())


def test_an_empty_word_is_not_the_working_directory() -> None:
    result = run("")
    assert result.exit_code == 2
    assert "a word is empty" in result.stderr


def test_a_pipe_is_no_file_to_judge(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "launch.sh")
    for words in ([str(tmp_path / "launch.sh")], ["--from", str(tmp_path / "launch.sh")]):
        result = run(*words)
        assert result.exit_code == 2
        assert "no such file" in result.stderr
