"""The budget of a turn: what one call of generate may use, by its caller's limit and the client's config."""

from msgspec import UNSET

from sim.case import Case, explicit_limit
from sim.ledger import Attempt, Ledger, TurnRecord


def usable(response_length: object) -> bool:
    """Whether a response_length from a config is one that a client can hold itself to."""
    return type(response_length) is int and response_length > 0


def spelled_config(response_length: object) -> str:
    """A response_length of a config, as a reader knows it."""
    return "missing" if response_length is UNSET else repr(response_length)


def odd_config(case: Case) -> str:
    """What is odd on purpose in the config that the client of this world is given; empty where nothing is."""
    configured = case.budget.client_response_length
    if usable(configured):
        return ""
    if configured is UNSET:
        return "this world's config lacks response_length, on purpose"
    return f"this world's config has response_length {configured!r}, on purpose"


def turn_budget_tokens(case: Case, session: int) -> int | None:
    """The budget of one call of generate: the caller's limit, else response_length as the client's config shows it.

    None where neither is a positive integer: then there is nothing to hold the client to.
    """
    limit = explicit_limit(case, session)
    budget = case.budget.client_response_length if limit is None else limit.tokens
    return budget if type(budget) is int and budget > 0 else None


def used_before_tokens(case: Case, ledger: Ledger, session: int, turn: TurnRecord) -> int:
    """What is charged to the budget when `turn` begins: nothing, or under policy trajectory all since the prompt."""
    if case.budget.policy == "turn":
        return 0
    return turn.started.prompt_tokens - ledger.sessions[session].turns[0].started.prompt_tokens


def returned_tokens(turn: TurnRecord) -> int:
    """Tokens that the client returned for a turn."""
    return 0 if turn.ended is None else sum(count for _, count in turn.ended.ids)


def generated_before_tokens(turn: TurnRecord, attempt: Attempt) -> int:
    """Tokens of the response that an attempt's prompt already holds."""
    return attempt.sent.prompt_tokens - turn.started.prompt_tokens
