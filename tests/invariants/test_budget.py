"""Budget invariants: each catches its planted bug in one small case, and passes the known-good client there."""

import asyncio

import pytest

from sim.case import Budget, Case, ClientView, Limit, ServerSettings, Session, Transport, Turn
from sim.events import Decoded, Ended, Granted, Sent, TurnEnded, TurnStarted, WorldEnded
from sim.faults import AbortAll, AfterTokens, AtTime, CancelClient
from sim.invariants.budget import spelled_grants
from sim.invariants.judging import judge
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.trace import Trace
from sim.world import run_world

BUDGET = Budget(prompt_length=8, response_length=10, max_model_len=64)
ABORTED = (AbortAll(AfterTokens(0, 4), 0), AbortAll(AfterTokens(0, 8), 0))


def found(sut, case):
    """The violations, by number."""
    return {violation.invariant: violation for violation in judge(case, run_world(case, load_sut(sut)))}


SMALLEST = {
    "deferred": ("B1", Case(BUDGET, (Session(2),), ABORTED)),
    "stingy": ("B2", Case(BUDGET, (Session(2),), (AbortAll(AfterTokens(0, 5), 0),))),
    "writes-limit": ("B4", Case(BUDGET, (Session(2, limit=Limit("max_tokens", 5)),))),
    "asks-for-nothing": ("B6", Case(BUDGET, (Session(2, limit=Limit("max_tokens", 0)),))),
    "silent-fallback": ("B8", Case(Budget(8, 10, 64, client_view=ClientView(None)), (Session(2),))),
    "deaf-server": ("B10", Case(BUDGET, (Session(2, limit=Limit("max_new_tokens", 5)),))),
}


@pytest.mark.parametrize(("bug", "number", "case"), [(bug, *rest) for bug, rest in SMALLEST.items()])
def test_each_catches_its_planted_bug_and_passes_the_known_good(bug, number, case):
    assert number in found(f"reference:{bug}", case)
    assert found(CLEAN, case) == {}


MESSAGES = {
    "deferred": "session 0 turn 0 decoded 16 tokens against a budget of 10 (turn): "
    "4 of 10 (aborted), 4 of 10 (aborted), 8 of 8",
    "stingy": "session 0 turn 0 was cut at 5 tokens (abort) with 5 of its budget of 10 and 57 tokens of context left: "
    "5 of 10 (aborted)",
    "writes-limit": "session 0 turn 0: the caller's sampling params {'temperature': 1.0, 'logprobs': True, "
    "'max_tokens': 5} became {'temperature': 1.0, 'logprobs': True, 'max_tokens': 0}",
    "asks-for-nothing": "session 0 turn 0 attempt 0: max_tokens asks for 0 tokens and the request is sent and "
    "granted 1",
    "silent-fallback": "session 0 turn 0: response_length is None in the client's config, and it left the limit to the "
    "server without a word",
    "deaf-server": "session 0 turn 0 attempt 0: the client sent {'max_new_tokens': 5} and the server granted 10 "
    "(room 62)",
}


@pytest.mark.parametrize(("bug", "message"), MESSAGES.items())
def test_the_message_spells_the_arithmetic(bug, message):
    number, case = SMALLEST[bug]
    violation = found(f"reference:{bug}", case)[number]
    assert (violation.session, violation.message) == (0, message)


# Hand-made traces: what no planted bug shows


def traced(*attempts, started=2, ids=0, outcome="ok", changed=None):
    """One turn. Each attempt: (prompt tokens, limits, grant or None, decoded, how it ended)."""
    trace = Trace(1)
    trace.add(TurnStarted(0, 0, 0, started))
    for request, (prompt_tokens, limits, grant, tokens, ended) in enumerate(attempts):
        trace.add(Sent(0, request, 0, 0, request, 0, prompt_tokens, limits))
        if grant is not None:
            trace.add(Granted(0, request, *grant))
        trace.add(Decoded(0, request, prompt_tokens, tokens, 0))
        trace.add(Ended(0, request, ended, tokens))
    trace.add(TurnEnded(0, 0, 0, outcome, ((1, ids),) if ids else (), None, 0, 0, changed))
    trace.seal(WorldEnded(0, "done"))
    return trace


def check(number, case, trace):
    return [violation.message for violation in judge(case, trace, [number])]


ONE = Case(BUDGET, (Session(2),))


@pytest.mark.parametrize(("tokens", "broken"), [(10, False), (11, True)])
def test_b1_at_its_edge(tokens, broken):
    trace = traced((2, {}, (11, "default", 11, 62), tokens, "length"), ids=tokens)
    assert bool(check("B1", ONE, trace)) == broken


