"""An awaitable of which it is known whether it waits."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any


class Noticed:
    """Awaits `of`, and calls `waits` when that first lets others run; never where it is done in one go."""

    def __init__(self, of: Awaitable[Any], waits: Callable[[], None]) -> None:
        self._of = of
        self._waits = waits

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._of.__await__()
        try:
            waits_for = next(steps)
            self._waits()
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:
                    waits_for = steps.throw(error)
                else:
                    waits_for = steps.send(sent)
        except StopIteration as done:
            return done.value
