"""The corpus: readable files, verdicts per SUT, errors that name file, place and what was expected."""

import json
import os
from pathlib import Path

import msgspec
import pytest

from sim import case, corpus
from sim.case import Budget, Case, Session
from sim.expected import Shown
from sim.files import FileError
from sim.migrations import FORMAT
from sim.schema import CaseError
from sim.sut.registry import CLEAN, builtin_names, load_sut

CORPUS = Path(__file__).parent.parent / "properties" / "corpus"
CASE = Case(Budget(4, 10, 64), (Session(4),))
OVERRUN = Shown("B1", "beyond the budget of a turn", "violation", "stock")
B1 = Shown("B1", "", "violation", "stock")
ENTRY = corpus.Entry(origin="here", invariant="B1", expected={CLEAN: [], "verl==0.8.0": [B1, Shown("B6")]}, case=CASE)


def test_what_is_written_is_read_back(tmp_path):
    corpus.write(tmp_path / "new" / "case.json", ENTRY)
    assert corpus.read(tmp_path / "new" / "case.json") == ENTRY


def test_files_have_the_usual_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        corpus.write(tmp_path / "case.json", ENTRY)
    finally:
        os.umask(before)
    assert (tmp_path / "case.json").stat().st_mode & 0o777 == 0o640


def test_what_is_kept_overwrites_nothing_that_says_something_else(tmp_path):
    first = corpus.keep(tmp_path, "B1", "mine:build", ENTRY)
    accepted = corpus.Entry(origin="here", invariant="B1", expected={**ENTRY.expected, "mine": []}, case=CASE)
    corpus.write(first, accepted)
    assert corpus.keep(tmp_path, "B1", "mine:build", ENTRY) == first
    assert corpus.read(first) == accepted
    other = corpus.Entry(origin="there", invariant="B1", expected={CLEAN: [B1]}, case=CASE)
    second = corpus.keep(tmp_path, "B1", "mine:build", other)
    assert second == first.with_stem(f"{first.stem}-2")
    assert corpus.read(second) == other
    failures = [corpus.Entry(origin=f"rollcage failed: {what}", case=CASE) for what in ("one", "other", "one")]
    paths = [corpus.keep(tmp_path, "fault", "mine:build", each) for each in failures]
    assert paths[0] == paths[2] != paths[1]


def test_a_bare_case_can_be_read_too(tmp_path):
    (tmp_path / "bare.json").write_text(
        '{"budget": {"prompt_length": 4, "response_length": 10, "max_model_len": 64},'
        ' "sessions": [{"prompt_tokens": 4}]}'
    )
    assert corpus.read(tmp_path / "bare.json") == corpus.Entry(case=CASE)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "case.json"
    corpus.write(path, ENTRY)

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(FileError, match=r"case\.json: cannot be written: No space left"):
        corpus.write(path, corpus.Entry(case=CASE))
    assert corpus.read(path) == ENTRY
    assert os.listdir(tmp_path) == ["case.json"]


def test_the_kept_cases_are_as_the_writer_writes_them():
    for path in sorted(CORPUS.glob("*.json")):
        assert corpus.dumps(corpus.read(path)) == path.read_text(), path.name


def test_every_kept_case_tells_where_it_comes_from_and_has_a_verdict_for_the_known_good():
    for path in sorted(CORPUS.glob("*.json")):
        entry = corpus.read(path)
        assert entry.origin, path.name
        assert CLEAN in entry.expected, path.name


def test_a_folder_stands_for_its_cases(tmp_path):
    corpus.write(tmp_path / "b.json", ENTRY)
    corpus.write(tmp_path / "a.json", ENTRY)
    (tmp_path / "notes.txt").write_text("no case")
    assert [path.name for path in corpus.files([tmp_path])] == ["a.json", "b.json"]


def test_replay_compares_with_the_verdict_of_that_sut():
    entry = corpus.read(CORPUS / "overrun-64-256-16.json")
    deferred, pinned = (corpus.replay(Path("p"), entry, load_sut(name)) for name in ("reference:deferred", CLEAN))
    assert (deferred.expected, deferred.observed, deferred.ok) == ([OVERRUN], [OVERRUN], True)
    assert (pinned.expected, pinned.observed, pinned.ok) == ([], [], True)
    assert deferred.messages[0].startswith("B1: session 0 turn 0 decoded")


