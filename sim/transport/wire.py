"""The wire between clients, servers and balancer: every call is carried, delayed, counted and put on the trace.

A call returns a plain future that is fed by the callee's own task: cancelling the caller does not cancel the call, as
with a Ray actor. Arguments are copied as a serialising transport does, or shared as they are.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple, Protocol

from sim.case import Transport
from sim.clock import NS_PER_S, to_ns
from sim.events import Acquired, Awaited, Delivered, Discarded, Lost, Message, Sent, spelled
from sim.registry import PluginError
from sim.servers.failures import ActorUnavailableError, CallFailed
from sim.servers.port import Answer, Clock
from sim.tokens import Ids, ids_as_runs
from sim.trace import Trace
from sim.transport.balancer_port import BalancerPort
from sim.transport.copies import copied_arguments
from sim.transport.handles import Handle, Send
from sim.transport.noticed import Noticed
from sim.transport.protocol import RequestProtocol
from sim.transport.signatures import Signature, signature_of


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


Deliver = Callable[[str, TurnInProgress | None, Callable[[], None]], None]
"""(message, the turn on whose behalf it was sent or None, what delivers it): calls the latter, at once or when its turn
has come. For who leads a world through an observed order of messages, or notes it."""


class OwnFault(Exception):
    """Raised to the loop where a server, which is ours, does not hold what it asserts, or a plugin fails: no caller is
    told."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Call(NamedTuple):
    """A request under way, and where its caller waits."""

    request: int
    session: int
    future: "asyncio.Future[Any]"


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> bool:
    """Feeds a caller's future; False where the caller is gone."""
    if future.done():
        return False
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
    return True


def fail_the_run(error: Exception) -> None:
    """For the loop to call: nobody under test is to be told of it."""
    raise OwnFault(error) from error


_NOBODYS = (AssertionError, PluginError)
"""What no caller is told."""

_OUR_FOLDER = str(Path(__file__).parent)


def was_brought(error: Exception) -> bool:
    """Whether a call brought it (its callee raised it, or it was no call of that callee), and not whoever made calls
    raised it on his own."""
    frames = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return isinstance(error, CallFailed) or any(name.startswith(_OUR_FOLDER) for name in frames)


_NO_ANSWER = Answer(0, None)


def _prompt(prompt_ids: Sequence[Any]) -> Ids:
    """The ids of a prompt as runs: none where they are no integers, which is for the server to say."""
    try:
        return ids_as_runs(prompt_ids)
    except TypeError:
        return ()


