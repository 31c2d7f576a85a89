"""Staleness invariants: which weights computed what a token rests on."""

from sim.case import Case
from sim.invariants.interface import Invariant, Violation
from sim.trace import Trace, VersionChanged


def check_no_stale_kv(case: Case, trace: Trace) -> list[Violation]:
    """S2. A block outlives its weights where somebody uses it after the update: a request that runs on, or one that
    finds it in the prefix cache."""
    del case
    violations = [
        Violation(
            "S2",
            f"replica {event.replica} went to weight version {event.version} while {event.stale_requests} of its "
            f"requests keep KV of older weights",
        )
        for event in trace.events
        if isinstance(event, VersionChanged) and event.stale_requests
    ]
    for attempt in trace.ledger.attempts:
        prefilled = attempt.prefilled
        if prefilled is not None and prefilled.stale_tokens:
            violations.append(
                Violation(
                    "S2",
                    f"request {prefilled.request} (session {attempt.sent.session}) took {prefilled.stale_tokens} "
                    f"tokens from the prefix cache of replica {attempt.sent.replica} that older weights had computed",
                    attempt.sent.session,
                )
            )
    return violations


INVARIANTS = (
    Invariant("S2", "staleness", "No KV block outlives the weights it was computed with.", check_no_stale_kv),
)
