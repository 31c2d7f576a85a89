"""How what a project adds comes to be known: a plugin that is named, or an entry point of an installed package."""

import importlib.metadata
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner

from sim import registry
from sim.case import Budget, Case, Session, loads
from sim.cli.main import main
from sim.dialects import DIALECTS
from sim.faults import FAULTS
from sim.invariants.table import INVARIANTS
from sim.registry import RegistrationError, load_installed_plugins, load_plugin
from sim.search.strategies import response_cases
from sim.settings import ServerSettings
from sim.sut.frameworks import FRAMEWORKS
from sim.sut.registry import load_sut

ROOT = Path(__file__).parents[2]
TABLES = {
    "toy_dialect": (DIALECTS, "double"),
    "toy_fault": (FAULTS, "abort_storm"),
    "toy_framework": (FRAMEWORKS, "hive"),
    "toy_invariant": (INVARIANTS, "T1"),
}
EACH = pytest.mark.parametrize(("module", "table", "name"), [(module, *where) for module, where in TABLES.items()])


@EACH
def test_a_plugin_is_loaded_by_its_name_and_forgotten_after_the_test(module, table, name, plugin):
    assert name not in table
    plugin(module)
    plugin(module)
    assert list(table)[-1] == name


@EACH
def test_a_name_is_given_once(module, table, name, plugin, forgetful):
    plugin(module)
    first = table[name]
    del sys.modules[module]
    with pytest.raises(RegistrationError, match=rf"plugin {module}: .*the \w+ '{name}' is registered already"):
        load_plugin(module)
    assert table[name] is first


@pytest.fixture
def installed(forgetful, monkeypatch):
    """Makes these modules plugins of an installed package, which nobody has looked for so far."""

    def install(*modules):
        points = tuple(EntryPoint(module, module, "rollcage") for module in modules)
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == "rollcage" else ())
        monkeypatch.setattr(registry, "_installed_are_loaded", False)

    return install


STORM = (
    '{"format": 1, "budget": {"prompt_length": 4, "response_length": 10}, "sessions": [{"prompt_tokens": 2}],'
    ' "faults": [{"fault": "abort_storm", "at": {"on": "time", "time_s": 1.0}, "session": 0}]}'
)


@pytest.mark.parametrize(
    ("module", "needs_it"),
    [
        ("toy_dialect", lambda: ServerSettings("double")),
        ("toy_fault", lambda: loads(STORM)),
        ("toy_fault", response_cases),
        ("toy_framework", lambda: load_sut("hive:greedy")),
        ("toy_invariant", lambda: INVARIANTS.find("T1")),
    ],
)
def test_installed_plugins_are_looked_for_when_a_name_is_not_known(module, needs_it, installed):
    table, name = TABLES[module]
    installed(module)
    assert name not in table
    needs_it()
    assert name in table


def test_they_are_looked_for_once(installed):
    installed("toy_dialect")
    assert load_installed_plugins()
    assert not load_installed_plugins()


def test_who_needs_none_loads_none(installed):
    installed("toy_no_such_module")
    Case(Budget(4, 10), (Session(2),), server=ServerSettings("sglang"))
    load_sut("reference:pinned")


def test_an_installed_plugin_that_cannot_be_imported_is_one_line(installed, tmp_path):
    """Of the command line, where it is nobody's fault but the package's."""
    installed("toy_no_such_module")
    (tmp_path / "storm.json").write_text(STORM)
    result = CliRunner().invoke(main, ["replay", str(tmp_path / "storm.json")])
    assert result.exit_code == 2
    assert result.stderr == (
        "error: plugin toy_no_such_module: cannot be imported: "
        "ModuleNotFoundError: No module named 'toy_no_such_module'\n"
    )


# In processes of their own


def rollcage(*arguments, path=(), folder=None):
    """(exit code, standard output, standard error)"""
    done = subprocess.run(
        [sys.executable, "-m", "sim.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *path)))},
        cwd=folder,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_plugin_in_the_working_directory(tmp_path):
    (tmp_path / "mine.py").write_text((Path(__file__).parent / "toy_dialect.py").read_text())
    hunt = ("hunt", "--sut", "reference:pinned", "--dialect", "double", "--worlds", 10, "--seed", 1)
    code, out, _ = rollcage(*hunt, "--plugin", "mine", folder=tmp_path)
    assert (code, out) == (0, out)
    assert "clean" in out
    code, _, err = rollcage(*hunt, folder=tmp_path)
    assert code == 2
    assert "'double' is not one of 'vllm', 'sglang', 'trtllm', 'plain-vllm', 'plain-sglang'" in err


def test_a_fault_of_an_installed_package_is_drawn_shrunk_kept_and_replayed_without_a_word(tmp_path):
    site = tmp_path / "site"
    (site / "toy-1.0.dist-info").mkdir(parents=True)
    (site / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (site / "toy-1.0.dist-info" / "entry_points.txt").write_text("[rollcage]\nstorms = toy_fault\n")
    (site / "toy_fault.py").write_text((Path(__file__).parent / "toy_fault.py").read_text())

    hunt = ("hunt", "--sut", "toy_fault:impatient", "--kind", "budget", "--worlds", 400, "--seed", 1)
    code, out, err = rollcage(*hunt, "--save", tmp_path / "finds", path=[site])
    assert (code, err) == (1, "")
    assert "abort_storm (session 0, times 5" in out
    (kept,) = (tmp_path / "finds").glob("B2-*.json")
    assert rollcage("replay", kept, "--sut", "toy_fault:impatient", path=[site])[0] == 0
    code, _, err = rollcage("replay", kept)
    assert code == 2
    assert "Invalid value 'abort_storm'" in err
