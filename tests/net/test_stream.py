"""Connections: bytes in order, the time that they take, flow control, and how each end hears that the other is gone."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from sim.clock import Deadlock, RandomOrder
from sim.net import Line, StreamNetwork
from sim.net.stream import WINDOW_BYTES
from tests.net.runs import asked, connect, echo, now_s, run, serve

_HIGH_BYTES = 64 * 1024  # asyncio's own limit of what waits at a sender


def test_a_client_reaches_a_server_by_its_name() -> None:
    async def main(_: StreamNetwork) -> bytes:
        await serve()
        return await asked(b"hello")

    assert run(main) == b"hello"


@pytest.mark.parametrize("seed", range(20))
def test_bytes_stay_in_order_under_any_schedule(seed: int) -> None:
    async def main(_: StreamNetwork) -> list[bytes]:
        await serve()
        texts = [bytes([n]) * 5 + b"end" for n in range(8)]

        async def ask(text: bytes) -> bytes:
            reader, writer = await connect()
            for n in range(len(text)):
                writer.write(text[n : n + 1])
                await asyncio.sleep(0)
            writer.write_eof()
            return await reader.read()

        assert await asyncio.gather(*map(ask, texts)) == texts
        return texts

    run(main, order=RandomOrder(seed))


def test_a_line_takes_its_time() -> None:
    async def main(_: StreamNetwork) -> tuple[float, float]:
        await serve()
        begin_s = now_s()
        reader, writer = await connect()
        connected_s = now_s() - begin_s
        writer.write(b"x" * 1000)
        await reader.readexactly(1000)
        return connected_s, now_s() - begin_s

    # There and back to connect; then 1,000 bytes at 100,000 a second, there and back.
    assert run(main, Line(latency_s=0.1, bytes_per_s=100_000)) == (0.2, pytest.approx(0.2 + 2 * (0.1 + 0.01)))


def test_each_connection_has_a_line_of_its_own() -> None:
    async def main(_: StreamNetwork) -> float:
        await serve()
        await asyncio.gather(*(asked(b"x" * 1000) for _ in range(10)))
        return now_s()

    assert run(main, Line(bytes_per_s=1000)) == 2


def test_a_slow_reader_stops_a_writer() -> None:
    async def main(_: StreamNetwork) -> tuple[int, int]:
        may_read, written = asyncio.Event(), 0

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await may_read.wait()
            await echo(reader, writer)

        await serve(slow)
        reader, writer = await connect()

        async def write() -> None:
            nonlocal written
            for _ in range(1000):
                writer.write(b"x" * 10_000)
                await writer.drain()
                written += 10_000
            writer.write_eof()

        task = asyncio.create_task(write())
        await asyncio.sleep(100)
        stopped_at = written
        may_read.set()
        received = len(await reader.read())
        await task
        return stopped_at, received

    stopped_at, received = run(main)
    # asyncio's StreamReader stops reading at twice its limit of 64 KiB.
    assert stopped_at <= WINDOW_BYTES + 3 * _HIGH_BYTES + 20_000
    assert received == 10_000_000


def test_one_that_reads_no_more_is_heard_by_no_reader() -> None:
    class Deaf(asyncio.Protocol):
        heard = b""

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            transport.pause_reading()

        def data_received(self, data: bytes) -> None:
            self.heard += data

    async def main(_: StreamNetwork) -> tuple[bytes, bytes]:
        deaf = Deaf()
        await asyncio.get_running_loop().create_server(lambda: deaf, "replica-0", 8000)
        _, writer = await connect()
        writer.write(b"hello")
        await asyncio.sleep(1)
        before = deaf.heard
        deaf.transport.resume_reading()
        await asyncio.sleep(1)
        return before, deaf.heard

    assert run(main) == (b"", b"hello")


def test_after_write_eof_the_other_direction_goes_on() -> None:
    async def main(_: StreamNetwork) -> bytes:
        async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"%d" % len(await reader.read()))
            writer.close()

        await serve(count)
        reader, writer = await connect()
        writer.write(b"x" * 500_000)
        writer.write_eof()
        with pytest.raises(RuntimeError, match="after write_eof"):
            writer.write(b"more")
        return await reader.read()

    assert run(main) == b"500000"


def test_all_that_was_written_arrives_before_a_close_does() -> None:
    async def main(_: StreamNetwork) -> int:
        async def tell(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"x" * 1_000_000)
            writer.close()

        await serve(tell)
        reader, _ = await connect()
        return len(await reader.read())

    assert run(main) == 1_000_000


def test_an_abort_is_a_reset_at_the_other_end() -> None:
    async def main(_: StreamNetwork) -> None:
        async def abort(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.transport.abort()

        await serve(abort)
        reader, writer = await connect()
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read()

    run(main)


def test_who_writes_to_one_that_has_closed_hears_of_a_reset() -> None:
    async def main(_: StreamNetwork) -> None:
        lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        class Server(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def eof_received(self) -> bool:
                self.transport.write(b"too late")
                return True

            def connection_lost(self, error: Exception | None) -> None:
                lost.set_result(error)

        await asyncio.get_running_loop().create_server(Server, "replica-0", 8000)
        _, writer = await connect()
        writer.close()
        assert isinstance(await lost, ConnectionResetError)

    run(main)


def test_a_protocol_that_raises_loses_its_connection() -> None:
    class Wrong(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            raise ValueError(data)

    async def main(_: StreamNetwork) -> str:
        told: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        await loop.create_server(Wrong, "replica-0", 8000)
        reader, writer = await connect()
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        return repr(told)

    assert run(main) == "[ValueError(b'x')]"


def test_buffered_protocols_are_filled() -> None:
    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer, self.heard = bytearray(3), b""

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.heard += self.buffer[:nbytes]

    async def main(_: StreamNetwork) -> bytes:
        protocol = Buffered()
        await asyncio.get_running_loop().create_server(lambda: protocol, "replica-0", 8000)
        _, writer = await connect()
        writer.write(b"12345678")
        await asyncio.sleep(1)
        return protocol.heard

    assert run(main) == b"12345678"


def test_context_variables_do_not_cross() -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")

    async def main(_: StreamNetwork) -> bytes:
        async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(who.get().encode())
            writer.close()

        who.set("the server's")
        await serve(tell)
        who.set("the client's")
        reader, writer = await connect()
        writer.write(b"x")
        return await reader.read()

    assert run(main) == b"the server's"


def test_a_server_that_never_answers_is_a_deadlock() -> None:
    async def main(_: StreamNetwork) -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.get_running_loop().create_future()

        await serve(silent)
        await asked(b"hello")

    with pytest.raises(Deadlock):
        run(main)
