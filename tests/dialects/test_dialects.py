"""The table of dialects: which there are, and how each server calls the ways in which a request ends."""

import pytest

from sim.dialects import DIALECTS

REASONS = {
    "vllm": {"stop": "completed", "length": "completed", "abort": "aborted", "refused": "aborted"},
    "sglang": {"stop": "stop", "length": "length", "abort": "abort", "refused": "aborted"},
    "trtllm": {"stop": None, "length": None, "abort": "aborted", "refused": "aborted"},
    "plain-vllm": {"stop": "stop", "length": "length", "abort": "abort"},
    "plain-sglang": {"stop": "stop", "length": "length", "abort": "abort"},
}
"""What each server calls a response that stopped, was cut, was aborted, or was turned away (the last two cannot)."""


def test_the_built_in_dialects():
    assert list(DIALECTS)[: len(REASONS)] == list(REASONS)
    assert all(DIALECTS[name].name == name for name in DIALECTS)


@pytest.mark.parametrize("dialect", REASONS)
def test_stop_reasons(dialect):
    assert DIALECTS[dialect].stop_reasons == REASONS[dialect]


@pytest.mark.parametrize("dialect", REASONS)
def test_only_a_server_that_can_reject_has_a_reason_for_it_that_is_ever_told(dialect):
    rules = DIALECTS[dialect]
    assert not rules.can_reject or (rules.has_gate and "refused" in rules.stop_reasons)


@pytest.mark.parametrize(
    ("dialect", "gate", "can_reject", "waits_for", "pauses"),
    [
        ("vllm", True, True, "first token", True),
        ("sglang", True, False, "admitted", False),
        ("trtllm", True, True, "admitted", False),
        ("plain-vllm", False, False, "nothing", True),
        ("plain-sglang", True, False, "admitted", False),
    ],
)
def test_gates_and_pauses(dialect, gate, can_reject, waits_for, pauses):
    rules = DIALECTS[dialect]
    assert (rules.has_gate, rules.can_reject, rules.pause_waits_for) == (gate, can_reject, waits_for)
    assert rules.can_pause_without_abort == pauses
