"""The server's side of HTTP/1.1, on h11: requests read whole, answered with JSON, one after the other."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from sim.sut.interface import SutError


class HttpRequest(NamedTuple):
    """`headers` by their names in lower case; of several that are alike, the last."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, {} where there is none. Raises ValueError."""
        return json.loads(self.body) if self.body else {}


class HttpAnswer(NamedTuple):
    """`content` as JSON; None: no body."""

    status: int
    content: Any = None


class HangUp(Exception):
    """Raised in the place of an answer: the connection is reset."""


Handle = Callable[[HttpRequest], Awaitable[HttpAnswer]]
"""Answers a request. It is cancelled when the client is gone."""

_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 405: b"Method Not Allowed"}


def import_h11() -> Any:
    """Raises `SutError` where it is not installed."""
    try:
        import h11
    except ImportError:
        raise SutError("a face needs the package h11, which is not installed: pip install 'rollcage[http]'") from None
    return h11


class HttpProtocol(asyncio.Protocol):
    """One connection, for `loop.create_server(lambda: HttpProtocol(handle), host, port)`."""

    _transport: asyncio.Transport

    def __init__(self, handle: Handle) -> None:
        self._h11 = import_h11()
        self._handle = handle
        self._connection = self._h11.Connection(self._h11.SERVER)
        self._head: Any = None
        self._body: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        del error
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._connection.receive_data(data)
        self._read()

    def _read(self) -> None:
        """Takes what has come, up to the end of a request."""
        h11 = self._h11
        while self._task is None:
            try:
                event = self._connection.next_event()
            except h11.RemoteProtocolError as error:
                self._send(HttpAnswer(error.error_status_hint, {"error": str(error)}), closes=True)
                return
            if event is h11.NEED_DATA or event is h11.PAUSED or type(event) is h11.ConnectionClosed:
                if event is h11.NEED_DATA and self._connection.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                    self._transport.write(self._connection.send(go_on))
                return
            if type(event) is h11.Request:
                self._head = event
            elif type(event) is h11.Data:
                self._body.append(bytes(event.data))
            elif type(event) is h11.EndOfMessage:
                self._task = asyncio.get_running_loop().create_task(self._answer(self._request()))

    def _request(self) -> HttpRequest:
        head, body = self._head, b"".join(self._body)
        self._body.clear()
        target = urlsplit(head.target.decode("ascii"))
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        return HttpRequest(head.method.decode("ascii"), target.path, dict(parse_qsl(target.query)), headers, body)

    async def _answer(self, request: HttpRequest) -> None:
        try:
            answer = await self._handle(request)
        except HangUp:
            self._transport.abort()
            return
        finally:
            self._task = None
        self._send(answer)
        if self._connection.our_state is self._h11.DONE and self._connection.their_state is self._h11.DONE:
            self._connection.start_next_cycle()
            self._read()
        else:
            self._transport.close()

    def _send(self, answer: HttpAnswer, *, closes: bool = False) -> None:
        h11, connection = self._h11, self._connection
        content = b"" if answer.content is None else json.dumps(answer.content, separators=(",", ":")).encode()
        headers = [(b"content-length", b"%d" % len(content))]
        if content:
            headers.append((b"content-type", b"application/json"))
        if closes:
            headers.append((b"connection", b"close"))
        head = h11.Response(status_code=answer.status, headers=headers, reason=_REASONS.get(answer.status, b""))
        parts = [connection.send(head)]
        if content:
            parts.append(connection.send(h11.Data(data=content)))
        parts.append(connection.send(h11.EndOfMessage()))
        self._transport.write(b"".join(parts))
        if closes:
            self._transport.close()
