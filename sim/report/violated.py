"""What a report tells first: what is violated, and the turns of those sessions."""

from collections.abc import Iterable

from sim.invariants.violation import Violation
from sim.ledger import Ledger, TurnRecord

MOST_MESSAGES = 6
"""That are told of each invariant that is violated."""


def turns_to_tell(ledger: Ledger, violations: Iterable[Violation], most: int) -> list[tuple[int, TurnRecord]]:
    """(session, turn) in their order. Of more than `most`, those of sessions in violation come first."""
    turns = ledger.turns()
    named = {violation.session for violation in violations}
    return turns if len(turns) <= most else sorted(turns, key=lambda turn: turn[0] not in named)[:most]


def messages_of(violations: Iterable[Violation]) -> dict[str, list[str]]:
    """The first messages of each invariant that is violated, by its number."""
    messages: dict[str, list[str]] = {}
    for violation in violations:
        of_invariant = messages.setdefault(violation.invariant, [])
        if len(of_invariant) < MOST_MESSAGES:
            of_invariant.append(violation.message)
    return messages
