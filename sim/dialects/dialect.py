"""What a kind of server does with requests, in one record: grants, refusals, how they end, what a pause does."""

import operator
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sim.dialects.defaults import DefaultLimit, LengthSettings
from sim.registry import blame

Outcome = Literal["stop", "length", "abort", "refused", "error", "ill-formed"]
"""How a request ends. `refused`: turned away at the gate; `error`: the call raised; `ill-formed`: it raised over a
request that no server could take, which is the client's doing."""


class Grant(NamedTuple):
    """What a server settled on. `rule`: the key that set it, or `default`; `wanted_tokens`: before the clamp."""

    tokens: int
    rule: str
    wanted_tokens: int
    room_tokens: int


class Refused(ValueError):
    """A request that the server does not take; verl's servers raise ValueError."""


class IllFormed(Refused, TypeError):
    """What is sent is no request: an empty prompt, ids or a limit that are no integers."""


class NoRoom(Refused):
    """The prompt leaves no room to generate."""


@dataclass(frozen=True)
class Dialect:
    """A kind of server. Cases name it by `name`; lengths are in tokens.

    The grant: `limit_keys` are the spellings of a limit in the order in which they are looked for; without any, limits
    are ignored and `default` holds. `reserved_tokens` of the context are kept back. What is wanted is clamped to
    [`least_grant`, room].

    Refusals: a room below `least_room` (None: never); an explicit limit below `least_limit` (None: it is clamped), or
    one that exceeds what the context holds beside the prompt, where `refuses_beyond_context`. `unknown_keys` are
    spellings that raise TypeError where they are left in the params. `null_is_no_limit`: a limit of null asks for the
    room; or else it is an error.

    `stop_reasons`: what the client is told for the way in which its request ended.

    The gate: with `has_gate`, requests that arrive between a pause and its resume wait before the engine (in it, where
    there is none), or are turned away where the trainer says so and the server `can_reject`. A pause first waits for
    what has passed the gate (`pause_waits_for`): for `nothing`, until it is `admitted` to the engine, or until its
    `first token` is there. `can_pause_without_abort`: it has vLLM's pause modes `wait` and `keep`.
    """

    name: str
    limit_keys: tuple[str, ...]
    default: DefaultLimit
    stop_reasons: Mapping[Outcome, str | None]
    reserved_tokens: int = 0
    least_grant: int = 0
    least_room: int | None = None
    least_limit: int | None = None
    refuses_beyond_context: bool = False
    unknown_keys: tuple[str, ...] = ()
    null_is_no_limit: bool = False
    has_gate: bool = True
    can_reject: bool = False
    pause_waits_for: Literal["nothing", "admitted", "first token"] = "admitted"
    can_pause_without_abort: bool = False

    @property
    def ends(self) -> tuple[Outcome, ...]:
        """How a request may end of which its client is told."""
        return ("stop", "length", "abort", "refused") if self.can_reject else ("stop", "length", "abort")

    def room_tokens(self, lengths: LengthSettings, prompt_tokens: int) -> int:
        """Tokens that fit behind a prompt; negative when the prompt alone is too long."""
        return lengths.context_tokens - prompt_tokens - self.reserved_tokens

    def take_grant(self, lengths: LengthSettings, prompt_tokens: int, params: MutableMapping[str, Any]) -> Grant:
        """The grant for one request. The limit that was used is taken out of `params`, as verl's servers do.

        Raises `Refused` for a request that the server does not take, `IllFormed` for a limit that is no integer, and
        TypeError for a spelling that it does not know.
        """
        context_tokens = lengths.context_tokens
        room = context_tokens - prompt_tokens - self.reserved_tokens
        if self.least_room is not None and room < self.least_room:
            raise NoRoom(
                f"a prompt of {prompt_tokens} tokens leaves no room to generate in a context of {context_tokens} tokens"
            )
        rule, wanted = "default", 0
        for key in self.limit_keys:
            if key in params:
                rule, limit = key, params.pop(key)
                if limit is None and self.null_is_no_limit:
                    wanted = room
                else:
                    wanted = _whole(key, limit)
                    self._check_limit(key, wanted, prompt_tokens, context_tokens)
                break
        if rule == "default":
            wanted = self.default_tokens(lengths, prompt_tokens)
        for key in self.unknown_keys:
            if key in params:
                raise TypeError(f"SamplingParams got an unexpected keyword argument {key!r}")
        return Grant(max(self.least_grant, min(wanted, room)), rule, wanted, room)

    def default_tokens(self, lengths: LengthSettings, prompt_tokens: int) -> int:
        """The limit of a request that sets none."""
        try:
            return operator.index(min(self.default.terms(lengths, prompt_tokens)))
        except Exception as error:
            blame(error, self.default, f"dialect {self.name!r}, default.terms,")

    def spelled_default(self, lengths: LengthSettings, prompt_tokens: int) -> str:
        """How it comes about."""
        try:
            return self.default.spelled(lengths, prompt_tokens)
        except Exception as error:
            blame(error, self.default, f"dialect {self.name!r}, default.spelled,")

    def _check_limit(self, key: str, limit: int, prompt_tokens: int, context_tokens: int) -> None:
        if self.least_limit is not None and limit < self.least_limit:
            raise Refused(f"{key} is {limit}; it must be at least {self.least_limit}")
        if self.refuses_beyond_context and prompt_tokens + limit > context_tokens:
            raise Refused(
                f"{prompt_tokens} tokens of prompt and {key} {limit} exceed the context of {context_tokens} tokens"
            )


def _whole(key: str, limit: Any) -> int:
    """A limit as an int. verl's servers let a float pass, and their engines fail on it; None fails at the clamp."""
    try:
        return operator.index(limit)
    except TypeError:
        raise IllFormed(f"{key} must be an integer, not {limit!r}") from None
