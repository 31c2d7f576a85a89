"""Tasks, futures and async generators that are met in the same order in every process.

A set iterates in order of hashes, and asyncio's objects hash by address. The loop's own hash by number instead. What
the loop did not make, `asyncio.Future()` or what `gather` returns, still hashes by address.
"""

import asyncio
import weakref
from types import CodeType
from typing import Any


class _Numbered:
    """Hashes by a number that the loop hands out at the first hash."""

    __slots__ = ()

    def __hash__(self: Any) -> int:
        try:
            return self._number  # type: ignore[no-any-return]
        except AttributeError:
            self._number = number = next(self.get_loop().numbers)
            return number  # type: ignore[no-any-return]


class Task(_Numbered, asyncio.Task[Any]):
    """asyncio's task, numbered."""

    __slots__ = ("_number",)


class Future(_Numbered, asyncio.Future[Any]):
    """asyncio's future, numbered."""

    __slots__ = ("_number", "maker")
    maker: str | CodeType
    """Who made it, for reports: text, or the code of the function."""


class OrderedWeakSet(weakref.WeakKeyDictionary[Any, None]):
    """As much of a WeakSet as asyncio uses for async generators, but in order of insertion."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)
