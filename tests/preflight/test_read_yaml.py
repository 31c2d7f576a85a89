"""YAML and JSON: verl's nested config, a bare rollout section, vLLM's config file."""

import contextlib
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.preflight import vllm_config_file
from sim.preflight.launch import Launch, PreflightError
from sim.preflight.read_yaml import read_yaml


def one(text: str, env: dict[str, str] | None = None) -> Launch:
    (launch,) = read_yaml(dedent(text), "c.yaml", env or {})
    return launch


def values(launch: Launch) -> dict[str, Any]:
    return {name: setting.value for name, setting in launch.settings.items()}


NESTED = """\
    data:
      max_prompt_length: 1024
    actor_rollout_ref:
      model: {path: org/model}
      rollout:
        name: vllm
        max_model_len: null
        prompt_length: ${oc.select:data.max_prompt_length,512}
        response_length: ${oc.select:data.max_response_length,512}
        enable_chunked_prefill: ${oc.env:CHUNKED,false}
        engine_kwargs:
          vllm: {block_size: 32}
    """


def test_nested_config_with_lines() -> None:
    launch = one(NESTED)
    assert (launch.dialect, launch.engine, launch.model) == ("verl", "actor_rollout_ref.rollout", "org/model")
    assert values(launch) == {
        "prompt_length": 1024,
        "name": "vllm",
        "max_model_len": None,
        "response_length": 512,
        "enable_chunked_prefill": False,
        "engine_kwargs.vllm.block_size": 32,
    }
    assert str(launch.settings["enable_chunked_prefill"].places[0]) == "c.yaml:10"


def test_environment_feeds_a_config() -> None:
    assert values(one(NESTED, {"CHUNKED": "true"}))["enable_chunked_prefill"] is True


def test_an_interpolation_that_leads_nowhere_is_unknown() -> None:
    launch = one("rollout: {max_model_len: '${trainer.length}', enable_chunked_prefill: false}")
    assert list(launch.unknown) == ["max_model_len"]
    assert one("rollout: {max_model_len: '${rollout.max_model_len}'}").unknown


def test_json_and_a_bare_section() -> None:
    assert values(one('{"max_num_batched_tokens": 8192, "enable_chunked_prefill": false}')) == {
        "max_num_batched_tokens": 8192,
        "enable_chunked_prefill": False,
    }


def test_vllms_own_config_file() -> None:
    launch = one("model: org/model\nmax-model-len: 32K\nno-enable-chunked-prefill: true\n")
    assert launch.dialect == "vllm"
    assert values(launch) == {"max_model_len": 32_768, "enable_chunked_prefill": False}


@pytest.mark.parametrize(
    ("line", "version", "rules"),
    [
        ("enable-chunked-prefill: false", (0, 32), []),
        ("enable-chunked-prefill: false", (0, 27), ["false-lost-in-config-file"]),
        ("enable_chunked_prefill: false", (0, 32), ["false-lost-in-config-file"]),
        ("no-enable-chunked-prefill: true", (0, 24), []),
        ("max-model-len: null", (0, 32), ["null-in-config-file"]),
    ],
)
def test_false_and_null_in_vllms_config_file(line: str, version: tuple[int, ...], rules: list[str]) -> None:
    launch = one(f"model: m\n{line}\n")
    _, found = vllm_config_file.forward(launch.settings, version)
    assert [f.rule for f in found] == rules


def test_an_engine_without_a_name_is_not_in_use() -> None:
    unused = "reward_model:\n  rollout: {name: null, enable_chunked_prefill: null}\n"
    assert read_yaml(unused, "c.yaml", {}) == []


def test_other_documents_say_nothing() -> None:
    assert read_yaml("name: ci\nmode: fast\n", "c.yaml", {}) == []
    assert read_yaml("- 1\n- 2\n", "c.yaml", {}) == []
    assert read_yaml("", "c.yaml", {}) == []
    assert read_yaml("tp: 2\n", "c.yaml", {}) == []


def test_merge_keys_and_anchors() -> None:
    launch = one("""\
        base: &base {max_model_len: 4096, enable_chunked_prefill: false}
        rollout:
          max_model_len: 8192
          <<: *base
        """)
    assert values(launch) == {"max_model_len": 8192, "enable_chunked_prefill": False}


def test_json_with_tabs() -> None:
    (launch,) = read_yaml('{\n\t"rollout": {\n\t\t"max_model_len":4096\n\t}\n}', "c.json", {})
    assert values(launch) == {"max_model_len": 4096}
    assert launch.settings["max_model_len"].places[0].line == 3


def test_anchors_that_multiply_are_an_error() -> None:
    laughs = "a0: &a0 {x: 1}\n" + "".join(
        f"a{n}: &a{n} {{{', '.join(f'k{i}: *a{n - 1}' for i in range(9))}}}\n" for n in range(1, 9)
    )
    with pytest.raises(PreflightError, match="no configuration is that big"):
        read_yaml(laughs, "c.yaml", {})


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="ab:-{}[]&*!<>|'\"\n \t0.~?,#$%@", max_size=60))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    with contextlib.suppress(PreflightError):
        read_yaml("rollout:\n  max_model_len: " + text, "c.yaml", {})
        read_yaml(text, "c.yaml", {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rollout:\n  max_model_len: [\n", "c.yaml:3: not YAML or JSON"),
        ("rollout:\n  max_model_len: None\n", "c.yaml:2: rollout.max_model_len = 'None': expected an integer or null"),
        ("rollout:\n  enable_chunked_prefill: 'False'\n", "any quoted word counts as true"),
        ("\n\nmax-model-len: many\n", "--max-model-len many: expected an integer"),
        ("enable-chunked-prefill: maybe\n", "--enable-chunked-prefill maybe: expected true or false"),
    ],
)
def test_bad_documents_name_the_line(text: str, message: str) -> None:
    with pytest.raises(PreflightError) as caught:
        read_yaml(text, "c.yaml", {})
    assert message in str(caught.value)
