"""An old client against a new one: the first attempt in which two SUTs differ on the same world."""

from sim.case import Case
from sim.invariants.violation import Violation
from sim.ledger import Attempt
from sim.search.campaign import Compare
from sim.sut.framework import Sut
from sim.trace import Trace
from sim.world import run_world

DIFFERS = "differs"
"""Stands in the place of an invariant's number."""


def against(other: Sut) -> Compare:
    """A judge of traces that runs the same world on `other` and reports the first attempt that is not the same."""

    def compare(case: Case, trace: Trace) -> list[Violation]:
        theirs = run_world(case, other)
        for session, ours in trace.ledger.sessions.items():
            others = theirs.ledger.sessions[session]
            mine = [_spelled(a) for turn in ours.turns for a in turn.attempts]
            yours = [_spelled(a) for turn in others.turns for a in turn.attempts]
            for number in range(max(len(mine), len(yours))):
                pair = [attempts[number] if number < len(attempts) else "no request" for attempts in (mine, yours)]
                if pair[0] != pair[1]:
                    where = f"session {session}, request {number}"
                    return [Violation(DIFFERS, f"{where}: {pair[0]}; on {other.key}: {pair[1]}", session)]
        return []

    return compare


def _spelled(attempt: Attempt) -> str:
    granted = "no grant" if attempt.grant is None else f"granted {attempt.grant.tokens}"
    return f"turn {attempt.sent.turn}, prompt {attempt.sent.prompt_tokens}, {granted}, decoded {attempt.decoded_tokens}"
