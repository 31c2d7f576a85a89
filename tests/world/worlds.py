"""Small worlds, and what is to be read off their traces."""

from sim.case import (
    Budget,
    Session,
)
from sim.sut.registry import sut_of

BUDGET = Budget(prompt_length=4, response_length=10, max_model_len=64)
ONE = Session(4)


def decoded(trace, session=0):
    return [attempt.decoded_tokens for turn in trace.ledger.sessions[session].turns for attempt in turn.attempts]


def events(trace, kind):
    return [event for event in trace.events if isinstance(event, kind)]


def sut(client, name="under test"):
    """A SUT of a client class, with the built-in balancer."""
    return sut_of(name, lambda context: client(context.config, context.balancer))
