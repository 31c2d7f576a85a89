"""How a call reaches a server or the balancer: Ray-like handles, copies or shared objects, delays.

`handle.method.remote(...)` returns a plain future that is fed by the callee's own task: cancelling the caller does
not cancel the call, as with a Ray actor. Arguments are copied as a serialising transport does, or shared as they are.
"""

import asyncio
import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

from sim.case import Transport
from sim.clock import NS_PER_S, VirtualLoop, to_ns
from sim.events import Acquired, Delivered, Discarded, Message, Sent, spelled, without_addresses
from sim.servers.server import FakeRolloutServer, TokenOutput
from sim.tokens import LogProbs, TokenIds
from sim.trace import Trace

LIMIT_KEYS = ("max_tokens", "max_new_tokens")


@dataclass(slots=True)
class TurnInProgress:
    """The call of generate on whose behalf code runs; carried by a context variable through any task it starts."""

    session: int
    turn: int
    attempts: int = 0


current_turn: ContextVar[TurnInProgress | None] = ContextVar("current_turn", default=None)


class SentListener(Protocol):
    """Who wants to know that a session has sent a request (the faults' triggers)."""

    def sent(self, session: int) -> None: ...


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


def _copied_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Copies of the positional arguments; the keywords, in a dict that this call alone has, are replaced by copies."""
    for key, value in kwargs.items():
        if type(value) not in _UNCHANGING:
            kwargs[key] = copied(value)
    return copied(args) if args else args


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> bool:
    """Feeds a caller's future; False where the caller is gone."""
    if future.done():
        return False
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
    return True


class _RemoteMethod:
    """`remote(...)` sends the call; the future that it returns brings what the callee returns or raises."""

    __slots__ = ("remote",)

    def __init__(self, remote: Callable[..., "asyncio.Future[Any]"]) -> None:
        self.remote = remote


_SPELLED_CHARS = 60


class _Fits:
    """Whether arguments fit a method: known by their number and names, so that it is worked out once for each kind."""

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


@lru_cache(maxsize=256)
def _fits(what: str, function: Callable[..., Any], num_given: int) -> _Fits:
    """One for all worlds. `num_given`: how many of its first arguments the caller does not give."""
    return _Fits(what, function, num_given)


def _fits_method(what: str, method: Callable[..., Any], num_given: int = 0) -> _Fits:
    function = getattr(method, "__func__", None)
    return _Fits(what, method, num_given) if function is None else _fits(what, function, num_given + 1)


