"""A connection: two ends, each of them an asyncio transport, and what is on its way between them.

What is written goes on the line of its direction at once while the receiver's window has room, and waits at the sender
beyond that; the sender's protocol is paused and resumed by asyncio's own limits. Acknowledgements take no time.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from errno import ECONNRESET
from typing import Any, Literal, cast

from sim.clock import VirtualLoop
from sim.net.host import Host
from sim.net.sockets import Address, StreamSocket

WINDOW_BYTES = 256 * 1024
"""What a receiver may have that it has not read, on the line or in its buffer: asyncio sees none of it."""

_HIGH_BYTES = 64 * 1024
"""asyncio's own limit of what waits at a sender before it is paused."""

_TLS_HANDSHAKE = b"\x16\x03"
"""How TLS begins: a record of the type handshake, of version 3.x."""

_Sign = Literal["end", "reset"]


class TlsRefused(RuntimeError):
    """TLS was spoken in a world."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} in a world: its network has no TLS; use http:// for https://")


class End(asyncio.Transport):
    """One end of a connection. `take` gives it its protocol and begins it."""

    _peer: "End"

    def __init__(
        self,
        loop: VirtualLoop,
        host: Host,
        names: tuple[Address, Address],
        role: Literal["client", "server"],
        context: contextvars.Context,
        forget: Callable[[], None],
    ) -> None:
        """`host`: the server's, whose line and troubles the connection has. `names`: its own address, then the peer's.
        `context`: of its protocol's callbacks, as nothing of the kind crosses a network. `forget`: once it is lost."""
        sock = StreamSocket(*names, is_readable=self._is_readable)
        super().__init__({"socket": sock, "sockname": names[0], "peername": names[1]})
        self.own_name, self.peer_name = names
        self.role = role
        self.host = host
        self._loop = loop
        self._context = context
        self._forget = forget
        self._protocol: asyncio.BaseProtocol | None = None
        # What it sends.
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._limits_bytes = (_HIGH_BYTES // 4, _HIGH_BYTES)
        self._is_paused_by_us = False
        self._ends = False
        self._has_ended = False
        self._cut_after_bytes: int | None = None
        self._has_sent = False
        # What it receives.
        self._arriving: deque[tuple[int, bytes | _Sign]] = deque()
        """When it is there, and what."""
        self._unread_bytes = 0
        self._line_free_ns = 0
        self._last_due_ns = 0
        self._delivery: asyncio.Handle | None = None
        self._reads = True
        self._has_begun = False
        self._closes = False
        self.is_lost = False

    def join(self, peer: "End") -> None:
        """Makes two ends one connection."""
        self._peer, peer._peer = peer, self

    def take(self, protocol: asyncio.BaseProtocol, begun: "asyncio.Future[None] | None" = None) -> None:
        """It belongs to this protocol, which hears of it in the next step; then `begun` is done."""
        self._protocol = protocol
        self._loop.call_soon(self._begin, begun, context=self._context)

    def _begin(self, begun: "asyncio.Future[None] | None") -> None:
        self._has_begun = True
        self._protocol.connection_made(self)  # type: ignore[union-attr]
        self.expect()
        if begun is not None and not begun.done():
            begun.set_result(None)

    # Sending

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._ends:
            raise RuntimeError("write() after write_eof()")
        if not data or self._closes or self._has_ended:
            return
        written = bytes(data)
        if not self._has_sent and self.role == "client" and written.startswith(_TLS_HANDSHAKE):
            raise TlsRefused(f"a TLS handshake with {self.host.name}")
        self._has_sent = True
        if self.role == "server" and self._is_cut(written):
            return
        self._waiting.append(written)
        self._waiting_bytes += len(written)
        self._send()
        if self._waiting_bytes > self._limits_bytes[1] and not self._is_paused_by_us:
            self._is_paused_by_us = True
            self._protocol.pause_writing()  # type: ignore[union-attr]

    def _is_cut(self, written: bytes) -> bool:
        """Whether a fault has cut the connection within what is written."""
        if self._cut_after_bytes is None and self.host.cuts_after_bytes:
            self._cut_after_bytes = self.host.cuts_after_bytes.popleft()
        if self._cut_after_bytes is None:
            return False
        self._cut_after_bytes -= len(written)
        if self._cut_after_bytes > 0:
            return False
        self._waiting.append(written[: len(written) + self._cut_after_bytes])
        self._send()
        self.reset()
        return True

    def _send(self) -> None:
        """Puts on the line what the peer's window has room for."""
        peer = self._peer
        while self._waiting and peer._unread_bytes < WINDOW_BYTES:
            data, room_bytes = self._waiting.popleft(), WINDOW_BYTES - peer._unread_bytes
            if len(data) > room_bytes:
                self._waiting.appendleft(data[room_bytes:])
                data = data[:room_bytes]
            self._waiting_bytes -= len(data)
            peer._unread_bytes += len(data)
            peer._put_on_line(data)
        if not self._waiting and (self._ends or self._closes) and not self._has_ended:
            self._has_ended = True
            peer._put_on_line("end")
            if self._closes:
                self._lose_soon()
        if self._is_paused_by_us and self._waiting_bytes <= self._limits_bytes[0]:
            self._is_paused_by_us = False
            self._protocol.resume_writing()  # type: ignore[union-attr]

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not (self._ends or self._closes):
            self._ends = True
            self._send()

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._limits_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._limits_bytes = (low, high)

    # Receiving

    def _put_on_line(self, item: bytes | _Sign) -> None:
        """It is there after the time that its bytes take on the line, and the line's latency, and after all before."""
        now_ns, line = self._loop.now_ns, self.host.line
        self._line_free_ns = max(now_ns, self._line_free_ns) + line.sending_ns(len(item) if type(item) is bytes else 0)
        self._last_due_ns = max(self._last_due_ns, self._line_free_ns + line.latency_ns)
        self._arriving.append((self._last_due_ns, item))
        self.expect()

    def expect(self) -> None:
        """Sees to it that it hears of what is next to arrive: one thing a step, in order whatever the schedule."""
        if self._delivery is not None or not self._arriving or not self._hears:
            return
        due_ns = self._arriving[0][0]
        if due_ns <= self._loop.now_ns:
            self._delivery = self._loop.call_soon(self._deliver, context=self._context)
        else:
            self._delivery = self._loop.call_at_ns(due_ns, self._deliver, context=self._context)

    @property
    def _hears(self) -> bool:
        """A reset is heard by one that does not read, too."""
        if self.host.is_dark or not self._has_begun:
            return False
        return self._reads or self._closes or self._arriving[0][1] == "reset"

    def _is_readable(self) -> bool:
        return self.is_lost or bool(self._arriving and self._arriving[0][0] <= self._loop.now_ns)

    def _deliver(self) -> None:
        self._delivery = None
        if not (self._arriving and self._hears):
            return
        item = self._arriving.popleft()[1]
        if type(item) is bytes:
            self._unread_bytes -= len(item)
        if item == "reset":
            self._arriving.clear()
            self._lose(ConnectionResetError(ECONNRESET, "Connection reset by peer"))
        elif not self._closes:
            try:
                self._hand_over(item)
            except Exception as error:
                self._fail(error)
            self._peer._send()
        elif type(item) is bytes:  # nobody reads it any more
            self._peer.hear_reset()
        self.expect()

    def _hand_over(self, item: bytes | _Sign) -> None:
        protocol: Any = self._protocol
        if item == "end":
            if not protocol.eof_received():
                self.close()
        elif isinstance(protocol, asyncio.BufferedProtocol):
            data = cast(bytes, item)
            while data:
                buffer = memoryview(protocol.get_buffer(len(data)))
                taken = min(len(data), len(buffer))
                buffer[:taken] = data[:taken]
                protocol.buffer_updated(taken)
                data = data[taken:]
        else:
            protocol.data_received(item)

    def _fail(self, error: Exception) -> None:
        """As asyncio does where a protocol raises."""
        self._loop.call_exception_handler(
            {"message": "a protocol failed", "exception": error, "transport": self, "protocol": self._protocol}
        )
        self.abort()

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        if not self._closes:
            self._reads = True
            self.expect()

    def is_reading(self) -> bool:
        return self._reads and not self._closes

    # Ending

    def is_closing(self) -> bool:
        return self._closes

    def close(self) -> None:
        """Once all is sent the peer hears that nothing more comes."""
        if self._closes:
            return
        self._closes = True
        if self._has_ended:
            self._lose_soon()
        self._send()
        self.expect()

    def abort(self) -> None:
        """The peer hears of a reset."""
        if not self.is_lost:
            self._peer.hear_reset()
            self._drop()
            self._lose_soon()

    def reset(self) -> None:
        """What lies between has cut the connection: both ends hear of a reset."""
        self._peer.hear_reset()
        self._drop()
        self._arriving.appendleft((self._loop.now_ns, "reset"))
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None
        self.expect()

    def end_with_its_world(self) -> None:
        """Nobody hears of anything any more; who still holds it finds it closed, and does not warn."""
        self._closes = True

    def end_unasked(self) -> None:
        """The peer hears that nothing more comes, which this end does not know: what it writes is lost."""
        if not self._has_ended:
            self._waiting.clear()
            self._waiting_bytes = 0
            self._has_ended = True
            self._peer._put_on_line("end")

    def hear_reset(self) -> None:
        """The peer is gone; it hears so after all that was on the line."""
        if not self.is_lost:
            self._put_on_line("reset")

    def _drop(self) -> None:
        self._closes = self._has_ended = True
        self._waiting.clear()
        self._waiting_bytes = 0

    def _lose_soon(self) -> None:
        self._loop.call_soon(self._lose, None, context=self._context)

    def _lose(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._drop()
        self._forget()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    # The rest of asyncio's interface

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<{self.role} of a connection with {self.host.name}>"
