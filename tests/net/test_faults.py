"""What goes wrong on a network, by hand."""

import asyncio
import socket

import pytest

from sim.net import Line, StreamNetwork
from tests.net.runs import asked, connect, now_s, run, serve


def test_refused_until_told_otherwise() -> None:
    async def main(network: StreamNetwork) -> bytes:
        await serve()
        network.refuse("replica-0")
        with pytest.raises(ConnectionRefusedError):
            await connect()
        network.refuse("replica-0", refuses=False)
        return await asked(b"hello")

    assert run(main) == b"hello"


def test_a_reset_is_heard_at_both_ends() -> None:
    async def main(network: StreamNetwork) -> list[str]:
        heard = []

        async def listen(name: str, reader: asyncio.StreamReader) -> None:
            try:
                await reader.read()
            except ConnectionResetError:
                heard.append(name)

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await listen("server", reader)

        await serve(handle)
        await serve(host="replica-1")
        reader, _ = await connect()
        assert network.reset("replica-1") == 0
        assert network.reset("replica-0") == 1
        await listen("client", reader)
        assert network.open_connections == []
        return sorted(heard)

    assert run(main, Line(latency_s=0.1)) == ["client", "server"]


@pytest.mark.parametrize("after_bytes", [0, 3, 5])
def test_an_answer_is_cut_after_so_many_bytes(after_bytes: int) -> None:
    async def main(network: StreamNetwork) -> bytes:
        await serve()
        network.cut_answer("replica-0", after_bytes)
        reader, writer = await connect()
        got = b""

        async def listen() -> None:
            nonlocal got
            while part := await reader.read(1):
                got += part

        writer.write(b"hello")
        with pytest.raises(ConnectionResetError):
            await listen()
        assert await asked(b"the next is whole") == b"the next is whole"
        return got

    assert run(main) == b"hello"[:after_bytes]


def test_in_a_black_hole_nobody_hears_of_anything() -> None:
    async def main(network: StreamNetwork) -> tuple[bytes, float]:
        await serve()
        reader, writer = await connect()
        network.go_dark("replica-0")
        writer.write(b"hello")
        for what in (reader.read(1), connect()):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(100):
                    await what
        waiting = asyncio.create_task(connect())
        await asyncio.sleep(100)
        network.light_up("replica-0")
        await waiting
        return await reader.readexactly(5), now_s()

    assert run(main, Line(latency_s=1)) == (
        b"hello",
        303,
    )  # 302 s later; what was on its way is there at once, and its echo back


def test_a_slow_line_is_slow() -> None:
    async def main(network: StreamNetwork) -> float:
        await serve()
        reader, writer = await connect()
        network.set_line("replica-0", Line(latency_s=5, bytes_per_s=1))
        writer.write(b"hello")
        await reader.readexactly(5)
        return now_s()

    assert run(main) == 2 * (5 + 5)


def test_half_closed_a_client_hears_the_end_and_a_server_does_not() -> None:
    async def main(network: StreamNetwork) -> tuple[bytes, bytes]:
        received = b""

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal received
            writer.write(b"first")
            while data := await reader.read(100):
                received += data
                writer.write(b"lost")

        await serve(handle)
        reader, writer = await connect()
        await reader.readexactly(5)
        assert network.half_close("replica-0") == 1
        writer.write(b"hello")
        rest = await reader.read()
        writer.write(b" again")
        await asyncio.sleep(1)
        return rest, received

    assert run(main) == (b"", b"hello again")


def test_a_name_that_does_not_resolve_for_a_while() -> None:
    async def main(network: StreamNetwork) -> bytes:
        await serve()
        network.fail_look_up("replica-0")
        with pytest.raises(socket.gaierror, match="Temporary failure in name resolution: replica-0") as raised:
            await connect()
        assert raised.value.errno == socket.EAI_AGAIN
        network.fail_look_up("replica-0", fails=False)
        return await asked(b"hello")

    assert run(main) == b"hello"
