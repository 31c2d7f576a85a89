"""What a replay on a real engine is to say goes to standard output, as JSON too; here with no engine behind it."""

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from sim.cli import replay as replay_module
from sim.cli.main import main

CASE = str(Path(__file__).parents[2] / "properties" / "corpus" / "overrun-64-256-16.json")


@pytest.fixture
def no_engine(monkeypatch):
    """In the place of gpu_checks: whatever is replayed has this verdict."""

    def make(verdict):
        @contextmanager
        def engine_session():
            print("noise of an engine")
            yield None

        session = SimpleNamespace(
            engine_session=engine_session,
            replay_all=lambda jobs, _engines, _tell: [SimpleNamespace(case=job[0], verdict=verdict) for job in jobs],
            Job=lambda *parts: parts,
            VllmUnusable=RuntimeError,
        )
        told = SimpleNamespace(
            summary=lambda replays: [each.verdict for each in replays],
            table=lambda replays: "  ".join(["case", *(each.verdict for each in replays)]),
        )
        modules = {"gpu_checks.session": session, "gpu_checks.replay": told}
        monkeypatch.setattr(replay_module, "importlib", SimpleNamespace(import_module=modules.__getitem__))

    return make


@pytest.mark.parametrize(("verdict", "exit_code"), [("same", 0), ("missed", 1)])
@pytest.mark.parametrize("as_json", [False, True])
def test_the_result_is_all_that_standard_output_has(no_engine, verdict, exit_code, as_json):
    no_engine(verdict)
    result = CliRunner().invoke(
        main, ["replay", CASE, "--sut", "reference:pinned", "--on", "vllm", *["--json"] * as_json]
    )
    assert result.exit_code == exit_code, result.output
    if as_json:
        assert json.loads(result.stdout) == [verdict]
    else:
        assert result.stdout == f"case  {verdict}\n"
    assert "noise of an engine" in result.stderr
