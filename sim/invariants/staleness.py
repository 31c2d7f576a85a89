"""Staleness invariants: which weights computed what a token rests on."""

from collections.abc import Iterator

from sim.case import Case
from sim.faults import WeightUpdate
from sim.invariants.alignment import delivered_runs
from sim.invariants.interface import Evidence, Invariant
from sim.invariants.violation import Severity, Violation
from sim.ledger import TurnRecord
from sim.tokens import first_token


def check_no_stale_kv(evidence: Evidence) -> Iterator[Violation]:
    """Whether anybody used KV that older weights had computed: tokens that rest on it were drawn by no weights that
    ever were. A block outlives its weights where somebody uses it after the update: a request that runs on, or one that
    finds it in the prefix cache. Where the case has its updates keep the cache, that is its setting's doing: a warning
    that names it."""
    setting = _setting_that_keeps(evidence.case)
    severity: Severity = "warning" if setting else "violation"
    for update in evidence.stale_updates:
        yield Violation(
            "S2",
            f"replica {update.replica} went to weight version {update.version} while {update.stale_requests} of its "
            f"requests keep KV of older weights{setting}",
            severity=severity,
            about="running requests",
        )
    for attempt in evidence.ledger.attempts:
        prefilled = attempt.prefilled
        if prefilled is not None and prefilled.stale_tokens:
            yield Violation(
                "S2",
                f"request {prefilled.request} (session {attempt.sent.session}) took {prefilled.stale_tokens} "
                f"tokens from the prefix cache of replica {attempt.sent.replica} that older weights had "
                f"computed{setting}",
                attempt.sent.session,
                severity=severity,
                about="prefix cache",
            )


def _setting_that_keeps(case: Case) -> str:
    """Which of a case's updates keeps KV over new weights, in words; empty where none does."""
    for number, fault in enumerate(case.faults):
        if isinstance(fault, WeightUpdate) and not fault.reset_prefix_cache:
            return f", as the case has it: faults[{number}].reset_prefix_cache is false"
    return ""


def check_version_tags(evidence: Evidence) -> Iterator[Violation]:
    """Whether the oldest and the newest weight version that a turn names are those of the tokens that it returned:
    whoever corrects for staleness, or drops what is too old, goes by them. Judged where tags are named.

    An answer names one version, that at its end: of tokens that one request decoded under several, or that was frozen
    behind its last one, a client cannot know. So it is not judged where an update of the case goes by without an abort.
    """
    if any(isinstance(fault, WeightUpdate) and fault.pause_mode != "abort" for fault in evidence.case.faults):
        return
    for session, turn in evidence.ledger.turns():
        ended = turn.ended
        if ended is None or ended.outcome != "ok" or (ended.min_version is None and ended.max_version is None):
            continue
        true = _versions(session, turn)
        if true is None:
            continue
        oldest, newest = true
        wrong = []
        if ended.min_version is not None and ended.min_version != oldest:
            wrong.append(f"names {ended.min_version} as the oldest weight version, and it is {oldest}")
        if ended.max_version is not None and ended.max_version != newest:
            wrong.append(f"names {ended.max_version} as the newest weight version, and it is {newest}")
        if wrong:
            where = f"session {session} turn {turn.started.turn}"
            yield Violation(
                "S1", f"{where} returned {sum([n for _, n in ended.ids])} tokens and {'; '.join(wrong)}", session
            )


def _versions(session: int, turn: TurnRecord) -> tuple[int, int] | None:
    """The oldest and the newest version of the tokens that a turn returned; None where it returned none, or others than
    were delivered once, which is told elsewhere."""
    assert turn.ended is not None
    if len(turn.ended.ids) != 1:
        return None
    start = turn.ended.ids[0][0] - first_token(session)
    end = start + turn.ended.ids[0][1]
    every, position = set(), start
    for run in delivered_runs(turn):
        if run.position >= end:
            break
        if run.position != position:
            return None
        position += run.tokens
        every.add(run.version)
    if position < end or not every:
        return None
    return min(every), max(every)


INVARIANTS = (
    Invariant(
        "S1",
        "staleness",
        "The weight versions that a response names as its oldest and newest are those of its tokens.",
        check_version_tags,
    ),
    Invariant("S2", "staleness", "No KV block outlives the weights it was computed with.", check_no_stale_kv),
)
