"""Ray-like handles: what a client or a trainer holds of a server or of the balancer."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Self

Send = Callable[..., "asyncio.Future[Any]"]
"""Sends a call with whatever arguments; its future brings what the callee returns or raises."""


class RemoteMethod(NamedTuple):
    """`remote(...)` sends the call."""

    remote: Send
    name: str

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """As a method of a Ray actor, it cannot be called itself."""
        raise TypeError(f"{self.name} is a method of a handle: call {self.name}.remote(…)")

    def __await__(self) -> NoReturn:
        self()


class Handle:
    """Attribute access gives remote methods, as a Ray actor handle does.

    As with Ray, a method that the callee does not have is an AttributeError at once, and arguments that do not fit a
    TypeError where the call is made: both are the caller's fault. It has no public name of its own, so that a callee
    may have methods of any name; a copy of it is itself.
    """

    def __init__(self, what: str, callee: Any, sender: Callable[[str], Send]) -> None:
        self._what = what
        self._callee = callee
        self._sender = sender

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("__"):
            raise AttributeError(name)
        callee = self._callee
        if not callable(getattr(callee, name, None)):
            has = ", ".join(each for each in dir(callee) if each[0] != "_" and callable(getattr(callee, each, None)))
            raise AttributeError(f"{self._what}.{name}: the {self._what} has no such method; it has {has}")
        method = RemoteMethod(self._sender(name), f"{self._what}.{name}")
        self.__dict__[name] = method
        return method

    def __deepcopy__(self, memo: Any) -> Self:
        return self
