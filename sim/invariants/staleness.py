"""Staleness invariants: which weights computed what a token rests on."""

from collections.abc import Iterator

from sim.invariants.interface import Evidence, Invariant
from sim.invariants.violation import Violation


def check_no_stale_kv(evidence: Evidence) -> Iterator[Violation]:
    """Whether anybody used KV that older weights had computed: tokens that rest on it were drawn by no weights that
    ever were. A block outlives its weights where somebody uses it after the update: a request that runs on, or one that
    finds it in the prefix cache."""
    for update in evidence.stale_updates:
        yield Violation(
            "S2",
            f"replica {update.replica} went to weight version {update.version} while {update.stale_requests} of its "
            f"requests keep KV of older weights",
            about="running requests",
        )
    for attempt in evidence.ledger.attempts:
        prefilled = attempt.prefilled
        if prefilled is not None and prefilled.stale_tokens:
            yield Violation(
                "S2",
                f"request {prefilled.request} (session {attempt.sent.session}) took {prefilled.stale_tokens} "
                f"tokens from the prefix cache of replica {attempt.sent.replica} that older weights had computed",
                attempt.sent.session,
                about="prefix cache",
            )


INVARIANTS = (
    Invariant("S2", "staleness", "No KV block outlives the weights it was computed with.", check_no_stale_kv),
)
