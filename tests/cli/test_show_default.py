"""`show` without --sut: the known-good client, unless the case expects something of another."""

import pytest
from click.testing import CliRunner

from sim import corpus
from sim.case import Budget, Case, Session
from sim.cli.main import main
from sim.expected import Shown

CASE = Case(Budget(4, 10), (Session(2),))


@pytest.mark.parametrize(
    ("expected", "shown"),
    [
        ({}, "reference:pinned"),
        ({"verl==0.9.1": [Shown("B1")]}, "reference:pinned"),
        ({"reference:pinned": []}, "reference:pinned"),
        ({"reference:pinned": [], "reference:deferred": [Shown("B1")]}, "reference:deferred"),
    ],
    ids=["one's own", "a package's", "clean", "of a bad client"],
)
def test_whom_a_case_is_shown_on(tmp_path, expected, shown):
    path = tmp_path / "mine.json"
    corpus.write(path, corpus.Entry(expected=expected, case=CASE))
    result = CliRunner().invoke(main, ["show", str(path)])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0] == shown
