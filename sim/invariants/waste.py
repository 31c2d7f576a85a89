"""Waste invariants: what is decoded although nobody will get it."""

import math
from collections.abc import Iterator

from sim.case import Case
from sim.clock import to_ns
from sim.engine import StepTotals
from sim.invariants.interface import Evidence, Invariant
from sim.invariants.violation import Violation
from sim.ledger import Attempt

_SCHEDULED_AND_ONE = 2
"""Steps: the one under way at a cancel, and one more."""


def check_cancelled_requests_end(evidence: Evidence) -> Iterator[Violation]:
    """Whether a server goes on with the request of a caller that was cancelled, until its grant is used up: the tokens
    are lost, and the slots and the KV that they take are the others'. A warning: where nothing carries a cancel to the
    servers, a client cannot help it."""
    cut_short = [each for each in evidence.ledger.attempts if each.decoded_at_cancel is not None]
    most = _most_tokens(evidence.case) if cut_short else 0
    for attempt in cut_short:
        assert attempt.decoded_at_cancel is not None
        lost = attempt.decoded_tokens - attempt.decoded_at_cancel
        if lost > most:
            session = attempt.sent.session
            yield Violation(
                "W1",
                f"request {attempt.sent.request} (session {session}) decoded {lost} tokens after its caller had been "
                f"cancelled; {most:g} were scheduled, or on the way, by then",
                session,
                severity="warning",
            )


def check_one_at_a_time(evidence: Evidence) -> Iterator[Violation]:
    """Whether a turn had one request at work at a time: a second one for what is asked for already decodes the same
    again. Told of a turn once. Where answers are hedged, or a request may be left behind, that is how it is meant."""
    policies = evidence.policies
    if policies.hedged == "yes" or policies.sticky == "fail-over":
        return
    for session, turn in evidence.ledger.turns():
        for number, attempt in enumerate(turn.attempts):
            if not attempt.beside or not attempt.decoded_tokens:
                continue
            others = [each for each in turn.attempts[:number] if each.decoded_tokens and _was_open(each, attempt)]
            if others:
                other = others[-1]
                yield Violation(
                    "W2",
                    f"session {session} turn {turn.started.turn} attempt {attempt.sent.attempt} (replica "
                    f"{attempt.sent.replica}) decoded {attempt.decoded_tokens} tokens beside attempt "
                    f"{other.sent.attempt} (replica {other.sent.replica}, {other.decoded_tokens} tokens), which had "
                    "not been answered",
                    session,
                )
                break


def _was_open(earlier: Attempt, attempt: Attempt) -> bool:
    told = earlier.delivered or earlier.discarded or earlier.lost
    return told is None or told.t_ns > attempt.sent.t_ns


def _most_tokens(case: Case) -> float:
    """What may be decoded before a server knows: two steps, and as many as there are while it is told."""
    delay_ns = to_ns(case.transport.server_delay_s)
    step_ns = case.server.make_latency().stretch(StepTotals(1, 0, 0, 1)).step_ns
    if not delay_ns:
        return _SCHEDULED_AND_ONE
    return math.inf if not step_ns else _SCHEDULED_AND_ONE + -(-delay_ns // step_ns)


INVARIANTS = (
    Invariant(
        "W1",
        "waste",
        "After a cancel a server decodes at most one step beyond what is scheduled.",
        check_cancelled_requests_end,
        severity="warning",
    ),
    Invariant(
        "W2",
        "waste",
        "At most one request of a turn is at work, unless answers are hedged.",
        check_one_at_a_time,
    ),
)