def _spelled_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments of a call as they are written, the long ones cut."""
    values = [without_addresses(repr(value)) for value in (*args, *kwargs.values())]
    cut = [text if len(text) <= _SPELLED_CHARS else f"{text[:_SPELLED_CHARS]}…" for text in values]
    names = [""] * len(args) + [f"{name}=" for name in kwargs]
    return ", ".join(f"{name}{text}" for name, text in zip(names, cut, strict=True))


class _Handle(ABC):
    """Attribute access gives remote methods, as a Ray actor handle does.

    As with Ray, a method that the callee does not have is an AttributeError at once, and arguments that do not fit a
    TypeError where the call is made: both are the caller's fault.
    """

    def __init__(self, what: str, callee: Any) -> None:
        self._what = what
        self._callee = callee

    def __getattr__(self, name: str) -> _RemoteMethod:
        if name.startswith("__"):
            raise AttributeError(name)
        if not callable(getattr(self._callee, name, None)):
            has = ", ".join(each for each in dir(self._callee) if each[0] != "_" and self.offers(each))
            raise AttributeError(f"{self._what}.{name}: the {self._what} has no such method; it has {has}")
        method = _RemoteMethod(self._sender(name))
        self.__dict__[name] = method
        return method

    def offers(self, method: str) -> bool:
        """Whether the callee has such a method (older balancers lack clear_sticky_cache)."""
        return callable(getattr(self._callee, method, None))

    @abstractmethod
    def _sender(self, name: str) -> Callable[..., "asyncio.Future[Any]"]:
        """What sends a call of this method, with whatever arguments."""


class ServerHandle(_Handle):
    """What a client or trainer holds of a server."""

    def __init__(self, wire: "Wire", server: FakeRolloutServer) -> None:
        super().__init__("server", server)
        self._wire = wire
        self._server = server

    def _sender(self, name: str) -> Callable[..., "asyncio.Future[Any]"]:
        if name == "generate":
            fits = _fits_method("server.generate", self._server.generate, num_given=1)
            return partial(self._wire.send_request, self._server, fits)
        return partial(self._wire.send_control, self._server, name)


class BalancerHandle(_Handle):
    """What a client or trainer holds of the balancer; every message is in the trace."""

    def __init__(self, wire: "Wire", balancer: Any, replica_names: list[str]) -> None:
        super().__init__("balancer", balancer)
        self._wire = wire
        self._balancer = balancer
        self._replica_names = replica_names
        self._replica_of = {name: index for index, name in enumerate(replica_names)}
        self._get_status = getattr(balancer, "get_status", None)
        self._get_total = getattr(balancer, "get_total_inflight", None)
        self.messages_in_flight = 0
        """Messages that have not reached the balancer yet."""

    def _sender(self, name: str) -> Callable[..., "asyncio.Future[Any]"]:
        fits = _fits_method(f"balancer.{name}", getattr(self._balancer, name))
        return partial(self._wire.send_message, self, name, fits)

    def handle(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Has the balancer handle a message that has arrived."""
        self.messages_in_flight -= 1
        return getattr(self._balancer, name)(*args, **kwargs)

    def shown_loads(self) -> tuple[tuple[int | None, ...] | None, int | None]:
        """The balancer's own in-flight count for each replica, and in total, where it shows them."""
        if self._get_status is None:
            return None, None
        try:
            status = self._get_status()
            total = status.get("total_inflight") if self._get_total is None else self._get_total()
            return tuple(map(status.get("servers", {}).get, self._replica_names)), total
        except Exception:  # a balancer may show something else, or fail: then it shows none
            return None, None

    def replicas_named(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> tuple[int, ...]:
        """The replicas that a message is about."""
        named: Iterable[Any] = ()
        if name == "acquire_server":
            named = result[:1] if isinstance(result, (tuple, list)) else ()
        elif name == "release_server":
            named = (kwargs.get("server_id", args[0] if args else None),)
        elif name in ("add_servers", "remove_servers"):
            named = args[0] if args else next(iter(kwargs.values()))
        return tuple([self._replica_of[each] for each in named if isinstance(each, str) and each in self._replica_of])


_UNCHANGING = frozenset((int, str, float, bool, type(None), bytes, TokenIds, LogProbs, ServerHandle, BalancerHandle))


class Wire:
    """All calls of one world go through it."""

    def __init__(self, settings: Transport, loop: VirtualLoop, trace: Trace, listener: SentListener) -> None:
        self._copies = settings.objects == "copies"
        self._server_delay_ns = to_ns(settings.server_delay_s)
        self._balancer_delay_ns = to_ns(settings.balancer_delay_s)
        self._loop = loop
        self._trace = trace
        self._listener = listener
        self._requests = 0
        self.calls_under_way = 0
        """Calls to servers that have not come to their end."""
        self.release_delays: list[tuple[int, int]] = []
        """How late releases reach the balancer on top of its delay: (until when, by how much), both in ns."""

    def _after(self, delay_ns: int, callback: Callable[..., None], *args: Any) -> None:
        if delay_ns:
            self._loop.call_at_ns(self._loop.now_ns + delay_ns, callback, *args)
        else:
            self._loop.call_soon(callback, *args)

    # Requests

    def send_request(
        self, server: FakeRolloutServer, fits: _Fits, /, *args: Any, **kwargs: Any
    ) -> "asyncio.Future[TokenOutput]":
        """A generate call: numbered, attributed to the turn in whose context it is made, and delivered."""
        fits.check(args, kwargs)
        turn = current_turn.get()
        if turn is None:
            raise RuntimeError("a request was sent outside of any turn: no session to account it to")
        prompt_ids = kwargs.get("prompt_ids", args[0] if args else ())
        params = kwargs.get("sampling_params", args[1] if len(args) > 1 else {})
        limits = {key: params[key] for key in LIMIT_KEYS if key in params}
        request = self._requests
        self._requests += 1
        self._trace.add(
            Sent(
                self._loop.now_ns,
                request,
                turn.session,
                turn.turn,
                turn.attempts,
                server.replica,
                len(prompt_ids),
                limits,
            )
        )
        turn.attempts += 1
        self.calls_under_way += 1
        if self._copies:
            args = _copied_arguments(args, kwargs)
        future: asyncio.Future[TokenOutput] = self._loop.create_future()
        self._after(self._server_delay_ns, self._deliver_request, server, request, args, kwargs, future)
        self._listener.sent(turn.session)
        return future

    def _deliver_request(
        self,
        server: FakeRolloutServer,
        request: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: "asyncio.Future[TokenOutput]",
    ) -> None:
        try:
            answer = asyncio.ensure_future(server.generate(request, *args, **kwargs))
        except Exception as error:
            self._send_back(request, future, None, error)
        else:
            answer.add_done_callback(partial(self._answered, request, future))

    def _answered(
        self, request: int, future: "asyncio.Future[TokenOutput]", answer: "asyncio.Future[TokenOutput]"
    ) -> None:
        """The output is not copied: the server has made it for this call alone."""
        error = answer.exception()
        self._send_back(request, future, None if error is not None else answer.result(), error)

    def _send_back(
        self,
        request: int,
        future: "asyncio.Future[TokenOutput]",
        output: TokenOutput | None,
        error: BaseException | None,
    ) -> None:
        if self._server_delay_ns:
            self._after(self._server_delay_ns, self._deliver_answer, request, future, output, error)
        else:
            self._deliver_answer(request, future, output, error)

    def _deliver_answer(
        self,
        request: int,
        future: "asyncio.Future[TokenOutput]",
        output: TokenOutput | None,
        error: BaseException | None,
    ) -> None:
        self.calls_under_way -= 1
        tokens = 0 if output is None else len(output.token_ids)
        if _settle(future, output, error):
            self._trace.add(Delivered(self._loop.now_ns, request, tokens))
        else:
            self._trace.add(Discarded(self._loop.now_ns, request, tokens))

    # Control calls

    def send_control(self, server: FakeRolloutServer, name: str, *args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
        """Any other call to a server. They are few: each is a task."""
        method = getattr(server, name)
        self.calls_under_way += 1
        future: asyncio.Future[Any] = self._loop.create_future()
        self._loop.create_task(self._carry_control(method, args, kwargs, future))
        return future

    async def _carry_control(
        self,
        method: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: "asyncio.Future[Any]",
    ) -> None:
        if self._server_delay_ns:
            await asyncio.sleep(self._server_delay_ns / NS_PER_S)
        try:
            result = await method(*args, **kwargs)
        except Exception as error:
            _settle(future, None, error)
        else:
            _settle(future, result, None)
        self.calls_under_way -= 1

    # Messages to the balancer

    def send_message(
        self, handle: BalancerHandle, name: str, fits: _Fits, /, *args: Any, **kwargs: Any
    ) -> "asyncio.Future[Any]":
        """A call of the balancer, which handles one message after the other, in the order of their arrival."""
        fits.check(args, kwargs)
        handle.messages_in_flight += 1
        if self._copies:
            args = _copied_arguments(args, kwargs)
        future: asyncio.Future[Any] = self._loop.create_future()
        delay_ns = self._balancer_delay_ns
        if name == "release_server":
            delay_ns += sum([late_ns for until_ns, late_ns in self.release_delays if self._loop.now_ns < until_ns])
        self._after(delay_ns, self._deliver_message, handle, name, args, kwargs, future, current_turn.get())
        return future

    def _deliver_message(
        self,
        handle: BalancerHandle,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: "asyncio.Future[Any]",
        turn: TurnInProgress | None,
    ) -> None:
        result: Any = None
        error: Exception | None = None
        try:
            result = handle.handle(name, args, kwargs)
        except Exception as raised:
            error = raised
        replicas = handle.replicas_named(name, args, kwargs, result)
        loads, total = handle.shown_loads()
        self._trace.add(
            Message(
                self._loop.now_ns,
                name,
                turn.session if turn else None,
                turn.turn if turn else None,
                replicas,
                loads,
                total,
                handle.messages_in_flight,
                None if error is None else spelled(error),
            )
        )
        if _settle(future, result, error) and name == "acquire_server" and turn is not None and replicas:
            self._trace.add(Acquired(self._loop.now_ns, turn.session, turn.turn, replicas[0]))
