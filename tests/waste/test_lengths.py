"""Loads: files of three kinds, named ones, and errors that name what is wrong."""

import json
import sys

import numpy as np
import pytest

from sim.waste import lengths
from sim.waste.lengths import NEVER, LengthsError, drawn
from sim.waste.loads import LOADS, Lognormal

PAIRS = [(136, 8192), (92, 500), (2000, None)]


@pytest.fixture
def jsonl(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt_tokens": p, "response_tokens": r, "x": 1}) + "\n" for p, r in PAIRS))
    return path


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "id,prompt_length,response_length\n" + "".join(f"a,{p},{'' if r is None else r}\n" for p, r in PAIRS)
    )
    return path


@pytest.fixture
def parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra parquet (pip install '.[parquet]')")
    from pyarrow import parquet

    path = tmp_path / "mine.parquet"
    columns = {"input_tokens": [p for p, _ in PAIRS], "output_tokens": [r for _, r in PAIRS]}
    parquet.write_table(arrow.table(columns), path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "table", "parquet"])
def test_the_same_pairs_from_every_kind_of_file(kind, request):
    load = lengths.read(request.getfixturevalue(kind), 8192)
    assert load.prompts.tolist() == [136, 92, 2000]
    assert load.responses.tolist() == [[NEVER], [500], [NEVER]]
    assert load.note.startswith("2 of 3 responses reach response_length (8192) or have no length")


def test_a_csv_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("\ufeffprompt_tokens,response_tokens\n5,6\n", encoding="utf-8")
    assert lengths.read(path, 100).prompts.tolist() == [5]


def test_json_lines_may_be_pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("[5, 6]\n\n[7, 8]\n")
    assert lengths.read(path, 100).prompts.tolist() == [5, 7]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", '{"prompt": 4}', "a.jsonl:1: has prompt; one of response_tokens"),
        ("a.jsonl", '{"prompt": 4, "response": 5}\n{"prompt": "x", "response": 5}', "a.jsonl:2: the prompt is 'x'"),
        ("a.jsonl", '{"prompt": true, "response": 5}', "the prompt is True"),
        ("a.jsonl", '{"prompt": 4, "response": -5}', "the response is -5"),
        ("a.jsonl", "136,8192", "a.jsonl:1: '136,8192' is not JSON (Extra data); each line is an object like {"),
        ("a.jsonl", "3", "neither an object nor a pair"),
        ("a.jsonl", "", "holds no pairs"),
        ("a.csv", "prompt,response\n1.5,2\n", "a.csv:2: the prompt is '1.5'"),
        ("a.csv", "length\n5\n", "a.csv:1: is 'length'; a header line with a column for prompts (prompt_tokens, "),
        ("a.csv", "136,8192\n92,500\n", "a.csv:1: is '136,8192'; a header line with a column for prompts"),
        ("a.csv", "prompt_tokens;response_tokens\n5;6\n", "is needed, with commas between them"),
        ("a.csv", "", "holds no pairs"),
        ("a.parquet", "not parquet", "a.parquet: not a readable Parquet file"),
        ("a.txt", "5,6", ".txt is not known; .jsonl, .csv, .parquet are"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, says):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="needs the extra parquet (pip install '.[parquet]')")
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(LengthsError) as error:
        lengths.read(path, 100)
    assert says in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(LengthsError, match="cannot be read"):
        lengths.read(tmp_path / "none.csv", 100)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").touch()
    with pytest.raises(LengthsError, match="pip install pyarrow"):
        lengths.read(tmp_path / "a.parquet", 100)


# NamedLoad loads


def test_drawn_lengths_have_the_mean_and_the_tail():
    values = drawn(Lognormal(2000, 1.0), 10_000, 0, 10**6)
    assert values.mean() == pytest.approx(2000, rel=0.02)
    assert np.median(values) == pytest.approx(2000 * np.exp(-0.5), rel=0.01)
    assert max(drawn(Lognormal(2000, 1.0), 1000, 0, 4096)) == 4096
    assert drawn(512, 3, 0, 10**6).tolist() == [512, 512, 512]
    assert drawn(512, 3, 0, 100).tolist() == [100, 100, 100]


def test_the_same_seed_draws_the_same():
    first, again, other = (drawn(Lognormal(500, 1.0), 50, seed, 10**6).tolist() for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(first) == sorted(other)


@pytest.mark.parametrize("name", LOADS)
def test_named_loads(name):
    named = LOADS[name]
    load = lengths.named(name, 200, 0, most_prompt=named.prompt_length)
    assert len(load) == 200
    assert load.turns == named.turns
    assert 1 <= load.prompts.min() <= load.prompts.max() <= named.prompt_length
    assert (load.responses == NEVER).sum() == round(200 * named.never_stop)
    assert len(set(load.prompts.tolist())) <= -(-200 // named.group)


def test_an_unknown_name_lists_the_known():
    with pytest.raises(LengthsError, match="seed, chat, reasoning, groups, tools"):
        lengths.named("none", 5, 0, most_prompt=10)


def test_prompts_that_verl_leaves_out_are_left_out():
    load = lengths.Lengths(np.array([5, 50, 7]), np.array([[1], [2], [3]]))
    fitting = lengths.fitting(load, 10, "mine.csv")
    assert fitting.prompts.tolist() == [5, 7]
    assert fitting.responses.tolist() == [[1], [3]]
    assert fitting.note == "1 of 3 prompts are longer than 10 and left out"
    with pytest.raises(LengthsError, match="every prompt is longer"):
        lengths.fitting(load, 4, "mine.csv")


def test_a_file_is_repeated_or_sampled_to_a_count():
    load = lengths.Lengths(np.arange(1, 11), np.arange(1, 11)[:, None])
    repeated = lengths.resized(load, 25, 0).prompts.tolist()
    assert len(repeated) == 25
    assert {repeated.count(prompt) for prompt in range(1, 11)} == {2, 3}
    assert len(set(lengths.resized(load, 5, 0).prompts.tolist())) == 5
