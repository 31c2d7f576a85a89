"""What a run came to, in the figures that a real and a simulated run must share, and the first in which they differ."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_checks.points import AnswerFigures, RequestKey
from sim.case import Case
from sim.events import FaultFired
from sim.invariants.judging import judge
from sim.ledger import Attempt, TurnRecord
from sim.trace import Trace

Figures = dict[str, Any]
"""By a readable path, in the order in which a person would look at them."""


def figures(case: Case, trace: Trace, answers: Mapping[RequestKey, AnswerFigures]) -> Figures:
    """Grants, attempts, totals, reasons, version tags, routes, faults and verdicts; no times and no tokens."""
    return dict(_figures(case, trace, answers))


def _figures(case: Case, trace: Trace, answers: Mapping[RequestKey, AnswerFigures]) -> Iterator[tuple[str, Any]]:
    for index, session in trace.ledger.sessions.items():
        for turn in session.turns:
            where = f"session {index} turn {turn.started.turn}"
            yield f"{where}: prompt tokens", turn.started.prompt_tokens
            for attempt in turn.attempts:
                yield from _of_attempt(f"{where} attempt {attempt.sent.attempt}", attempt, answers)
            yield f"{where}: attempts", len(turn.attempts)
            yield from _of_turn(where, turn)
        ended = session.ended
        yield f"session {index}: turns", len(session.turns)
        yield f"session {index}: outcome", None if ended is None else ended.outcome
        yield f"session {index}: response tokens", None if ended is None else ended.response_tokens
        yield f"session {index}: kept tokens", None if ended is None else ended.kept_tokens
    for event in trace.events:
        if isinstance(event, FaultFired):
            yield f"fault {event.fault} ({event.kind})", event.note or "fired"
    yield "the run ended", getattr(trace.events[-1], "reason", None)
    yield "verdicts", verdicts(case, trace)


def _of_attempt(where: str, attempt: Attempt, answers: Mapping[RequestKey, AnswerFigures]) -> Iterator[tuple[str, Any]]:
    sent, grant = attempt.sent, attempt.grant
    yield f"{where}: replica", sent.replica
    yield f"{where}: prompt tokens", sent.prompt_tokens
    yield f"{where}: limits sent", sent.limits
    yield f"{where}: grant", None if grant is None else grant.tokens
    if grant is not None:
        yield f"{where}: grant's rule", (grant.rule, grant.wanted_tokens, grant.room_tokens)
    yield f"{where}: how it ended", [ended.outcome for ended in attempt.ended]
    yield f"{where}: tokens decoded", attempt.decoded_tokens
    yield f"{where}: tokens in its end", [ended.tokens for ended in attempt.ended]
    yield f"{where}: tokens by weight version", _by_version(attempt)
    yield f"{where}: answer", answers.get((sent.session, sent.turn, sent.attempt))
    yield f"{where}: tokens delivered", None if attempt.delivered is None else attempt.delivered.tokens
    yield f"{where}: tokens discarded", None if attempt.discarded is None else attempt.discarded.tokens


def _by_version(attempt: Attempt) -> dict[int, int]:
    totals: dict[int, int] = {}
    for run in attempt.runs:
        totals[run.version] = totals.get(run.version, 0) + run.tokens
    return totals


def _of_turn(where: str, turn: TurnRecord) -> Iterator[tuple[str, Any]]:
    ended = turn.ended
    yield f"{where}: outcome", None if ended is None else ended.outcome
    if ended is None:
        return
    yield f"{where}: error", None if ended.error is None else ended.error.partition(":")[0]
    yield f"{where}: tokens returned", ended.ids
    yield f"{where}: stop reason", ended.stop_reason
    yield f"{where}: weight versions", (ended.min_version, ended.max_version)
    yield f"{where}: caller's params", ended.params_changed


def verdicts(case: Case, trace: Trace) -> list[str]:
    """The invariants that are violated, each once."""
    return list(dict.fromkeys(violation.invariant for violation in judge(case, trace)))


def first_difference(real: Figures, simulated: Figures) -> str | None:
    """The first figure that differs, in words; None where all are equal."""
    for path in [*real, *(path for path in simulated if path not in real)]:
        on_vllm, in_simulation = real.get(path, "nothing"), simulated.get(path, "nothing")
        if on_vllm != in_simulation:
            return f"{path}: {_shown(on_vllm)} on vLLM, {_shown(in_simulation)} simulated"
    return None


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
