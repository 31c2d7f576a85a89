"""Where an invariant begins to speak, and where it must not: small hand-made traces, each one step from its neighbour.

What is here kills mutants (docs/mutation.md) that the tests of whole worlds let live.
"""

from types import SimpleNamespace

import pytest

from sim.case import Budget, Case, ClientView, Limit, Session, Transport
from sim.events import (
    Cancelled,
    Decoded,
    Delivered,
    Ended,
    Granted,
    Logged,
    Message,
    Prefilled,
    Sent,
    SessionEnded,
    TurnEnded,
    TurnStarted,
    VersionChanged,
    WorldEnded,
)
from sim.invariants.harness import check_same_digest
from sim.invariants.judging import judge
from sim.invariants.table import numbers_of
from sim.trace import Trace

BUDGET = Budget(prompt_length=8, response_length=10, max_model_len=64)
ONE = Case(BUDGET, (Session(2),))


def trace_of(case, *events, reason="done", waiting=()):
    trace = Trace(len(case.sessions))
    for event in events:
        trace.add(event)
    trace.seal(WorldEnded(0, reason, waiting))
    return trace


def told(number, case, *events, **end):
    """What an invariant says of a world in which this happened."""
    return [violation.message for violation in judge(case, trace_of(case, *events, **end), [number])]


def started(session=0, turn=0, prompt_tokens=2):
    return TurnStarted(0, session, turn, prompt_tokens)


def attempt(request=0, *, session=0, turn=0, prompt_tokens=2, limits=None, grant=None, decoded=0, ended="length"):
    """The events of one attempt. `grant`: (tokens, rule, wanted tokens, room tokens). `ended` None: it goes on."""
    events = [Sent(0, request, session, turn, request, 0, prompt_tokens, limits or {})]
    if grant is not None:
        events.append(Granted(0, request, *grant))
    if decoded:
        events.append(Decoded(0, request, prompt_tokens, decoded, 0))
    if ended is not None:
        events.append(Ended(0, request, ended, decoded))
    return events


def returned(tokens, *, session=0, turn=0, outcome="ok", changed=None, error=None):
    ids = ((1, tokens),) if tokens else ()
    return TurnEnded(0, session, turn, outcome, ids, None, 0, 0, changed, error)


def failed(session=0, turn=0, error="Error: no"):
    return returned(0, session=session, turn=turn, outcome="error", error=error)


def configured(response_length):
    """A world whose client finds this in its config."""
    return Case(Budget(8, 10, 64, client_view=ClientView(response_length)), (Session(2),))


# B1, B2


@pytest.mark.parametrize(("decoded", "broken"), [(1, False), (2, True)])
def test_a_budget_of_1_is_a_budget(decoded, broken):
    events = (started(), *attempt(grant=(2, "default", 2, 62), decoded=decoded), returned(decoded))
    assert bool(told("B1", configured(1), *events)) == broken
    assert told("B8", configured(1), *events) == []


@pytest.mark.parametrize(("attempts", "ending"), [(8, ""), (9, " and 1 more")])
def test_b1_spells_eight_grants(attempts, ending):
    events = [started()]
    for number in range(attempts):
        events += attempt(number, grant=(9, "default", 9, 62), decoded=2, ended="abort")
    (message,) = told("B1", ONE, *events, returned(2 * attempts))
    assert message.endswith(": " + ", ".join(["2 of 9 (aborted)"] * 8) + ending)


def test_b2_speaks_of_a_turn_that_came_back_before_its_last_attempt_ended():
    (message,) = told("B2", ONE, started(), *attempt(grant=(10, "default", 10, 62), ended=None), returned(3))
    assert "was cut at 3 tokens (None) with 7 of its budget of 10" in message


def test_b2_without_partial_rollout_excuses_aborts_alone():
    case = Case(BUDGET, (Session(2),), partial_rollout=False)
    assert len(told("B2", case, started(), *attempt(grant=(9, "default", 9, 62), decoded=9), returned(9))) == 1


@pytest.mark.parametrize(("tokens", "broken"), [(5, False), (4, True)])
def test_b2_of_a_trajectory_leaves_what_earlier_turns_used(tokens, broken):
    case = Case(Budget(8, 10, 64, policy="trajectory"), (Session(2),))
    earlier = (started(), *attempt(grant=(4, "default", 4, 62), decoded=4, ended="stop"), returned(4))
    later = attempt(1, turn=1, prompt_tokens=7, grant=(tokens, "default", tokens, 57), decoded=tokens)
    assert (
        bool(told("B2", case, *earlier, started(turn=1, prompt_tokens=7), *later, returned(tokens, turn=1))) == broken
    )


