"""Alignment invariants: what is sent and returned, token for token.

The fake model makes that plain: an id says whose token it is and at which position, a log probability at which position
and under which weight version (`sim.tokens`).
"""

from collections.abc import Iterator, Sequence

from sim.invariants.interface import Evidence, Invariant
from sim.invariants.violation import Violation
from sim.ledger import Attempt, DecodedRun, TurnRecord
from sim.tokens import Ids, LogProbRuns, as_told, first_token

_MOST_RUNS_SPELLED = 4
_NO_VALUE = ("None", "nan")
"""How a log probability that nobody gave may be marked."""


def delivered_runs(turn: TurnRecord) -> list[DecodedRun]:
    """What the servers' answers brought a turn, in the order in which they were asked for."""
    return [run for attempt in turn.attempts if attempt.delivered is not None for run in attempt.runs]


def check_resumes(evidence: Evidence) -> Iterator[Violation]:
    """Whether each request's prompt is the turn's prompt and what was delivered since: from any other the model goes on
    with another text than the one that is returned and trained on. Told of a turn once. A second request for
    what is asked for already may ask the same."""
    for session, turn in evidence.ledger.turns():
        asked = turn.started.prompt
        if asked is None:
            continue
        origin = first_token(session)
        for number, attempt in enumerate(turn.attempts):
            sent = attempt.sent.prompt
            if sent is None or (sent == asked and not number):
                continue
            earlier = turn.attempts[:number]
            right = _goes_on(asked, origin, attempt, earlier)
            if sent == right or (attempt.beside and any(sent == other.sent.prompt for other in earlier)):
                continue
            if evidence.policies.keeps_one_answer and sent in _go_on_from_one(asked, origin, attempt, earlier):
                continue
            what = f"the prompt {_spelled_ids(sent, origin)}" if sent else "an empty prompt"
            if not sent and attempt.sent.prompt_tokens:
                what = f"a prompt of {attempt.sent.prompt_tokens} ids that are no integers"
            yield Violation(
                "L3",
                f"session {session} turn {turn.started.turn} attempt {attempt.sent.attempt} sent {what}; the turn's "
                f"prompt and what was delivered by then are {_spelled_ids(right, origin)}",
                session,
            )
            break


def _goes_on(prompt: Ids, origin: int, attempt: Attempt, earlier: Sequence[Attempt]) -> Ids:
    """A turn's prompt and what was delivered before an attempt was sent."""
    prompt_and_answers = prompt
    for each in _answered_before(attempt, earlier):
        prompt_and_answers = _behind(prompt_and_answers, origin, each)
    return prompt_and_answers


def _go_on_from_one(prompt: Ids, origin: int, attempt: Attempt, earlier: Sequence[Attempt]) -> set[Ids]:
    """The prompts from which a turn goes on that may drop answers, or begin anew: its own, and any that was asked with
    and answered since, with its answer."""
    right = {prompt}
    for each in _answered_before(attempt, earlier):
        if each.sent.prompt in right:
            right.add(_behind(each.sent.prompt, origin, each))
    return right


def _answered_before(attempt: Attempt, earlier: Sequence[Attempt]) -> Iterator[Attempt]:
    return (each for each in earlier if each.delivered is not None and each.delivered.t_ns <= attempt.sent.t_ns)


def _behind(prompt: Ids, origin: int, attempt: Attempt) -> Ids:
    """A prompt with an attempt's answer behind it."""
    runs = list(prompt)
    for position, tokens, _ in attempt.runs:
        first = origin + position
        if runs and sum(runs[-1]) == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + tokens)
        else:
            runs.append((first, tokens))
    return tuple(runs)


def check_content(evidence: Evidence) -> Iterator[Violation]:
    """Whether the ids that a turn returned count on from its prompt's end, and each log probability is that of its
    token: the model is trained on the one with the other. A client that returns no log probabilities at all is not
    judged by them. Those that a server did not give are to be marked (None, NaN), or refused: 0.0 is a probability."""
    for session, turn in evidence.ledger.turns():
        ended = turn.ended
        if ended is None or ended.outcome != "ok" or not ended.ids:
            continue
        where = f"session {session} turn {turn.started.turn}"
        origin, end = first_token(session), turn.started.prompt_tokens
        if len(ended.ids) > 1 or ended.ids[0][0] != origin + end:
            yield Violation(
                "L1",
                f"{where} returned the tokens {_spelled_ids(ended.ids, origin)}; behind a prompt of {end} tokens each "
                f"position from {end} on is due, once",
                session,
            )
        elif ended.log_probs is not None:
            wrong = _wrong_log_probs(turn, end, ended.ids[0][1], ended.log_probs)
            if wrong:
                yield Violation("L1", f"{where} {wrong}", session)


def _wrong_log_probs(turn: TurnRecord, start: int, tokens: int, log_probs: LogProbRuns) -> str:
    """What is wrong with the log probabilities of so many tokens at positions from `start` on; empty where nothing."""
    given = {each.delivered.log_probs for each in turn.attempts if each.delivered is not None and each.runs}
    returned = sum([run[1] for run in log_probs])
    if not returned and False in given:
        return ""  # none for some, none for all
    if returned != tokens:
        return f"returned {tokens} tokens and {returned} log probabilities"
    if None in given:
        return ""
    position = start
    for run in log_probs:
        if len(run) == 2:
            text, count = run
            if False not in given or text not in _NO_VALUE:
                places = f"position {position}" if count == 1 else f"positions {position}..{position + count - 1}"
                return f"returned {text} as the log probability of {places}"
        else:
            count = run[1]
            foreign = _first_foreign(turn, position, run)
            if foreign is not None:
                found = run[0] + foreign - position
                return (
                    f"returned for position {foreign} the log probability of position {found} under weight version "
                    f"{run[2]}; the token was decoded under {_spelled_versions(turn, foreign)}"
                )
        position += count
    return ""


def _first_foreign(turn: TurnRecord, position: int, told: tuple[int, int, int]) -> int | None:
    """The first position, of those from `position` on, whose token another log probability belongs to than is told."""
    first, count, version = told
    at = position
    while at < position + count:
        until = next(
            (
                run.position + run.tokens
                for run in delivered_runs(turn)
                if run.position <= at < run.position + run.tokens
                and as_told((at, 1, run.version)) == (first + at - position, 1, version)
            ),
            None,
        )
        if until is None:
            return at
        at = until
    return None


def _spelled_versions(turn: TurnRecord, position: int) -> str:
    versions = {run.version for run in delivered_runs(turn) if run.position <= position < run.position + run.tokens}
    return f"weight version {', '.join(map(str, sorted(versions)))}" if versions else "none that was delivered"


def _spelled_ids(ids: Ids, origin: int) -> str:
    """Ids as the positions that they stand for: `4..6, 4..8 (8 tokens)`."""
    places = [f"{first - origin}..{first - origin + count - 1}" for first, count in ids[:_MOST_RUNS_SPELLED]]
    more = ["…"] if len(ids) > _MOST_RUNS_SPELLED else []
    return f"{', '.join(places + more)} ({sum([count for _, count in ids])} tokens)"


INVARIANTS = (
    Invariant(
        "L1",
        "alignment",
        "Returned ids are consecutive from the prompt's end, none twice, none missing, and log probability i belongs "
        "to token i: its position and its weight version.",
        check_content,
    ),
    Invariant(
        "L3",
        "alignment",
        "A resume's prompt is the turn's prompt plus what was delivered so far.",
        check_resumes,
    ),
)
