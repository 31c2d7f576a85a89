"""Whether a call fits the method that it is for, told at once and in the caller's terms, as Ray's handles do."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from sim.events import without_addresses

_SPELLED_CHARS = 60


class Signature:
    """What a method takes. Calls are known by number and names of their arguments: each kind is worked out once.

    `num_given`: how many of its first arguments the caller does not give.
    """

    def __init__(self, what: str, function: Callable[..., Any], num_given: int) -> None:
        self._what = what
        self._signature: inspect.Signature | None = None
        with suppress(TypeError, ValueError):  # it does not show what it takes
            signature = inspect.signature(function)
            self._signature = signature.replace(parameters=[*signature.parameters.values()][num_given:])
        self._known: set[tuple[int, tuple[str, ...]]] = set()

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises TypeError that has the call and what is wrong with it."""
        kind = len(args), tuple(kwargs)
        if kind in self._known or self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            taken = ", ".join(str(each.replace(annotation=each.empty)) for each in self._signature.parameters.values())
            call = f"{self._what}.remote({_spelled_arguments(args, kwargs)})"
            raise TypeError(f"{call}: {error}; it takes ({taken})") from None
        self._known.add(kind)


def signature_of(what: str, method: Callable[..., Any], num_given: int = 0) -> Signature:
    """The signature of a bound method or a function; one for all worlds, where it is a method of a class."""
    function = getattr(method, "__func__", None)
    return Signature(what, method, num_given) if function is None else _of_class(what, function, num_given + 1)


@lru_cache(maxsize=256)
def _of_class(what: str, function: Callable[..., Any], num_given: int) -> Signature:
    return Signature(what, function, num_given)


def _spelled_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments of a call as they are written, the long ones cut."""
    values = [without_addresses(repr(value)) for value in (*args, *kwargs.values())]
    cut = [text if len(text) <= _SPELLED_CHARS else f"{text[:_SPELLED_CHARS]}…" for text in values]
    names = [""] * len(args) + [f"{name}=" for name in kwargs]
    return ", ".join(f"{name}{text}" for name, text in zip(names, cut, strict=True))
