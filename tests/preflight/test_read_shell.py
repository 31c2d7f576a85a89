"""Shell scripts: words with lines, variables and their defaults, arrays, branches, scripts that call scripts."""

from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.preflight.launch import Reading
from sim.preflight.read_shell import read_shell
from sim.preflight.shell_words import split_commands

PATH = "actor_rollout_ref.rollout"


def read(text: str, **scripts: str) -> Reading:
    files = {f"{name}.sh": dedent(body) for name, body in scripts.items()}
    return read_shell(dedent(text), "main.sh", lambda called: (called, files[called]) if called in files else None)


def seen(reading: Reading, setting: str) -> list[tuple[Any, str]]:
    """Each value of a setting over the launches, with the places it went through."""
    return [
        (launch.settings[setting].value, " ← ".join(map(str, launch.settings[setting].places)))
        for launch in reading.launches
        if setting in launch.settings
    ]


def test_words_keep_their_lines() -> None:
    text = "a 'b\nc' \\\n  d # e\n#f\ng; h=$(i\nj) k\n"
    commands = [[(w.text, w.line) for w in command] for command in split_commands(text) if command]
    assert commands == [[("a", 1), ("'b\nc'", 1), ("d", 3)], [("g", 5)], [("h=$(i\nj)", 5), ("k", 6)]]


def test_an_override_is_blamed_where_it_is_written() -> None:
    reading = read(f"""\
        python3 -m verl.trainer.main_ppo \\
            {PATH}.name=vllm \\
            {PATH}.enable_chunked_prefill=False
        """)
    assert seen(reading, "enable_chunked_prefill") == [(False, "main.sh:3")]


def test_a_variable_is_blamed_where_it_is_set() -> None:
    reading = read(f"""\
        FLAG=${{FLAG:-False}}
        other=1
        python3 -m verl.trainer.main_ppo {PATH}.enable_chunked_prefill="$FLAG"
        """)
    assert seen(reading, "enable_chunked_prefill") == [(False, "main.sh:1 ← main.sh:3")]


def test_arithmetic_and_arrays() -> None:
    reading = read(f"""\
        p=$((1024 * 2))
        ARGS=(
            {PATH}.max_model_len=$((p + 8192))  # explicit
            {PATH}.enable_chunked_prefill=False
        )
        ARGS+=({PATH}.name=vllm)
        python3 -m verl.trainer.main_ppo "${{ARGS[@]}}"
        """)
    assert seen(reading, "max_model_len") == [(10_240, "main.sh:1 ← main.sh:3 ← main.sh:7")]
    assert seen(reading, "name") == [("vllm", "main.sh:6 ← main.sh:7")]


def test_both_sides_of_a_branch_count() -> None:
    reading = read(f"""\
        FLAG=True
        if [ "$MODEL" = "vl" ]; then
            FLAG=False
        fi
        python3 -m verl.trainer.main_ppo {PATH}.enable_chunked_prefill=$FLAG
        """)
    assert seen(reading, "enable_chunked_prefill") == [
        (False, "main.sh:3 ← main.sh:5"),
        (True, "main.sh:1 ← main.sh:5"),
    ]


def test_an_overwritten_value_is_gone() -> None:
    reading = read(f"FLAG=False\nFLAG=True\npython3 -m verl.x {PATH}.enable_chunked_prefill=$FLAG\n")
    assert [value for value, _ in seen(reading, "enable_chunked_prefill")] == [True]


def test_scripts_called_with_an_environment() -> None:
    inner = f"""\
        FLAG=${{FLAG:-True}}
        python3 -m verl.trainer.main_ppo {PATH}.enable_chunked_prefill=$FLAG $@
        """
    reading = read("FLAG=False bash inner.sh\nexport FLAG=False\n./x.sh\nbash inner.sh\n", inner=inner)
    assert seen(reading, "enable_chunked_prefill") == [
        (False, "main.sh:1 ← inner.sh:1 ← inner.sh:2"),
        (False, "main.sh:2 ← main.sh:4 ← inner.sh:1 ← inner.sh:2"),
    ]
    by_argument = read(f"bash inner.sh {PATH}.enable_chunked_prefill=False", inner=inner)
    assert seen(by_argument, "enable_chunked_prefill") == [(False, "main.sh:1")]
    not_exported = read("FLAG=False\nbash inner.sh\n", inner=inner)
    assert [value for value, _ in seen(not_exported, "enable_chunked_prefill")] == [True]
    sourced = read(f". inner.sh\npython3 -m verl.x {PATH}.enable_chunked_prefill=$FLAG\n", inner="FLAG=False\n")
    assert [value for value, _ in seen(sourced, "enable_chunked_prefill")] == [False]


def test_positional_defaults() -> None:
    inner = f"ENGINE=${{1:-vllm}}\npython3 -m verl.x {PATH}.name=$ENGINE {PATH}.max_model_len=1\n"
    assert [value for value, _ in seen(read("bash inner.sh sglang", inner=inner), "name")] == ["sglang"]
    assert [value for value, _ in seen(read(inner), "name")] == ["vllm"]


def test_what_only_a_run_could_tell_is_unknown() -> None:
    reading = read(f"python3 -m verl.x {PATH}.max_model_len=$(python len.py) {PATH}.max_num_seqs=$2\n")
    assert list(reading.launches[0].unknown) == ["max_model_len", "max_num_seqs"]


def test_vllm_serve_and_its_environment() -> None:
    reading = read("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve m --max-model-len 8k 2>&1 | tee log\n")
    (launch,) = reading.launches
    assert (launch.dialect, launch.model, launch.allow_longer_context) == ("vllm", "m", True)
    assert launch.settings["max_model_len"].value == 8000


def test_text_that_is_not_run_is_not_read() -> None:
    text = f"""\
        # python3 -m verl.x {PATH}.max_model_len=1
        cat <<'EOF'
        python3 -m verl.x {PATH}.max_model_len=2
        EOF
        python3 -m verl.x {PATH}.max_model_len=3
        """
    assert seen(read(text), "max_model_len") == [(3, "main.sh:5")]


def test_a_bad_value_is_reported_with_its_line() -> None:
    assert read(f"\npython3 -m verl.x {PATH}.max_model_len=None\n").errors == [
        f"main.sh:2: {PATH}.max_model_len = 'None': expected an integer or null; None is a word here, write null"
    ]


def test_a_script_that_calls_itself_ends() -> None:
    read("bash loop.sh", loop="bash loop.sh")
    assert "not followed" in read("bash loop.sh", loop="bash loop.sh\n" * 100).errors[0]


def test_a_word_that_doubles_ends() -> None:
    read("A=x\n" + "A=$A$A\n" * 100 + "B=(x)\n" + 'B=("${B[@]}" "${B[@]}")\n' * 100)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="ab=\"'$(){}[]\\#;&|<>\n `:-@1", max_size=60))
def test_any_text_is_read_without_a_fault(text: str) -> None:
    read_shell(text, "any.sh")


@pytest.mark.parametrize("text", ["'", '"$(', "a=(", "${", "$((1/0))", "<<EOF\n", "case x in", "fi\nfi"])
def test_unfinished_scripts(text: str) -> None:
    read_shell(text + f"\npython3 -m verl.x {PATH}.max_model_len=1", "any.sh")
