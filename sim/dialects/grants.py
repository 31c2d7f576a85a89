"""How a rollout server turns a request into a grant: its max_tokens.

Written from the behaviour of verl's three servers, equal in 0.8.0, 0.9.0 and 0.9.1: `vLLMHttpServer.generate`,
`SGLangHttpServer.generate`, `TRTLLMHttpServer.generate`. The rules stand here and nowhere else.
"""

import operator
from collections.abc import MutableMapping
from typing import Any, NamedTuple

from sim.case import Budget, Dialect


class Rules(NamedTuple):
    """One server's arithmetic.

    `limit_keys`: the spellings of a limit, in the order in which they are looked for; none: limits are ignored.
    `reserved_tokens`: context kept back. The grant is clamped to [`least_grant`, room]. A room below
    `least_room` is refused with an error; None: never.
    """

    limit_keys: tuple[str, ...]
    reserved_tokens: int
    least_grant: int
    least_room: int | None


RULES: dict[Dialect, Rules] = {
    "vllm": Rules(("max_tokens", "max_new_tokens"), reserved_tokens=0, least_grant=1, least_room=1),
    "sglang": Rules(("max_new_tokens", "max_tokens"), reserved_tokens=1, least_grant=0, least_room=0),
    "trtllm": Rules((), reserved_tokens=0, least_grant=0, least_room=None),
}


class Grant(NamedTuple):
    """What a server settled on. `rule`: the key that set it, or `default`; `wanted_tokens`: before the clamp."""

    tokens: int
    rule: str
    wanted_tokens: int
    room_tokens: int


class NoRoom(ValueError):
    """The prompt leaves no room to generate; verl's servers raise ValueError."""


def room_tokens(dialect: Dialect, budget: Budget, prompt_tokens: int) -> int:
    """Tokens that fit behind a prompt; negative when the prompt alone is too long."""
    return budget.context_tokens - prompt_tokens - RULES[dialect].reserved_tokens


def default_tokens(budget: Budget, prompt_tokens: int) -> int:
    """The limit that a server assumes when the client sets none.

    It is right for a first attempt. On a resume `prompt_tokens` holds the tokens generated so far, which it charges
    to the unused prompt allowance: verl PR 7207.
    """
    return min(budget.response_length, budget.prompt_length + budget.response_length - prompt_tokens)


def take_grant(dialect: Dialect, budget: Budget, prompt_tokens: int, params: MutableMapping[str, Any]) -> Grant:
    """The grant for one request. The limit that was used is taken out of `params`, as verl's servers do.

    Raises `NoRoom` where the dialect refuses such a prompt, TypeError for a limit that is no integer.
    """
    rules = RULES[dialect]
    room = room_tokens(dialect, budget, prompt_tokens)
    if rules.least_room is not None and room < rules.least_room:
        raise NoRoom(
            f"a prompt of {prompt_tokens} tokens leaves no room to generate in a context of "
            f"{budget.context_tokens} tokens"
        )
    rule = next((key for key in rules.limit_keys if key in params), "default")
    wanted = default_tokens(budget, prompt_tokens) if rule == "default" else _whole(rule, params.pop(rule))
    return Grant(max(rules.least_grant, min(wanted, room)), rule, wanted, room)


def _whole(key: str, limit: Any) -> int:
    """A limit as an int. verl's servers let a float pass, and their engines fail on it; None fails at the clamp."""
    try:
        return operator.index(limit)
    except TypeError:
        raise TypeError(f"{key} must be an integer, not {limit!r}") from None
