"""The limit that a server assumes for a request that sets none: each formula once, for servers, reports and NumPy."""

from dataclasses import dataclass
from typing import Any, Protocol


class LengthSettings(Protocol):
    """The length settings that a server works with, in tokens."""

    @property
    def prompt_length(self) -> int: ...

    @property
    def response_length(self) -> int: ...

    @property
    def context_tokens(self) -> int: ...


class DefaultLimit(Protocol):
    """A formula for a limit, in tokens."""

    def terms(self, lengths: LengthSettings, prompt_tokens: Any) -> tuple[Any, ...]:
        """The least of these is the limit. `prompt_tokens`: an integer, or a NumPy array of them."""

    def spelled(self, lengths: LengthSettings, prompt_tokens: int) -> str:
        """The formula with its figures in it."""


@dataclass(frozen=True)
class PromptAllowance:
    """The response's length, or what the lengths of prompt and response leave together if that is less.

    It is right for a first attempt. On a resume the prompt holds the tokens generated so far, which it charges to the
    unused prompt allowance: verl PR 7207.
    """

    def terms(self, lengths: LengthSettings, prompt_tokens: Any) -> tuple[Any, ...]:
        return lengths.response_length, lengths.prompt_length + lengths.response_length - prompt_tokens

    def spelled(self, lengths: LengthSettings, prompt_tokens: int) -> str:
        response, rest = self.terms(lengths, prompt_tokens)
        return f"min({response}, {lengths.prompt_length} + {response} − {prompt_tokens} = {rest})"


@dataclass(frozen=True)
class Room:
    """Whatever fits behind the prompt."""

    def terms(self, lengths: LengthSettings, prompt_tokens: Any) -> tuple[Any, ...]:
        return (lengths.context_tokens - prompt_tokens,)

    def spelled(self, lengths: LengthSettings, prompt_tokens: int) -> str:
        (room,) = self.terms(lengths, prompt_tokens)
        return f"{lengths.context_tokens} − {prompt_tokens} = {room}"


@dataclass(frozen=True)
class FixedLimit:
    """The same for every request."""

    tokens: int

    def terms(self, lengths: LengthSettings, prompt_tokens: Any) -> tuple[Any, ...]:
        del lengths, prompt_tokens
        return (self.tokens,)

    def spelled(self, lengths: LengthSettings, prompt_tokens: int) -> str:
        del lengths, prompt_tokens
        return str(self.tokens)