@pytest.mark.parametrize(("policy", "broken"), [("turn", False), ("trajectory", True)])
def test_b1_counts_earlier_turns_and_tools_only_under_policy_trajectory(policy, broken):
    case = Case(Budget(8, 10, 64), (Session(2, (Turn(4, 1), Turn(6))),))
    violations = check("B1", case, run_world(case, load_sut(CLEAN, {"budget": policy})))
    assert violations == (
        ["session 0 turn 1 decoded 11 tokens against a budget of 10 (trajectory): 5 tokens used before, then 6 of 10"]
        if broken
        else []
    )


def test_b1_does_not_accuse_a_turn_that_decoded_nothing():
    """The tool's answer alone went beyond an explicit limit, and the client was cancelled before it asked again."""
    case = Case(
        Budget(8, 10, 64, policy="trajectory"),
        (Session(2, (Turn(1, 1), Turn()), limit=Limit("max_tokens", 1)),),
        (CancelClient(AtTime(1.5), 0),),
        transport=Transport(balancer_delay_s=1.0),
    )
    trace = run_world(case, load_sut(CLEAN))
    assert [turn.decoded_tokens for turn in trace.ledger.sessions[0].turns] == [1, 0]
    assert check("B1", case, trace) == []


@pytest.mark.parametrize(
    ("ended", "returned", "partial_rollout", "broken"),
    [
        ("length", 9, True, True),
        ("length", 10, True, False),
        ("stop", 3, True, False),  # the model wanted no more
        ("error", 3, True, False),
        ("abort", 3, True, True),
        ("abort", 3, False, False),  # dropped, as partial rollout off has it
        ("refused", 0, True, True),
        ("refused", 0, False, False),
    ],
)
def test_b2_judges_how_a_turn_was_cut(ended, returned, partial_rollout, broken):
    case = Case(BUDGET, (Session(2),), partial_rollout=partial_rollout)
    trace = traced((2, {}, (10, "default", 10, 62), returned, ended), ids=returned)
    assert bool(check("B2", case, trace)) == broken


@pytest.mark.parametrize("outcome", ["cancelled", "error"])
def test_b2_leaves_turns_alone_that_did_not_end_well(outcome):
    assert check("B2", ONE, traced((2, {}, (10, "default", 10, 62), 3, "abort"), ids=3, outcome=outcome)) == []


def test_b2_accuses_a_client_that_never_asks():
    (message,) = check("B2", ONE, traced())
    assert message == (
        "session 0 turn 0 was cut at 0 tokens (None) with 10 of its budget of 10 and 62 tokens of context left: "
    )


@pytest.mark.parametrize(("prompt_tokens", "dialect"), [(64, "vllm"), (63, "sglang"), (64, "trtllm")])
def test_b2_is_silent_where_the_context_is_full(prompt_tokens, dialect):
    case = Case(BUDGET, (Session(prompt_tokens),), server=ServerSettings(dialect))
    assert check("B2", case, traced(started=prompt_tokens)) == []


def test_b6_prompt_and_grant_fit_the_context():
    (message,) = check("B6", ONE, traced((60, {"max_tokens": 5}, (5, "max_tokens", 5, 4), 5, "length"), started=60))
    assert message == "session 0 turn 0 attempt 0: prompt 60 + grant 5 exceeds the context of 64"


def test_b6_a_resume_without_anything_left():
    attempts = [(2, {}, (10, "default", 10, 62), 10, "abort"), (12, {}, (6, "default", 6, 52), 6, "length")]
    (message,) = check("B6", ONE, traced(*attempts))
    assert message == (
        "session 0 turn 0 attempt 1: the budget of 10 is used up (10 generated) and the request is sent and granted 6"
    )


def test_b6_leaves_a_trajectory_that_is_used_up_to_b1():
    """A turn alone cannot say what is left of it."""
    case = Case(Budget(8, 10, 64, policy="trajectory"), (Session(2),))
    trace = traced((2, {}, (10, "default", 10, 62), 10, "abort"), (12, {}, (6, "default", 6, 52), 6, "length"))
    assert check("B6", case, trace) == []
    assert len(check("B1", case, trace)) == 1


def test_b6_a_limit_of_0_is_none_whatever_the_server_makes_of_it():
    """TensorRT-LLM's server ignores it and grants its default."""
    case = Case(BUDGET, (Session(2, limit=Limit("max_tokens", 0)),), server=ServerSettings("trtllm"))
    assert "the caller's limit is 0 and the request is granted 10" in found("reference:asks-for-nothing", case)["B6"][1]


