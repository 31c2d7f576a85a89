"""Case files of every format so far: they load, and mean what they meant."""

import json
import subprocess
import sys

import pytest
from msgspec.structs import replace

import sim.case
from sim import corpus, migrations
from sim.case import Budget, Case, Session, dumps, from_builtins, loads, to_builtins
from sim.migrations import FORMAT, MIGRATIONS, migrated
from sim.schema import CaseError
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world
from tests.corpus_digests import digests_file, folder, shown

# What was kept


KEPT = [
    pytest.param(number, name, runs, id=f"{number}-{name}")
    for number in range(1, FORMAT + 1)
    for name, runs in json.loads(digests_file(number).read_text()).items()
]
"""(format, name, what it shows) of every file that was kept in any format."""


@pytest.mark.parametrize(("number", "name", "runs"), KEPT)
def test_a_kept_case_shows_what_it_did_when_it_was_written(number, name, runs):
    path = folder(number) / name
    assert json.loads(path.read_text())["case"]["format"] == number
    assert shown(path) == runs
    entry = corpus.read(path)
    assert {sut: sorted(entry.numbers(sut)) for sut in runs} == {sut: run["violated"] for sut, run in runs.items()}


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_without_assertions_they_show_the_same(number):
    """Nothing that is judged, and no planted bug, is an assertion of Python's, which -O leaves out."""
    code = (
        "import json; from sim import corpus; from tests.corpus_digests import folder, shown; "
        f"print(json.dumps({{path.name: shown(path) for path in corpus.files([folder({number})])}}))"
    )
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(digests_file(number).read_text())


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_every_kept_file_is_looked_at(number):
    assert {path.name for path in corpus.files([folder(number)])} == set(json.loads(digests_file(number).read_text()))


# The step to another format, with one that might have been: a token once took two hundredths of a second by default


CASE = Case(Budget(4, 10, 64), (Session(4),))


def slower_by_default(data):
    return {**data, "server": {"token_time_s": 0.02, **data.get("server", {})}}


@pytest.fixture
def format_2(monkeypatch):
    monkeypatch.setattr(migrations, "FORMAT", 2)
    monkeypatch.setattr(sim.case, "FORMAT", 2)
    monkeypatch.setitem(MIGRATIONS, 1, slower_by_default)


def test_there_is_a_step_from_each_format_to_the_next():
    assert set(MIGRATIONS) == set(range(1, FORMAT))


def test_a_case_of_todays_format_is_left_as_it_is():
    assert migrated(to_builtins(CASE)) == to_builtins(CASE)


READ = {
    "loads": lambda data, _: loads(json.dumps(data)),
    "from_builtins": lambda data, _: from_builtins(data),
    "a bare file": lambda data, path: (path.write_text(json.dumps(data)), corpus.read(path).case)[1],
    "a kept file": lambda data, path: (path.write_text(json.dumps({"case": data})), corpus.read(path).case)[1],
}


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_an_old_case_has_the_old_default_written_out(read, format_2, tmp_path):
    old = {
        "format": 1,
        "budget": {"prompt_length": 4, "response_length": 10, "max_model_len": 64},
        "sessions": [{"prompt_tokens": 4}],
    }
    case = read(old, tmp_path / "old.json")
    assert (case.format, case.server.token_time_s) == (2, 0.02)
    assert run_world(case, load_sut(CLEAN)).events[-1].t_ns == 200_000_000
    assert read(to_builtins(case), tmp_path / "new.json") == case

    said = read({**old, "server": {"token_time_s": 0.5, "prefill_s": 1.0}}, tmp_path / "said.json")
    assert (said.server.token_time_s, said.server.prefill_s) == (0.5, 1.0)
    assert read({**old, "format": 2}, tmp_path / "today.json").server.token_time_s == 0.01


def test_what_is_written_is_of_todays_format(format_2):
    assert json.loads(dumps(loads(dumps(CASE))))["format"] == 2


def test_old_and_new_have_the_same_digest_where_they_mean_the_same(format_2):
    old = loads(json.dumps({**to_builtins(CASE), "format": 1}))
    new = loads(json.dumps({**to_builtins(CASE), "format": 2, "server": {"token_time_s": 0.02}}))
    assert old == new
    assert run_world(old, load_sut(CLEAN)).digest() == run_world(new, load_sut(CLEAN)).digest()


def test_several_steps_are_taken_one_after_the_other(format_2, monkeypatch):
    monkeypatch.setattr(migrations, "FORMAT", 3)
    monkeypatch.setitem(MIGRATIONS, 2, lambda data: {**data, "seed": data["server"]["token_time_s"] + data["format"]})
    assert migrated({"format": 1})["seed"] == 2.02
    assert migrated({"format": 2, "server": {"token_time_s": 1}}) == {
        "format": 3,
        "server": {"token_time_s": 1},
        "seed": 3,
    }


def test_a_migration_changes_no_data_of_its_callers(format_2):
    old = {"format": 1, "server": {"prefill_s": 1.0}}
    migrated(old)
    assert old == {"format": 1, "server": {"prefill_s": 1.0}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"format": 3}, "format is 3: this version of rollcage reads the formats 1 to 2"),
        ({"format": 0}, "format is 0: this version of rollcage reads the formats 1 to 2"),
        ({"format": "1"}, "format is '1': this version of rollcage reads the formats 1 to 2"),
        ({"format": 1.5}, "format is 1.5: this version of rollcage reads the formats 1 to 2"),
        ({"format": None}, "format is None: this version of rollcage reads the formats 1 to 2"),
        ({"format": [1]}, r"format is \[1\]: this version of rollcage reads the formats 1 to 2"),
        ({"format": 1, "server": 3}, "this is no case of format 1: TypeError: 'int' object is not a mapping"),
        ({"format": 1, "sessions": []}, r"Expected `array` of length >= 1 - at `\$.sessions`"),
        ({"format": 1, "colour": 1}, "unknown field `colour`"),
    ],
)
def test_what_is_wrong_with_an_old_case_is_named(data, message, format_2):
    """By the names that it has in today's format."""
    whole = {**to_builtins(CASE), **data}
    for read in (lambda: loads(json.dumps(whole), "old.json"), lambda: from_builtins(whole, "old.json")):
        with pytest.raises(CaseError, match=f"^old.json: .*{message}"):
            read()


def test_a_case_is_made_in_todays_format_only(format_2):
    with pytest.raises(CaseError, match="format is 1: a Case is of format 2; files of others are read as such"):
        replace(CASE, format=1)
