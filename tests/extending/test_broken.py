"""What a project adds and does not work is told as such, by its name and module: no verdict, and no fault of ours."""

import dataclasses
import sys

import pytest
from click.testing import CliRunner

from sim import corpus
from sim.case import Budget, Case, Session
from sim.cli.main import main
from sim.registry import PluginError
from sim.search.classics import CLASSICS
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world

CASE = Case(Budget(4, 10), (Session(2),))

FAULT = """
from sim.faults import Fault, Stage, register_fault
from sim.schema import Index

@register_fault
class Stall(Fault, frozen=True, tag="stall"):
    replica: Index

    async def act(self, stage):
        {}
"""

INVARIANT = """
from sim.invariants.interface import Invariant
from sim.invariants.table import register_invariant
from sim.invariants.violation import Violation

def check(evidence):
    {}

register_invariant(Invariant("Z1", "lifecycle", "A turn takes at most two attempts.", check))
"""

DIALECT = """
from sim.dialects import LIMIT_KEYS, Dialect, register_dialect

class Triple:
    def terms(self, {}):
        return (3 * lengths.response_length,)
    def spelled(self, lengths, prompt_tokens):
        return "3"

register_dialect(Dialect("wide", limit_keys=LIMIT_KEYS, default=Triple(),
    stop_reasons={{"stop": "completed", "length": "completed", "abort": "aborted"}}))
"""


@pytest.fixture
def broken(forgetful, tmp_path, monkeypatch):
    """Writes a plugin of this text; returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(text):
        (tmp_path / "toy_broken.py").write_text(text)
        return "toy_broken"

    return write


def hunt(plugin, *more):
    command = ("hunt", "--plugin", plugin, "--sut", more[0] if more else CLEAN, "--worlds", "200", "--seed", "1")
    return CliRunner().invoke(main, [*command, *more[1:]])


BROKEN = {
    "a fault that misspells a method": (
        FAULT.format("await stage.pauze([self.replica])"),
        "fault 'stall' failed: toy_broken raised AttributeError: 'WorldStage' object has no attribute 'pauze'",
    ),
    "a fault that gives wrong arguments": (
        FAULT.format("await stage.pause([self.replica])"),
        "fault 'stall' failed: toy_broken raised TypeError",
    ),
    "a fault that names a replica too many": (
        FAULT.format("stage.crash(99)"),
        "fault 'stall' failed: toy_broken raised IndexError",
    ),
    "a fault that returns no note": (FAULT.format("return 3"), "fault 'stall': its act returned 3; a string is needed"),
    "a fault that cannot be bounded": (
        FAULT.format("return ''\n\n    @property\n    def idle_s(self):\n        return self.pause"),
        "a fault of the case failed: toy_broken raised AttributeError: 'Stall' object has no attribute 'pause'",
    ),
    "an invariant that raises": (
        INVARIANT.format("return evidence.leger"),
        "invariant Z1 failed: toy_broken raised AttributeError",
    ),
    "an invariant that returns nothing": (
        INVARIANT.format("pass"),
        "invariant Z1 failed: toy_broken raised TypeError: 'NoneType' object is not iterable",
    ),
    "an invariant that finds no violations": (
        INVARIANT.format("return ['two attempts']"),
        "invariant Z1: its check found 'two attempts'; a Violation is needed",
    ),
    "an invariant that finds violations of another": (
        INVARIANT.format("return [Violation('z1', 'two attempts')]"),
        "invariant Z1: its check found a Violation of 'z1'; it may find those of 'Z1'",
    ),
}


@pytest.mark.parametrize(("text", "told"), BROKEN.values(), ids=BROKEN)
def test_what_fails_ends_a_hunt_with_2_its_name_and_a_case_that_shows_it(text, told, broken, tmp_path):
    plugin = broken(text)
    result = hunt(plugin)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"error: {told}" in result.stderr
    assert "fault of rollcage" not in result.stderr
    (kept,) = (tmp_path / "found").glob("plugin-*.json")
    assert told in corpus.read(kept).origin
    again = CliRunner().invoke(main, ["show", str(kept), "--plugin", plugin, "--sut", CLEAN])
    assert again.exit_code == 2
    assert f"error: {told}" in again.stderr


def test_a_dialect_that_fails(broken):
    result = hunt(broken(DIALECT.format("lengths")), "reference:deferred", "--dialect", "wide")
    assert result.exit_code == 2
    assert "error: dialect 'wide', default.terms, failed: toy_broken raised TypeError" in result.stderr


def test_a_fault_whose_calls_fail_is_a_trainer_to_whom_that_happens(broken, forgetful):
    """The note says so, and nobody is to blame."""
    assert hunt(broken(FAULT.format("await stage.pause([self.replica], 'nap', clear_cache=True)"))).exit_code == 0


@pytest.fixture
def hive(plugin):
    return plugin("toy_framework")


def having(hive, name, **changed):
    """The SUT of that name, its framework changed."""
    sut = load_sut(name)
    return dataclasses.replace(sut, framework=dataclasses.replace(sut.framework, **changed))


def fails(*_, **__):
    raise LookupError("not there")


def gives_nothing(*_, **__):
    return None


fails.__module__ = gives_nothing.__module__ = "toy_framework"


@pytest.mark.parametrize("part", ["make_config", "make_params", "make_output", "make_face"])
def test_a_framework_whose_function_fails_or_returns_nothing(part, hive):
    with pytest.raises(PluginError, match=f"framework 'hive', {part} failed: .* raised LookupError: not there"):
        run_world(CASE, having(hive, "hive", **{part: fails}))
    with pytest.raises(PluginError, match=f"framework 'hive', {part}: it returned None"):
        run_world(CASE, having(hive, "hive", **{part: gives_nothing}))


def test_a_framework_whose_balancer_is_not_understood(hive):
    with pytest.raises(PluginError, match=r"balancer\.replicas of the framework failed: .* LookupError: not there"):
        run_world(CASE, having(hive, "hive", balancer=dataclasses.replace(hive.BALANCER, replicas=fails)))


def test_a_framework_that_does_not_say_what_was_returned(hive):
    with pytest.raises(PluginError, match="framework 'hive', returned: it gave None; a Returned is needed"):
        run_world(CASE, having(hive, "hive", returned=gives_nothing))


def test_a_fault_whose_check_fails(broken):
    text = FAULT.format("return ''\n\n    def check(self, where, case):\n        return case.replikas")
    result = hunt(broken(text), CLEAN, "--worlds", "2000")
    assert result.exit_code == 2
    assert "error: fault 'stall', check, failed: toy_broken raised AttributeError" in result.stderr


def test_what_is_built_in_and_fails_is_no_plugin(monkeypatch):
    from sim.faults import AbortAll

    async def act(self, stage):
        raise ZeroDivisionError

    act.__module__ = "sim.faults.aborts"
    monkeypatch.setattr(AbortAll, "act", act)
    monkeypatch.setitem(sys.modules[__name__].__dict__, "__name__", "sim.faults.aborts")
    with pytest.raises(ZeroDivisionError):
        run_world(next(each.case for each in CLASSICS if each.name == "one session, one abort"), load_sut(CLEAN))
