"""What a report is about. Reports are given what was run, and never run a world themselves."""

from collections.abc import Sequence
from typing import NamedTuple

from sim.case import Case
from sim.clock import Deviation
from sim.invariants import Violation
from sim.trace import Trace, TurnRecord


class Subject(NamedTuple):
    """One run of a case on a SUT, and what it violates. `deviations`: where the order of ready callbacks left FIFO."""

    case: Case
    sut_key: str
    trace: Trace
    violations: Sequence[Violation]
    deviations: Sequence[Deviation] = ()

    def turns(self) -> list[tuple[int, TurnRecord]]:
        """(session, turn), those of sessions in violation first."""
        named = {violation.session for violation in self.violations}
        return sorted(self.trace.ledger.turns(), key=lambda turn: turn[0] not in named)


def messages_of(violations: Sequence[Violation]) -> dict[str, list[str]]:
    """The messages of each invariant that is violated, by its number."""
    messages: dict[str, list[str]] = {}
    for violation in violations:
        messages.setdefault(violation.invariant, []).append(violation.message)
    return messages
