"""Small worlds with faults, and what is to be read off their traces."""

from sim.case import Budget, Case, Session
from sim.events import FaultFired
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world

BUDGET = Budget(prompt_length=4, response_length=10, max_model_len=64)
ONE = Session(4)


def run(*faults, sessions=(ONE,), sut=CLEAN, **settings):
    return run_world(Case(BUDGET, tuple(sessions), tuple(faults), **settings), load_sut(sut))


def events(trace, kind):
    return [event for event in trace.events if isinstance(event, kind)]


def notes(trace):
    return [event.note for event in events(trace, FaultFired)]


def decoded(trace, session=0):
    return [attempt.decoded_tokens for turn in trace.ledger.sessions[session].turns for attempt in turn.attempts]