@pytest.mark.parametrize(("expected", "ok"), [([B1], False), ([B1, B1], False), ([], True), (None, None)])
def test_no_verdict_is_neither_right_nor_wrong(expected, ok):
    entry = corpus.Entry(expected={} if expected is None else {CLEAN: expected}, case=CASE)
    assert corpus.replay(Path("p"), entry, load_sut(CLEAN)).ok is ok


@pytest.mark.parametrize(
    ("label", "difference"),
    [
        ({"reach": "odd config"}, "B1 is labelled odd config, and the case's reach is stock"),
        ({"severity": "warning"}, "B1 (beyond the budget of a turn; stock) is not expected"),
        ({"about": "cut"}, "expected B1 (cut; stock), and it does not come"),
        ({"invariant": "B2"}, "expected B2 (beyond the budget of a turn; stock), and it does not come"),
    ],
)
def test_a_label_that_lies_hides_nothing(label, difference):
    entry = corpus.read(CORPUS / "overrun-64-256-16.json")
    lying = msgspec.structs.replace(OVERRUN, **label)
    entry = msgspec.structs.replace(entry, expected={"reference:deferred": [lying]})
    replay = corpus.replay(Path("p"), entry, load_sut("reference:deferred"))
    assert replay.ok is False
    assert difference in replay.differences


def test_a_number_alone_stands_for_whatever_it_is_about():
    entry = msgspec.structs.replace(corpus.read(CORPUS / "overrun-64-256-16.json"), expected={CLEAN: [Shown("B1")]})
    assert corpus.replay(Path("p"), entry, load_sut(CLEAN)).differences == ["expected B1, and it does not come"]
    entry = msgspec.structs.replace(entry, expected={"reference:deferred": [Shown("B1")]})
    assert corpus.replay(Path("p"), entry, load_sut("reference:deferred")).ok


def test_what_is_only_warned_of_decides_nothing_and_is_kept():
    entry = corpus.read(CORPUS / "cancelled-call.json")
    silent = msgspec.structs.replace(entry, expected={CLEAN: []})
    replay = corpus.replay(Path("p"), silent, load_sut(CLEAN))
    assert replay.ok
    assert {(each.invariant, each.severity) for each in replay.observed} == {("W1", "warning")}


def test_accepting_what_the_built_in_suts_show_changes_no_kept_case():
    for path in sorted(CORPUS.glob("*.json")):
        entry = corpus.read(path)
        for name in builtin_names():
            if name in entry.expected:
                assert corpus.replay(path, entry, load_sut(name)).observed == entry.expected[name], (path.name, name)


def test_d1_is_judged_by_running_twice():
    entry = corpus.read(CORPUS / "process-counter.json")
    assert corpus.replay(Path("p"), entry, load_sut("reference:counts-worlds")).observed == [
        Shown("D1", "", "violation", "stock")
    ]


def test_names_of_finds_are_safe_on_any_file_system():
    name = corpus.file_name("B1", "../my.module:make/it", "0123456789abcdef")
    assert name == "B1-..-my.module-make-it-01234567.json"


# Bad files


def changed(change):
    data = json.loads(corpus.dumps(ENTRY))
    change(data)
    return json.dumps(data).encode()


def case_with(**more):
    return changed(lambda data: data["case"].update(more))


