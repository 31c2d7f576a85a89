"""Copies of messages, as a transport that serialises makes them."""

import copy
from typing import Any

from sim.tokens import LogProbs, TokenIds

_UNCHANGING = frozenset((int, str, float, bool, type(None), bytes, TokenIds, LogProbs))


def copied(message: Any) -> Any:
    """A deep copy of plain data; what is not plain data falls to `copy.deepcopy`."""
    kind = type(message)
    if kind in _UNCHANGING:
        return message
    if kind is list:
        if not message or type(message[0]) is int:
            # Prompts: long, and their ids are immutable.
            return message[:]
        return [copied(item) for item in message]
    if kind is dict:
        return {key: value if type(value) in _UNCHANGING else copied(value) for key, value in message.items()}
    if kind is tuple:
        return tuple([copied(item) for item in message])
    return copy.deepcopy(message)


def copied_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Copies of the positional arguments; the keywords, in a dict that this call alone has, are replaced by copies."""
    for key, value in kwargs.items():
        if type(value) not in _UNCHANGING:
            kwargs[key] = copied(value)
    return copied(args) if args else args
