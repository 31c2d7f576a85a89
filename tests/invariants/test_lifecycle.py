"""Lifecycle invariants: each catches its planted bug in one small case, and passes the known-good client there."""

import pytest

from sim.case import Budget, Case, ServerSettings, Session
from sim.events import Decoded, Delivered, Discarded, Ended, Sent, TurnEnded, TurnStarted, WorldEnded
from sim.faults import AbortAll, AbortRequest, AfterTokens, AtTime
from sim.invariants.judging import judge
from sim.invariants.lifecycle import delivered_ids
from sim.sut.registry import CLEAN, load_sut
from sim.tokens import first_token
from sim.trace import Trace
from sim.world import run_world

BUDGET = Budget(prompt_length=8, response_length=10, max_model_len=64)
ONE = Case(BUDGET, (Session(2),))
ABORTED = Case(BUDGET, (Session(2),), (AbortAll(AfterTokens(0, 4), 0),))
ABORTED_IN_PREFILL = Case(BUDGET, (Session(2),), (AbortRequest(AtTime(0.5), 0),), server=ServerSettings(prefill_s=1.0))


def found(sut, case):
    return {violation.invariant: violation.message for violation in judge(case, run_world(case, load_sut(sut)))}


@pytest.mark.parametrize(
    ("bug", "number", "case", "message"),
    [
        ("ends-twice", "A1", ABORTED, "request 0 (session 0) has 2 terminal outcomes: abort, length"),
        (
            "loses-tokens",
            "A2",
            ABORTED,
            "session 0 turn 0 was delivered 11 tokens (positions 2..5, 5..11) and returned 10 tokens (positions 2..11)",
        ),
        (
            "divides-by-tokens",
            "A5",
            ABORTED_IN_PREFILL,
            "session 0 turn 0 got an answer of 0 tokens and failed: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_each_catches_its_planted_bug_and_passes_the_known_good(bug, number, case, message):
    assert found(f"reference:{bug}", case)[number] == message
    assert found(CLEAN, case) == {}


# Hand-made traces

ORIGIN = first_token(0)


def traced(*events, reason="done", ids=(), outcome="ok"):
    trace = Trace(1)
    for event in (TurnStarted(0, 0, 0, 2), *events):
        trace.add(event)
    returned = tuple((ORIGIN + position, count) for position, count in ids)
    trace.add(TurnEnded(0, 0, 0, outcome, returned, None, 0, 0, None, None if outcome == "ok" else "Error: no"))
    trace.seal(WorldEnded(0, reason))
    return trace


def sent(request, prompt_tokens=2):
    return Sent(0, request, 0, 0, request, 0, prompt_tokens, {})


def check(number, trace):
    return [violation.message for violation in judge(ONE, trace, [number])]


@pytest.mark.parametrize(
    ("reason", "broken"), [("done", True), ("deadlock", True), ("horizon", False), ("livelock", False)]
)
def test_a1_a_request_without_an_outcome_unless_the_run_was_cut_off(reason, broken):
    assert check("A1", traced(sent(0), reason=reason)) == (
        ["request 0 (session 0) has 0 terminal outcomes: none"] if broken else []
    )


def test_a1_two_outcomes_are_two_in_a_run_that_was_cut_off_too():
    assert len(check("A1", traced(sent(0), Ended(0, 0, "stop", 1), Ended(0, 0, "abort", 1), reason="horizon"))) == 1


@pytest.mark.parametrize("reached", [Delivered, Discarded])
@pytest.mark.parametrize(("tokens", "broken"), [(3, False), (2, True), (4, True), (0, True)])
def test_a2_what_is_decoded_reaches_the_client_or_is_discarded(reached, tokens, broken):
    events = [sent(0), Decoded(0, 0, 2, 3, 0), Ended(0, 0, "stop", 3), reached(0, 0, tokens)]
    messages = check("A2", traced(*events, outcome="cancelled"))
    assert messages == ([f"request 0 decoded 3 tokens and answered with {tokens}"] if broken else [])


@pytest.mark.parametrize(
    ("returned", "broken"),
    [
        (((2, 5),), False),
        (((2, 4),), True),
        (((2, 6),), True),
        (((3, 5),), True),  # as many, but others
        (((2, 3), (4, 2)), True),  # one of them twice
        ((), True),
    ],
)
def test_a2_a_client_returns_what_it_was_delivered_and_in_order(returned, broken):
    events = [
        *(sent(0), Decoded(0, 0, 2, 3, 0), Ended(0, 0, "abort", 3), Delivered(0, 0, 3)),
        *(sent(1, 5), Decoded(0, 1, 5, 2, 1), Ended(0, 1, "stop", 2), Delivered(0, 1, 2)),
    ]
    assert bool(check("A2", traced(*events, ids=returned))) == broken


def test_a2_foreign_tokens_are_seen():
    events = [sent(0), Decoded(0, 0, 2, 3, 0), Ended(0, 0, "stop", 3), Delivered(0, 0, 3)]
    foreign = first_token(1) - ORIGIN + 2
    assert len(check("A2", traced(*events, ids=((foreign, 3),)))) == 1


def test_a2_knows_nothing_of_turns_that_did_not_end_well():
    events = [sent(0), Decoded(0, 0, 2, 3, 0), Ended(0, 0, "stop", 3), Delivered(0, 0, 3)]
    assert check("A2", traced(*events, outcome="error")) == []


def test_what_was_discarded_is_not_delivered():
    events = [
        *(sent(0), Decoded(0, 0, 2, 3, 0), Ended(0, 0, "abort", 3), Discarded(0, 0, 3)),
        *(sent(1), Decoded(0, 1, 2, 2, 1), Ended(0, 1, "stop", 2), Delivered(0, 1, 2)),
    ]
    (turn,) = traced(*events).ledger.sessions[0].turns
    assert delivered_ids(turn) == ((2, 2),)


@pytest.mark.parametrize(
    ("tokens", "ended", "outcome", "broken"),
    [
        (0, "abort", "error", True),
        (0, "refused", "error", True),
        (0, "abort", "ok", False),
        (0, "abort", "cancelled", False),
        (2, "abort", "error", False),  # it failed for another reason
        (0, "error", "error", False),  # the server refused
    ],
)
def test_a5_an_answer_of_0_tokens_is_no_reason_to_fail(tokens, ended, outcome, broken):
    events = [sent(0), Decoded(0, 0, 2, tokens, 0), Ended(0, 0, ended, tokens), Delivered(0, 0, tokens)]
    assert bool(check("A5", traced(*events, outcome=outcome))) == broken
