"""What is shown is what was judged; a trace is judged by the case that one gives."""

import itertools
import json
import re

import pytest
from click.testing import CliRunner

from sim import corpus
from sim.case import Budget, Case, Limit, Session
from sim.cli.main import main
from sim.faults import AbortAll, AfterTokens
from sim.invariants.judging import judge
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world

FLAKY = """
import itertools

from sim.sut.reference.client import DeferredClient, PinnedClient

worlds = itertools.count()


def build(context):
    kind = (PinnedClient, DeferredClient)[next(worlds) % 2]
    return kind(context.config, context.balancer)
"""


@pytest.mark.parametrize("start", [0, 1])
def test_show_of_a_flaky_client_tells_of_one_run(tmp_path, monkeypatch, start):
    module = f"flaky_{start}"
    (tmp_path / f"{module}.py").write_text(FLAKY.replace("itertools.count()", f"itertools.count({start})"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    case = Case(Budget(64, 40), (Session(8),), (AbortAll(AfterTokens(0, 12), 0),))
    corpus.write(tmp_path / "case.json", corpus.Entry(case=case))
    shown = CliRunner().invoke(main, ["show", "case.json", "--sut", f"{module}:build"]).stdout
    decoded = int(re.search(r"decoded [\d+ ]+= (\d+); budget 40", shown)[1])
    assert ("B1 violated" in shown) == (decoded > 40) == bool(start)
    assert f"decoded {decoded} tokens against a budget of 40" in shown or decoded <= 40
    assert "D1 violated" in shown
    for _ in range(2):
        told = json.loads(CliRunner().invoke(main, ["show", "case.json", "--sut", f"{module}:build", "--json"]).stdout)
        decoded = sum(attempt["decoded_tokens"] for attempt in told["attempts"])
        assert ("B1" in {each["invariant"] for each in told["violations"]}) == (decoded > 40)


def test_a_trace_is_judged_by_the_case_that_is_given():
    case = Case(Budget(8, 20), (Session(4),))
    trace = run_world(case, load_sut(CLEAN))
    stricter = Case(Budget(8, 20), (Session(4, limit=Limit("max_tokens", 5)),))
    for first, second in itertools.permutations((case, stricter)):
        found = {id(each): {violation.invariant for violation in judge(each, trace)} for each in (first, second, first)}
        assert "B1" not in found[id(case)]
        assert "B1" in found[id(stricter)]
