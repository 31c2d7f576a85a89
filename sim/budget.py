"""The budget of a turn: what one call of generate may use, by its caller's limit, the client's config, and policies."""

from typing import NamedTuple

from msgspec import UNSET

from sim.case import Case, explicit_limit
from sim.ledger import Attempt, Ledger, TurnRecord
from sim.policies import Policies


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


def turn_budget_tokens(case: Case, session: int, policies: Policies) -> int | None:
    """The budget of one call of generate: the caller's limit, else response_length as the client's config shows it.

    None where neither is a positive integer: then there is nothing to hold the client to.
    """
    limit, configured = explicit_limit(case, session), case.budget.client_response_length
    budget = configured if limit is None else limit.tokens
    if limit is not None and policies.explicit_limit == "capped" and type(configured) is int and configured > 0:
        budget = min(limit.tokens, configured)
    return budget if type(budget) is int and budget > 0 else None


class Allowance(NamedTuple):
    """A budget, and what of it was used when a turn began."""

    budget_tokens: int
    used_tokens: int

    @property
    def left_tokens(self) -> int:
        return self.budget_tokens - self.used_tokens


def allowance(case: Case, ledger: Ledger, session: int, turn: TurnRecord, policies: Policies) -> Allowance | None:
    """What a turn may use; None where there is nothing to hold it to."""
    budget = turn_budget_tokens(case, session, policies)
    if budget is None:
        return None
    turns = ledger.sessions[session].turns
    since_first_prompt = turn.started.prompt_tokens - turns[0].started.prompt_tokens
    match policies.budget:
        case "turn":
            return Allowance(budget, 0)
        case "trajectory":
            return Allowance(budget, since_first_prompt)
        case "trajectory-assistant":
            return Allowance(budget, sum([returned_tokens(each) for each in turns[: turn.started.turn]]))
    whole = case.budget.client_response_length
    if type(whole) is int and 0 < whole < budget + since_first_prompt:
        return Allowance(whole, since_first_prompt)
    return Allowance(budget, 0)


def charged_tokens(turn: TurnRecord, policies: Policies) -> int:
    """What a turn is charged: all that it decoded, but for what a failed call took with it, which is decoded once more.
    Where it rightly keeps one answer of several, how far any of them came from the prompt's end."""
    if not policies.keeps_one_answer:
        return turn.decoded_tokens - turn.lost_tokens
    return max(
        [generated_before_tokens(turn, each) + each.decoded_tokens for each in turn.attempts if each.lost is None],
        default=0,
    )


def returned_tokens(turn: TurnRecord) -> int:
    """Tokens that the client returned for a turn."""
    return 0 if turn.ended is None else sum(count for _, count in turn.ended.ids)


def generated_before_tokens(turn: TurnRecord, attempt: Attempt) -> int:
    """Tokens of the response that an attempt's prompt already holds."""
    return attempt.sent.prompt_tokens - turn.started.prompt_tokens