@pytest.mark.parametrize(("prompt_tokens", "broken"), [(63, True), (64, False)])
def test_b2_room_for_one_token_is_room(prompt_tokens, broken):
    case = Case(BUDGET, (Session(prompt_tokens),))
    assert bool(told("B2", case, started(prompt_tokens=prompt_tokens), returned(0))) == broken


# B6, B8, B10


@pytest.mark.parametrize(("tokens", "broken"), [(10, False), (11, True)])
def test_b6_a_grant_may_fill_the_context(tokens, broken):
    events = attempt(prompt_tokens=54, grant=(tokens, "default", tokens, 10), decoded=10)
    assert bool(told("B6", ONE, started(prompt_tokens=54), *events, returned(10))) == broken


@pytest.mark.parametrize(("wanted", "broken"), [(1, False), (0, True)])
def test_b6_the_last_token_may_be_asked_for(wanted, broken):
    events = attempt(limits={"max_tokens": wanted}, grant=(1, "max_tokens", wanted, 62), decoded=1)
    assert bool(told("B6", ONE, started(), *events, returned(1))) == broken


@pytest.mark.parametrize("number", ["B6", "B8", "B10"])
def test_what_was_never_granted_is_no_grant(number):
    events = (started(), *attempt(limits={"max_tokens": 5}, ended="refused"), returned(0))
    assert told(number, configured(None), *events) == []


@pytest.mark.parametrize(
    ("text", "limits", "broken"),
    [
        ("response_length is None", {}, False),
        ("the weather is fine", {}, True),
        ("response_length is None", {"max_tokens": 7}, True),
    ],
)
def test_b8_the_word_names_the_key_and_excuses_no_limit(text, limits, broken):
    events = attempt(limits=limits, grant=(10, "default", 10, 62), decoded=10)
    case = configured(None)
    assert bool(told("B8", case, Logged(0, "client", text), started(), *events, returned(10))) == broken


@pytest.mark.parametrize(
    ("limit", "granted", "room", "broken"), [(1, 1, 62, False), (1, 2, 62, True), (5, 0, 0, False), (5, 1, 0, True)]
)
def test_b10_at_its_edges(limit, granted, room, broken):
    events = attempt(limits={"max_tokens": limit}, grant=(granted, "max_tokens", limit, room), decoded=granted)
    assert bool(told("B10", ONE, started(), *events, returned(granted))) == broken


SHARING = Case(
    BUDGET,
    (Session(2), Session(2, shares_params_with=0), Session(2, limit=Limit("max_tokens", 5))),
    transport=Transport("shared"),
)


@pytest.mark.parametrize(
    ("changed_by", "broken"), [(None, True), (0, False), (1, False), (2, True)], ids=["nobody", "it", "twin", "other"]
)
def test_b10_a_limit_taken_out_of_shared_params_is_not_the_servers_doing(changed_by, broken):
    """Session 0 sends a limit and is granted the default; that is excused where its params changed meanwhile."""
    events = [started(), *attempt(limits={"max_tokens": 5}, grant=(10, "default", 10, 62), decoded=10)]
    for session in range(3):
        if session:
            events.append(started(session))
        change = "max_tokens is gone" if session == changed_by else None
        events.append(returned(0, session=session, changed=change))
    assert bool(told("B10", SHARING, *events)) == broken


@pytest.mark.parametrize(("wanted", "broken"), [(5, True), (4, False)])
def test_b10_a_limit_that_arrived_as_it_was_sent_is_to_be_honoured(wanted, broken):
    """With shared objects a server may have been asked for another limit (4) than was sent (5), and grants 4."""
    events = attempt(limits={"max_tokens": 5}, grant=(4, "max_tokens", wanted, 62), decoded=4)
    assert bool(told("B10", SHARING, started(), *events, returned(4))) == broken


# A5, A9


def test_a5_one_answer_of_0_tokens_among_others_is_enough():
    empty = [*attempt(0, ended="abort"), Delivered(0, 0, 0)]
    full = [*attempt(1, decoded=3, ended="abort"), Delivered(0, 1, 3)]
    unanswered = attempt(2, ended="abort")
    assert len(told("A5", ONE, started(), *empty, *full, failed())) == 1
    assert len(told("A5", ONE, started(), *unanswered, *empty, failed())) == 1
    assert told("A5", ONE, started(), *full, *unanswered, failed()) == []


def balancer(session, turn, error):
    return Message(0, "a message", session, turn, (), None, None, 0, error)


OWN_FAULT = ["session 0 turn 0 failed on its own: Error: no"]