def test_b6_judges_an_explicit_limit_whatever_the_config():
    case = Case(Budget(8, 10, 64, client_view=ClientView(None)), (Session(2, limit=Limit("max_tokens", 0)),))
    assert "B6" in found("reference:asks-for-nothing", case)


def test_b6_a_grant_of_0_is_no_offence():
    assert check("B6", ONE, traced((2, {"max_tokens": 0}, (0, "max_tokens", 0, 62), 0, "length"))) == []


def test_b6_knows_that_a_client_without_a_budget_cannot_know_what_is_left():
    """Its fallback is the server's default, which vLLM's clamp raises to 1 behind a long prompt."""
    prompt = traced((30, {}, (1, "default", -12, 34), 1, "length"), started=30)
    assert check("B6", Case(Budget(8, 10, 64, client_view=ClientView(None)), (Session(30),)), prompt) == []
    assert len(check("B6", Case(BUDGET, (Session(30),)), prompt)) == 1


@pytest.mark.parametrize(
    ("view", "limit", "limits", "broken"),
    [
        (None, None, {}, False),  # a usable config is not B8's to judge
        (ClientView(0), 5, {"max_tokens": 5}, False),  # nor an explicit limit
        (ClientView(0), None, {"max_tokens": 7}, True),
        (ClientView(True), None, {"max_tokens": 1}, True),
        (ClientView(), None, {}, True),
    ],
)
def test_b8_wants_the_fallback_and_a_word(view, limit, limits, broken):
    session = Session(2, limit=None if limit is None else Limit("max_tokens", limit))
    case = Case(Budget(8, 10, 64, client_view=view), (session,))
    assert bool(check("B8", case, traced((2, limits, (10, "default", 10, 62), 10, "length")))) == broken


def test_b8_judges_a_turn_by_its_first_attempt():
    case = Case(Budget(8, 10, 64, client_view=ClientView(0)), (Session(2),), ABORTED)
    violations = judge(case, run_world(case, load_sut("reference:silent-fallback")))
    assert [violation.invariant for violation in violations] == ["B8"]


@pytest.mark.parametrize(
    ("limits", "granted", "broken"),
    [
        ({"max_tokens": 5}, 5, False),
        ({"max_tokens": 5}, 4, True),
        ({"max_tokens": 5}, 6, True),
        ({"max_tokens": 100}, 62, False),  # cut to the room
        ({"max_tokens": 5, "max_new_tokens": 7}, 7, False),  # either will do
        ({"max_tokens": 0}, 1, False),  # B6's to judge
        ({"max_tokens": None}, 10, False),
        ({}, 10, False),
    ],
)
def test_b10_a_limit_is_the_grant_unless_the_room_is_less(limits, granted, broken):
    assert bool(check("B10", ONE, traced((2, limits, (granted, "default", granted, 62), 1, "stop")))) == broken


@pytest.mark.parametrize(("objects", "broken"), [("copies", True), ("shared", False)])
def test_b10_does_not_blame_the_server_for_params_that_change_under_way(objects, broken):
    case = Case(BUDGET, (Session(2),), transport=Transport(objects))
    assert bool(check("B10", case, traced((2, {"max_tokens": 5}, (3, "max_tokens", 3, 62), 3, "length")))) == broken


def test_the_grants_are_spelled_in_order():
    trace = traced(
        (2, {}, (10, "default", 10, 62), 4, "abort"),
        (6, {}, None, 0, "error"),
        (6, {}, (6, "default", 6, 58), 6, "stop"),
    )
    (turn,) = trace.ledger.sessions[0].turns
    assert spelled_grants(turn) == "4 of 10 (aborted), 6 of 6"


@pytest.mark.parametrize("objects", ["copies", "shared"])
def test_b10_does_not_blame_the_server_for_a_limit_that_is_taken_out_under_way(objects):
    class WithdrawingClient(PinnedClient):
        """Sends the caller's own params, and takes the limit out of them before they have arrived (verl 0.8.0)."""

        async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
            asyncio.get_running_loop().call_soon(self.callers.pop, "max_tokens", None)
            return await super().attempt(request_id, prompt_ids, self.callers, **kwargs)

        async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
            self.callers = sampling_params
            return await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs)

    sut = sut_of("withdrawing", lambda context: WithdrawingClient(context.config, context.balancer))
    transport = Transport(objects, server_delay_s=0.5)
    case = Case(BUDGET, (Session(2, limit=Limit("max_tokens", 5)),), transport=transport)
    trace = run_world(case, sut)
    assert {violation.invariant for violation in judge(case, trace, ["B4", "B10"])} == {"B4"}
