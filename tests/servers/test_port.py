"""Instead: how a part is made wrong on purpose without a subclass of it."""

from sim.servers.gate import SubmissionGate
from sim.servers.port import Instead


def test_what_is_named_is_another_and_all_else_is_its_own():
    gate, opened = SubmissionGate(), []
    stuck = Instead(gate, open=opened.append)
    stuck.close(True)
    stuck.open("sesame")
    assert opened == ["sesame"]
    assert (gate.is_closed, stuck.is_closed, stuck.of) == (True, True, gate)


def test_what_is_set_is_set_on_the_part_itself():
    gate = SubmissionGate()
    Instead(gate, open=print).rejects = True
    assert gate.rejects
