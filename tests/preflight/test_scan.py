"""A tree of launch scripts like verl's examples, with and without the stale flag: exactly the offenders are named."""

import shutil
from pathlib import Path

import pytest

from sim.preflight import report, scan
from sim.preflight.check import judge, read_targets

LAUNCH = Path(__file__).parent.parent / "data" / "launch"
WORKFLOW = ".github/workflows/e2e_vllm.yml"

STALE = [
    ("examples/run_vl_7b_stale.sh", "enable_chunked_prefill=False"),
    ("examples/run_32b_array_stale.sh", "enable_chunked_prefill=False"),
    ("e2e/run_geo3k.sh", "ENABLE_CHUNKED_PREFILL=False"),
    ("e2e/run_veomni.sh", "ENABLE_CHUNKED_PREFILL:-False"),
    (WORKFLOW, "ENABLE_CHUNKED_PREFILL=False MODEL_ID"),
    (WORKFLOW, "ENABLE_CHUNKED_PREFILL: False"),
    (WORKFLOW, "enable_chunked_prefill=false"),
    ("configs/grpo_stale.yaml", "oc.env:CHUNKED,false"),
]
"""Stale flags in front of verl: (file, what stands in the offending line)."""
STALE_SERVE = [
    ("serve/run_serve_stale.sh", "--no-enable-chunked-prefill"),
    ("configs/serve_stale.yaml", "no-enable-chunked-prefill: true"),
]
"""The same for vLLM alone."""
ON_PURPOSE = ("examples/run_profile_on_purpose.sh", "enable_chunked_prefill=False")


def lines(expected: list[tuple[str, str]]) -> set[str]:
    """The one line of each file that holds the words."""
    found = set()
    for file, words in expected:
        numbers = [n for n, line in enumerate((LAUNCH / file).read_text().splitlines(), 1) if words in line]
        assert len(numbers) == 1, (file, words)
        found.add(f"{file}:{numbers[0]}")
    return found


def offenders(root: Path, *targets: str) -> dict[str, str]:
    target = read_targets(targets)
    tree = scan.scan(root, {})
    assert tree.errors == []
    verdicts = [judge(launch, target) for launch in tree.launches]
    return {
        str(o.judged.places[0]).removeprefix(f"{root}/"): o.judged.finding.level for o in report.offenders(verdicts)
    }


def test_exactly_the_offenders() -> None:
    named = offenders(LAUNCH, "verl==0.9.1")
    assert set(named) == lines(STALE + STALE_SERVE)
    assert set(named.values()) == {"refused"}


@pytest.mark.parametrize("release", ["verl==0.8.0", "verl==0.9.0"])
def test_older_verl_ignores_every_false_on_vllm(release: str) -> None:
    """Also the one set on purpose: before 0.9.1 nobody got a trace without chunked prefill."""
    named = offenders(LAUNCH, release)
    assert {place for place, level in named.items() if level == "changed"} == lines([*STALE, ON_PURPOSE])
    assert {place for place, level in named.items() if level == "refused"} == lines(STALE_SERVE)


def test_a_clean_tree_has_none(tmp_path: Path) -> None:
    """The same tree with every stale line cured."""
    shutil.copytree(LAUNCH, tmp_path / "launch")
    cures = {
        "enable_chunked_prefill=False": "enable_chunked_prefill=True",
        "enable_chunked_prefill=false": "enable_chunked_prefill=true",
        "ENABLE_CHUNKED_PREFILL=False": "ENABLE_CHUNKED_PREFILL=True",
        "ENABLE_CHUNKED_PREFILL:-False": "ENABLE_CHUNKED_PREFILL:-True",
        "ENABLE_CHUNKED_PREFILL: False": "ENABLE_CHUNKED_PREFILL: True",
        "oc.env:CHUNKED,false": "oc.env:CHUNKED,true",
        "--no-enable-chunked-prefill": "--enable-chunked-prefill",
        "no-enable-chunked-prefill: true": "no-enable-chunked-prefill: false",
    }
    for path in (tmp_path / "launch").rglob("*"):
        if path.is_file():
            text = path.read_text()
            for stale, cured in cures.items():
                text = text.replace(stale, cured)
            path.write_text(text)
    assert offenders(tmp_path / "launch") == {}


@pytest.mark.parametrize(("file", "words"), STALE)
def test_each_cure_removes_just_its_offender(file: str, words: str, tmp_path: Path) -> None:
    """Curing one line leaves the others named: no offender hides behind another."""
    shutil.copytree(LAUNCH, tmp_path / "launch")
    path = tmp_path / "launch" / file
    cured = words.replace("False", "True").replace("false", "true")
    path.write_text(path.read_text().replace(words, cured))
    assert set(offenders(tmp_path / "launch")) == lines(STALE + STALE_SERVE) - lines([(file, words)])


def test_part_of_a_tree_finds_its_scripts_by_their_ending() -> None:
    """Scanned from inside, `bash e2e/run_function_reward.sh` still means the script at hand."""
    assert set(offenders(LAUNCH / "e2e")) == {"run_geo3k.sh:4", "run_veomni.sh:3"}


def test_a_flag_for_a_script_elsewhere_is_a_note() -> None:
    tree = scan.scan(LAUNCH / ".github", {})
    assert tree.launches == []
    assert {(fed.name, fed.places[0].line) for fed in tree.unread} >= {("ENABLE_CHUNKED_PREFILL", 15)}


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("rollout:\n  max_model_len: [\n")
    (tmp_path / "binary.sh").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "bad.sh").write_text("python3 -m verl.x a.rollout.max_model_len=many\n")
    tree = scan.scan(tmp_path, {})
    assert [error.removeprefix(f"{tmp_path}/") for error in tree.errors] == [
        "bad.sh:1: a.rollout.max_model_len = 'many': expected an integer or null",
        "broken.yaml:3: not YAML or JSON: expected the node content, but found '<stream end>'",
    ]
