"""A config value that is not there is called missing, wherever it is told."""

from sim.case import Budget, Case, ClientView, Session
from sim.report.world import world_report
from sim.sut.registry import load_sut
from sim.verdicts import judged


def test_b8_calls_a_missing_value_missing():
    run = judged(Case(Budget(4, 10, client_view=ClientView()), (Session(2),)), load_sut("reference:silent-fallback"))
    (message,) = [violation.message for violation in run.violations if violation.invariant == "B8"]
    assert "response_length is missing in the client's config" in message
    assert "UNSET" not in world_report(run)