@pytest.mark.parametrize(
    ("events", "messages"),
    [
        ([], OWN_FAULT),
        ([balancer(0, 0, "KeyError: 'r0'")], []),
        ([balancer(0, 0, None)], OWN_FAULT),
        ([balancer(1, 0, "KeyError: 'r0'")], OWN_FAULT),
        ([balancer(0, 1, "KeyError: 'r0'")], OWN_FAULT),
        (attempt(ended="error"), []),
        (attempt(ended="refused"), []),
        (attempt(ended="abort"), OWN_FAULT),
        ([*attempt(0, ended="abort"), *attempt(1, ended="error")], []),
    ],
    ids=["alone", "balancer", "no error", "other session", "other turn", "server", "gate", "abort", "in the end"],
)
def test_a9_asks_who_failed_a_call(events, messages):
    assert told("A9", ONE, started(), *events, failed()) == messages


def test_a9_has_nothing_against_calls_that_end_well():
    assert told("A9", ONE, started(), *attempt(decoded=10), returned(10)) == []


def test_a9_a_cancelled_call_was_cancelled_by_somebody():
    gone = (started(), returned(0, outcome="cancelled"))
    assert told("A9", ONE, *gone) == ["session 0 turn 0 says that it was cancelled, and nobody cancelled it"]
    assert told("A9", ONE, Cancelled(0, 0), *gone) == []


def test_a9_a_call_ends_unless_the_run_was_cut_off():
    case = Case(BUDGET, (Session(2), Session(2)))
    events = (started(), started(1), failed(1))
    broken = "session 0 turn 0 ended without a result or an exception that can be caught"
    other = "session 1 turn 0 failed on its own: Error: no"
    assert told("A9", case, *events) == [broken, other]
    assert told("A9", case, *events, reason="horizon") == [other]


@pytest.mark.parametrize(
    ("case", "error", "ending"),
    [
        (configured(None), "TypeError: response_length", "(this world's config has response_length None, on purpose)"),
        (configured(0), "ValueError: response_length", "(this world's config has response_length 0, on purpose)"),
        (
            Case(Budget(8, 10, 64, client_view=ClientView()), (Session(2),)),
            "AttributeError: response_length",
            "(this world's config lacks response_length, on purpose)",
        ),
        (configured(None), "KeyError: 'r0'", "KeyError: 'r0'"),
        (ONE, "TypeError: response_length", "TypeError: response_length"),
    ],
)
def test_a9_says_what_is_odd_in_a_config_that_the_error_names(case, error, ending):
    (message,) = told("A9", case, started(), failed(error=error))
    assert message == f"session 0 turn 0 failed on its own: {error}" + (f" {ending}" if ending != error else "")


def test_a9_says_what_is_odd_in_a_config_at_which_the_factory_raised():
    for case, is_said in ((configured(None), True), (ONE, False)):
        trace = trace_of(case, started(), failed())
        trace.factory_raised = True
        (violation,) = judge(case, trace, ["A9"])
        assert ("on purpose" in violation.message) == is_said


# S2, V1


def test_s2_is_told_of_the_session_whose_prompt_was_stale():
    events = (started(), *attempt(decoded=1), Prefilled(0, 0, 1, 1, 0, 1), returned(1))
    (violation,) = judge(ONE, trace_of(ONE, *events), ["S2"])
    assert violation.session == 0
    assert told("S2", ONE, started(), *attempt(decoded=1), Prefilled(0, 0, 1, 1, 0, 0), returned(1)) == []
    assert len(told("S2", ONE, VersionChanged(0, 0, 1, 1, 3))) == 1
    assert told("S2", ONE, VersionChanged(0, 0, 1, 0, 0)) == []


def test_v1_names_four_of_those_that_wait():
    waiting = tuple((f"task {number}", "a future") for number in range(5))
    (message,) = told("V1", ONE, reason="deadlock", waiting=waiting)
    assert message == (
        "deadlock at 0 s with 1 sessions open (0): task 0 waits on a future; task 1 waits on a future; "
        "task 2 waits on a future; task 3 waits on a future"
    )


def test_v1_where_no_session_is_left_names_none():
    trace = trace_of(ONE, SessionEnded(0, 0, "ok", 0, 0), reason="livelock")
    (violation,) = judge(ONE, trace, ["V1"])
    assert (violation.message, violation.session) == ("livelock at 0 s with 0 sessions open (none)", None)


def test_d1_where_two_runs_differ_in_what_is_kept_no_longer():
    """A trace that hands its events on keeps the digest of them alone."""
    first, again = (SimpleNamespace(keeps=False, digest=lambda digest=digest: digest) for digest in "ab")
    (violation,) = check_same_digest(first, again)
    assert violation.message == "two runs of the same case have the digests a and b"
    assert check_same_digest(first, first) == []


def test_kinds_choose_their_invariants():
    assert numbers_of(["liveness"]) == ("V1",)
    assert numbers_of(["staleness", "harness"]) == ("S1", "S2", "D1")
    assert numbers_of(["waste"]) == ("W2",), "W1 only warns"
    assert numbers_of([]) == ()