FAULT = {"fault": "abort_all", "at": {"on": "time", "time_s": 0}, "replica": 7}
BAD = {
    "negative-length": (
        changed(lambda data: data["case"]["budget"].update(prompt_length=-1)),
        r"case: Expected `int` >= 1 - at `\$.budget.prompt_length` \(it is -1\)",
    ),
    "negative-prompt": (
        case_with(sessions=[{"prompt_tokens": -4}]),
        r"case: .* at `\$.sessions\[0\].prompt_tokens` \(it is -4\)",
    ),
    "prompt-beyond-context": (
        case_with(sessions=[{"prompt_tokens": 65}]),
        r"case: sessions\[0\].prompt_tokens is 65: longer than the context \(64 tokens",
    ),
    "unknown-field": (
        case_with(sesions=[]),
        r"case: Object contains unknown field `sesions` \(allowed are budget, sessions, ",
    ),
    "unknown-outer-field": (
        changed(lambda data: data.update(note=1)),
        r"Object contains unknown field `note` \(allowed are origin, invariant, expected, case, format\)",
    ),
    "no-session": (case_with(sessions=[]), r"case: Expected `array` of length >= 1 - at `\$.sessions`"),
    "no-such-replica": (
        case_with(faults=[FAULT]),
        r"case: faults\[0\].replica is 7: there is no such replica",
    ),
    "nan-time": (
        case_with(sessions=[{"prompt_tokens": 4, "arrival_s": float("nan")}]),
        r"invalid character \(byte \d+\), line 1: NaN",
    ),
    "infinite-time": (
        corpus.dumps(ENTRY).replace('"prompt_tokens": 4', '"prompt_tokens": 4, "arrival_s": 1e999').encode(),
        r"case: Number out of range - at `\$.sessions\[0\].arrival_s`",
    ),
    "truncated": (corpus.dumps(ENTRY).encode()[:-40], "truncated"),
    "bare-truncated": (case.dumps(CASE).encode()[:-5], "truncated"),
    "bare-unknown-field": (
        b'{"format": 1, "note": 1}',
        r": Object contains unknown field `note` \(allowed are budget,",
    ),
    "empty": (b"", "truncated"),
    "binary": (bytes(range(256)), "malformed"),
    "not-utf-8": (corpus.dumps(ENTRY).replace("here", "h\xe9re").encode("latin-1"), "Invalid UTF-8"),
    "deep": (b"[" * 200_000, "Expected `object`, got `array`"),
    "deep-inside": (b'{"case": {"a": ' + b"[" * 100_000, "recursion"),
    "a-list": (b"[]", "Expected `object`, got `array`"),
    "wrong-format": (changed(lambda data: data.update(format=2)), r"Invalid enum value 2 - at `\$.format`"),
    "wrong-case-format": (
        case_with(format=9),
        f"case: format is 9: this version of rollcage reads the formats 1 to {FORMAT}",
    ),
    "unknown-fault": (
        case_with(faults=[{**FAULT, "fault": "meteor"}]),
        r"case: Invalid value 'meteor' - at `\$.faults\[0\].fault` \(allowed are 'weight_update', 'abort_all', ",
    ),
    "unknown-dialect": (case_with(server={"dialect": "tgi"}), "case: server.dialect: unknown dialect 'tgi'; known"),
    "case-of-another-type": (changed(lambda data: data.update(case=[])), "case: Expected `object`, got `array`"),
    "unknown-invariant": (
        changed(lambda data: data.update(invariant="Z9")),
        "unknown invariant 'Z9'; known are B1",
    ),
    "no-case": (changed(lambda data: data.pop("case")), "has no `case`"),
    "a-name-twice": (
        corpus.dumps(ENTRY).replace('"prompt_tokens": 4', '"prompt_tokens": 5, "prompt_tokens": 4').encode(),
        "'prompt_tokens' is given 2 times in one object",
    ),
    "misspelt-fault": (
        case_with(faults=[{**FAULT, "fault": "abort_al"}]),
        r"; did you mean abort_all\?; what a plugin adds",
    ),
    "misspelt-field": (case_with(replica=2), r"; did you mean replicas\?\)"),
    "unknown-verdict": (changed(lambda data: data["expected"].update(x=["Z9"])), "unknown invariant 'Z9'"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_a_bad_file_is_an_error_that_names_the_file_and_what_was_expected(tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(CaseError, match=message) as caught:
        corpus.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 500


def test_what_is_no_file_is_named(tmp_path):
    with pytest.raises(CaseError, match="is a directory"):
        corpus.read(tmp_path)
    with pytest.raises(CaseError, match="No such file"):
        corpus.read(tmp_path / "missing.json")
    with pytest.raises(CaseError, match=r"no \.json files in this directory"):
        corpus.files([tmp_path])


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device without an end")
def test_a_device_without_an_end_is_not_read():
    with pytest.raises(CaseError, match="/dev/zero: is a device; a case file is needed"):
        corpus.read(Path("/dev/zero"))
