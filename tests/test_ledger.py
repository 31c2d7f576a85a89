"""The ledger adds up, lets go of sessions, and knows which requests it was not told of."""

import pytest

from sim.events import (
    Admitted,
    Cancelled,
    Decoded,
    Delivered,
    Discarded,
    Ended,
    Granted,
    Message,
    Prefilled,
    Sent,
    SessionEnded,
    TurnEnded,
    TurnStarted,
    WorldEnded,
)
from sim.ledger import DecodedRun, Ledger

TWO_ATTEMPTS = (
    TurnStarted(0, 0, 0, 4),
    Sent(0, 0, 0, 0, 0, 0, 4, {}),
    Granted(0, 0, 10, "default", 10, 28),
    Admitted(0, 0),
    Decoded(30, 0, 4, 3, 0),
    Ended(30, 0, "abort", 3),
    Delivered(30, 0, 3),
    Sent(40, 1, 0, 0, 1, 0, 7, {}),
    Granted(40, 1, 7, "default", 7, 25),
    Decoded(50, 1, 7, 2, 0),
    Decoded(60, 1, 9, 1, 1),
    Ended(60, 1, "stop", 3),
    Delivered(60, 1, 3),
    TurnEnded(60, 0, 0, "ok", ((4, 6),), "stop", 0, 1, None),
    SessionEnded(60, 0, "ok", 6, 6),
    WorldEnded(60, "done"),
)


def test_ledger_gathers_attempts_under_their_turn():
    ledger = Ledger([0], TWO_ATTEMPTS)

    (turn,) = ledger.sessions[0].turns
    assert turn.decoded_tokens == 6
    assert [attempt.runs for attempt in turn.attempts] == [
        [DecodedRun(4, 3, 0)],
        [DecodedRun(7, 2, 0), DecodedRun(9, 1, 1)],
    ]
    assert [attempt.grant.tokens for attempt in turn.attempts] == [10, 7]
    assert [[ended.outcome for ended in attempt.ended] for attempt in turn.attempts] == [["abort"], ["stop"]]
    assert [attempt.delivered.tokens for attempt in turn.attempts] == [3, 3]
    assert ledger.sessions[0].ended == SessionEnded(60, 0, "ok", 6, 6)
    assert list(ledger.turns()) == [(0, turn)]
    assert ledger.turn_outcome(0, 0) == "ok"
    assert ledger.turn_outcome(0, 1) is None


def test_ledger_tells_an_answer_that_found_no_caller():
    events = (
        TurnStarted(0, 0, 0, 4),
        Sent(0, 0, 0, 0, 0, 0, 4, {}),
        Cancelled(5, 0),
        TurnEnded(5, 0, 0, "cancelled", (), None, None, None, None),
        Decoded(30, 0, 4, 3, 0),
        Ended(30, 0, "length", 3),
        Discarded(30, 0, 3),
        WorldEnded(30, "done"),
    )
    ledger = Ledger([0], events)

    assert ledger.attempts[0].delivered is None
    assert ledger.attempts[0].discarded == Discarded(30, 0, 3)
    assert ledger.sessions[0].cancelled == Cancelled(5, 0)
    assert ledger.turn_outcome(0, 0) == "cancelled"


def one_turn(session, request, *, error=None):
    return (
        TurnStarted(0, session, 0, 4),
        Message(0, "acquire", session, 0, (), None, None, 0, error),
        Sent(0, request, session, 0, 0, 0, 4, {}),
        Prefilled(5, request, 4, 0, 0, 0),
        Ended(30, request, "stop", 0),
    )


def test_a_session_is_entered_with_its_first_event():
    ledger = Ledger()
    ledger.book(one_turn(7, 0))
    assert list(ledger.sessions) == [7]
    assert ledger.attempts[0].prefilled.computed_tokens == 4


def test_the_balancers_failure_is_the_turns_on_whose_behalf_it_was_asked():
    ledger = Ledger([0, 1], (*one_turn(0, 0, error="KeyError"), *one_turn(1, 1)))
    ledger.book([Message(9, "acquire", None, None, (), None, None, 0, "KeyError")])
    assert [turn.balancer_failed for _, turn in ledger.turns()] == [True, False]


def test_nothing_of_a_session_is_under_way_when_each_answer_has_been_delivered_or_discarded():
    ledger = Ledger([0], one_turn(0, 0))
    record = ledger.sessions[0]
    assert not record.is_settled
    ledger.book([SessionEnded(31, 0, "ok", 0, 0)])
    assert not record.is_settled, "its answer is on its way"
    ledger.book([Discarded(32, 0, 0)])
    assert record.is_settled


def test_who_is_let_go_of_has_books_of_its_own():
    ledger = Ledger((), (*one_turn(0, 0), *one_turn(1, 1)))
    gone = ledger.let_go([0])
    assert (list(gone.sessions), list(ledger.sessions)) == ([0], [1])
    assert [attempt.sent.request for attempt in gone.attempts] == [0]
    assert [attempt.sent.request for attempt in ledger.attempts] == [1]
    assert [session for session, _ in gone.turns()] == [0]


def test_what_comes_of_a_session_that_was_let_go_of_is_a_stray():
    ledger = Ledger((), one_turn(0, 0))
    ledger.let_go([0])
    ledger.book([Sent(40, 1, 0, 0, 1, 0, 4, {}), Decoded(50, 1, 4, 2, 0), Ended(50, 1, "stop", 2), Delivered(50, 1, 2)])
    assert (ledger.strays, ledger.attempts) == (1, [])


def test_before_that_an_unknown_request_is_a_mistake_of_whoever_writes_the_trace():
    with pytest.raises(KeyError):
        Ledger([0], [Decoded(50, 1, 4, 2, 0)])
