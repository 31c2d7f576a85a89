"""The HTTP client in docs/examples is clean, its wrong variant is found, and a world of it is the same everywhere."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sim.cli.main import main

for package in ("aiohttp", "h11"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra http)")

ROOT = Path(__file__).parent.parent
NAME = "docs.examples.http_client:build"
WRONG = "docs.examples.http_client:build_overrunning"


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])


def hunt(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["hunt", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_hunt_over_http_finds_nothing() -> None:
    code, said = hunt("--sut", NAME, "--face", "vllm", "--worlds", 60, "--seed", 1)
    assert (code, "clean  (60 worlds" in said) == (0, True), said


def test_its_wrong_variant_is_found_and_shrunk_to_one_session_and_one_fault(tmp_path) -> None:
    hunted = ("--sut", WRONG, "--face", "vllm", "--only", "B1", "--worlds", 20, "--seed", 1, "--save", tmp_path)
    code, said = hunt(*hunted)
    assert code == 1
    assert "B1 violated" in said
    (kept,) = tmp_path.glob("B1-*.json")
    case = json.loads(kept.read_text())["case"]
    assert case["server"] == {**case["server"], "face": "vllm", "dialect": "plain-vllm"}
    assert (len(case["sessions"]), len(case["faults"])) == (1, 1)


def test_worlds_over_http_are_the_same_in_every_process() -> None:
    command = [sys.executable, "-m", "sim.cli", "hunt", "--sut", WRONG, "--face", "vllm"]
    command += ["--worlds", "8", "--seed", "3", "--json"]
    processes = [
        subprocess.Popen(
            command, env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
        )
        for seed in ("0", "1", "77")
    ]
    told = [json.loads(process.communicate()[0]) for process in processes]
    for one in told:
        del one["worlds_per_s"]
    assert told[0]["suts"][WRONG]["violations"]
    assert told[0] == told[1] == told[2]


def test_a_dialect_that_does_not_go_with_the_face_is_refused() -> None:
    code, said = hunt("--sut", NAME, "--face", "vllm", "--dialect", "sglang")
    assert (code, "--face vllm goes with --dialect plain-vllm, not sglang" in said) == (2, True)


def test_it_needs_nothing_of_rollcage() -> None:
    source = Path(importlib.import_module("docs.examples.http_client").__file__).read_text()
    assert "import sim" not in source
    assert "from sim" not in source