class Wire:
    """All calls of one world go through it."""

    def __init__(
        self,
        settings: Transport,
        requests: RequestProtocol,
        loop: Clock,
        trace: Trace,
        listener: SentListener,
        deliver: Deliver | None = None,
    ) -> None:
        self._read = requests.read
        self._generate = requests.method
        self._copies = settings.objects == "copies"
        self._server_delay_ns = to_ns(settings.server_delay_s)
        self._balancer_delay_ns = to_ns(settings.balancer_delay_s)
        self._loop = loop
        self._trace = trace
        self._listener = listener
        self._deliver = deliver
        self._requests = 0
        self.calls_under_way = 0
        """Calls to servers that have not come to their end."""
        self._disturbed: dict[int, list[tuple[int, bool]]] = {}
        """For the next answers to a session: by how much they are late, in ns, and whether they are lost."""
        self._release_delays: list[tuple[int, int]] = []
        """How late releases reach the balancer on top of its delay: (until when, by how much), both in ns. Of several
        that hold at once it is the longest."""

    def delay_releases(self, until_ns: int, late_ns: int) -> None:
        """See `sim.world.ports.Network`."""
        self._release_delays = [each for each in self._release_delays if self._loop.now_ns < each[0]]
        if (until_ns, late_ns) not in self._release_delays:
            self._release_delays.append((until_ns, late_ns))

    def _late_ns(self) -> int:
        """How late a release is that is sent now: delays that overlap do not add up."""
        now_ns = self._loop.now_ns
        self._release_delays = [each for each in self._release_delays if now_ns < each[0]]
        return max([late_ns for _, late_ns in self._release_delays], default=0)

    def disturb_answer(self, session: int, late_ns: int, *, is_lost: bool) -> None:
        """See `sim.world.ports.Network`."""
        self._disturbed.setdefault(session, []).append((late_ns, is_lost))

    def _after(self, delay_ns: int, callback: Callable[..., None], *args: Any) -> None:
        if delay_ns:
            self._loop.call_at_ns(self._loop.now_ns + delay_ns, callback, *args)
        else:
            self._loop.call_soon(callback, *args)

    # Handles

    def server_handle(self, replica: int, face: Any) -> Handle:
        """A handle of a server. `face`: its methods under the framework's names; that for requests takes the request's
        number first, which callers do not give."""

        def sender(name: str) -> Send:
            method = getattr(face, name)
            if name == self._generate:
                signature = signature_of(f"server.{name}", method, num_given=1)
                return partial(self._send_request, replica, method, signature)
            return partial(self._send_control, method)

        return Handle("server", face, sender)

    def balancer_handle(self, port: BalancerPort) -> Handle:
        """A handle of the balancer; every message is in the trace."""

        def sender(name: str) -> Send:
            signature = signature_of(f"balancer.{name}", getattr(port.balancer, name))
            return partial(self._send_message, port, name, signature)

        return Handle("balancer", port.balancer, sender)

    # Requests

    def _send_request(
        self, replica: int, generate: Callable[..., Any], signature: Signature, /, *args: Any, **kwargs: Any
    ) -> "asyncio.Future[Any]":
        """A request: numbered, attributed to the turn in whose context it is made, and delivered."""
        signature.check(args, kwargs)
        turn = current_turn.get()
        if turn is None:
            raise RuntimeError("a request was sent outside of any turn: no session to account it to")
        asked_for = self._read(args, kwargs)
        request = self._requests
        self._requests += 1
        self._trace.add(
            Sent(
                self._loop.now_ns,
                request,
                turn.session,
                turn.turn,
                turn.attempts,
                replica,
                len(asked_for.prompt_ids),
                asked_for.limits,
                _prompt(asked_for.prompt_ids),
            )
        )
        turn.attempts += 1
        self.calls_under_way += 1
        if self._copies:
            args = copied_arguments(args, kwargs)
        future: asyncio.Future[Any] = self._loop.create_future()
        call = Call(request, turn.session, future)
        self._after(self._server_delay_ns, self._deliver_request, generate, call, args, kwargs)
        self._listener.sent(turn.session)
        return future

    def _deliver_request(
        self, generate: Callable[..., Any], call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        try:
            answer = asyncio.ensure_future(generate(call.request, *args, **kwargs))
        except _NOBODYS as error:
            raise OwnFault(error) from error
        except Exception as error:
            self._send_back(call, None, error)
        else:
            answer.add_done_callback(partial(self._answered, call))

    def _answered(self, call: Call, answer: "asyncio.Future[Answer]") -> None:
        """The output is not copied: the server has made it for this call alone."""
        error = answer.exception()
        if isinstance(error, _NOBODYS):
            raise OwnFault(error) from error
        self._send_back(call, None if error is not None else answer.result(), error)

    def _send_back(self, call: Call, answer: Answer | None, error: BaseException | None) -> None:
        delay_ns = self._server_delay_ns
        if call.session in self._disturbed:
            late_ns, is_lost = self._disturbed[call.session].pop(0)
            if not self._disturbed[call.session]:
                del self._disturbed[call.session]
            delay_ns += late_ns
            if is_lost:
                answer, error = None, ActorUnavailableError("the connection to the replica was lost")
        if delay_ns:
            self._after(delay_ns, self._deliver_answer, call, answer, error)
        else:
            self._deliver_answer(call, answer, error)

    def _deliver_answer(self, call: Call, answer: Answer | None, error: BaseException | None) -> None:
        self.calls_under_way -= 1
        tokens, output, log_probs = _NO_ANSWER if answer is None else answer
        has_caller = _settle(call.future, output, error)
        if isinstance(error, CallFailed):
            self._trace.add(Lost(self._loop.now_ns, call.request, spelled(error)))
        elif has_caller:
            self._trace.add(Delivered(self._loop.now_ns, call.request, tokens, log_probs))
        else:
            self._trace.add(Discarded(self._loop.now_ns, call.request, tokens))

    # Control calls

    def _send_control(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
        """Any other call to a server. They are few: each is a task."""
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
        except _NOBODYS as error:
            self._loop.call_soon(fail_the_run, error)
        except Exception as error:
            _settle(future, None, error)
        else:
            _settle(future, result, None)
        self.calls_under_way -= 1

    # Messages to the balancer

    def _send_message(
        self, port: BalancerPort, name: str, signature: Signature, /, *args: Any, **kwargs: Any
    ) -> "asyncio.Future[Any]":
        """A call of the balancer. It handles messages in the order of their arrival: one after the other, but that an
        `async def` method lets others come in between wherever it awaits."""
        signature.check(args, kwargs)
        port.messages_in_flight += 1
        if self._copies:
            args = copied_arguments(args, kwargs)
        future: asyncio.Future[Any] = self._loop.create_future()
        delay_ns = self._balancer_delay_ns
        if self._release_delays and port.protocol.roles.get(name) == "release":
            delay_ns += self._late_ns()
        turn = current_turn.get()
        if self._deliver is None:
            self._after(delay_ns, self._deliver_message, port, name, args, kwargs, future, turn)
        else:
            handle_it = partial(self._deliver_message, port, name, args, kwargs, future, turn)
            self._after(delay_ns, self._deliver, name, turn, handle_it)
        return future

    def _deliver_message(
        self,
        port: BalancerPort,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: "asyncio.Future[Any]",
        turn: TurnInProgress | None,
    ) -> None:
        result: Any = None
        error: Exception | None = None
        try:
            result = port.handle(name, args, kwargs)
        except Exception as raised:
            error = raised
        else:
            if inspect.isawaitable(result):
                self._loop.create_task(self._await_message(result, port, name, args, kwargs, future, turn))
                return
        self._handled(port, name, args, kwargs, future, turn, result, error)

    async def _await_message(
        self,
        answer: Awaitable[Any],
        port: BalancerPort,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: "asyncio.Future[Any]",
        turn: TurnInProgress | None,
    ) -> None:
        """The rest of a message to an `async def` method, which others may overtake, as in Ray's async actors."""
        result: Any = None
        error: Exception | None = None
        try:
            result = await Noticed(answer, partial(self._awaits, name, turn))
        except Exception as raised:
            error = raised
        self._handled(port, name, args, kwargs, future, turn, result, error)

    def _awaits(self, name: str, turn: TurnInProgress | None) -> None:
        place = (turn.session, turn.turn) if turn else (None, None)
        self._trace.add(Awaited(self._loop.now_ns, name, *place))

    def _handled(
        self,
        port: BalancerPort,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: "asyncio.Future[Any]",
        turn: TurnInProgress | None,
        result: Any,
        error: Exception | None,
    ) -> None:
        port.messages_in_flight -= 1
        try:
            replicas = port.replicas_of(name, args, kwargs, result)
        except PluginError as error_of_plugin:
            self._loop.call_soon(fail_the_run, error_of_plugin)
            replicas = ()
        loads, total = port.shown()
        self._trace.add(
            Message(
                self._loop.now_ns,
                name,
                turn.session if turn else None,
                turn.turn if turn else None,
                replicas,
                loads,
                total,
                port.messages_in_flight,
                None if error is None else spelled(error),
            )
        )
        if _settle(future, result, error) and replicas and port.protocol.roles[name] == "acquire" and turn is not None:
            self._trace.add(Acquired(self._loop.now_ns, turn.session, turn.turn, replicas[0]))
