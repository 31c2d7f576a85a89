"""Names, addresses, ports, and who may listen where."""

import asyncio
import socket

import pytest

from sim.net import NetworkedLoop, StreamNetwork
from sim.net.loop import NetworkedLoop as Loop
from tests.net.runs import asked, connect, echo, run, serve


def loop_of() -> Loop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, NetworkedLoop)
    return loop


def test_a_name_resolves_to_an_address_and_back() -> None:
    async def main(_: StreamNetwork) -> tuple[object, ...]:
        (info,) = await loop_of().getaddrinfo("replica-1", "http")
        return (
            *info,
            await loop_of().getnameinfo(info[4]),
            await loop_of().getnameinfo(info[4], socket.NI_NUMERICHOST),
        )

    stream = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.1.0.2", 80))
    assert run(main) == (*stream, ("replica-1", "80"), ("127.1.0.2", "80"))


@pytest.mark.parametrize(
    ("host", "port", "settings", "says"),
    [
        ("api.openai.com", 80, {}, r"not known: api.openai.com \(a world knows localhost, replica-0, replica-1\)"),
        ("::1", 80, {}, "not known: ::1"),
        ("replica-0", "gopher", {}, r"gopher \(a world knows http, https\)"),
        ("replica-0", 80, {"family": socket.AF_INET6}, "a world has IPv4 alone"),
        ("replica-0", 80, {"type": socket.SOCK_DGRAM}, "a world has streams alone"),
    ],
)
def test_what_does_not_resolve(host: str, port: int | str, settings: dict[str, int], says: str) -> None:
    async def main(_: StreamNetwork) -> None:
        with pytest.raises(socket.gaierror, match=says):
            await loop_of().getaddrinfo(host, port, **settings)

    run(main)


def test_an_address_without_a_host_is_unreachable_and_a_port_without_a_server_refuses() -> None:
    async def main(_: StreamNetwork) -> None:
        with pytest.raises(OSError, match="no host of this world has that address"):
            await connect("10.0.0.1")
        with pytest.raises(ConnectionRefusedError, match=r"\('127.1.0.1', 8000\)"):
            await connect()

    run(main)


def test_a_place_is_taken_until_its_server_closes() -> None:
    async def main(_: StreamNetwork) -> list[str]:
        server = await serve()
        with pytest.raises(OSError, match="in use"):
            await serve()
        await serve(host="replica-1")
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await connect()
        await serve()
        with pytest.raises(OSError, match="no host of this world has it"):
            await serve(host="10.0.0.1")
        with pytest.raises(ValueError, match="a host and a port"):
            await loop_of().create_server(asyncio.Protocol, sock=socket.socket())
        return _.listening

    assert run(main) == ["replica-1:8000", "replica-0:8000"]


def test_a_server_without_a_host_listens_on_all_of_them() -> None:
    async def main(_: StreamNetwork) -> None:
        await asyncio.start_server(echo, None, 8000)
        for host in ("replica-0", "replica-1", "localhost", "127.0.0.1", "127.1.0.2"):
            assert await asked(b"hello", host) == b"hello"

    run(main)


def test_ports_of_choice_are_the_same_in_every_world() -> None:
    async def main(_: StreamNetwork) -> list[object]:
        servers = [await asyncio.start_server(echo, host, 0) for host in ("replica-0", "replica-1")]
        return [server.sockets[0].getsockname() for server in servers]

    assert run(main) == run(main) == [("127.1.0.1", 49152), ("127.1.0.2", 49153)]


def test_hosts_are_named_once_and_faults_name_hosts() -> None:
    async def main(network: StreamNetwork) -> None:
        with pytest.raises(ValueError, match="there is a host 'replica-0' already"):
            network.add_host("replica-0")
        with pytest.raises(ValueError, match="no host 'replica-2'; there are localhost, replica-0, replica-1"):
            network.reset("replica-2")

    run(main)


def test_what_is_open_at_the_end_is_told() -> None:
    async def main(network: StreamNetwork) -> StreamNetwork:
        server = await serve()
        _, left = await connect()
        await asked(b"hello")
        await asyncio.sleep(1)
        assert network.listening == ["replica-0:8000"]
        assert network.open_connections == ["localhost:49152 to replica-0:8000"]
        server.close()
        left.close()
        await asyncio.sleep(1)
        return network

    network = run(main)
    assert (network.listening, network.open_connections) == ([], [])


def test_a_world_may_end_with_connections_open() -> None:
    async def main(network: StreamNetwork) -> tuple[StreamNetwork, asyncio.StreamWriter]:
        await serve()
        asyncio.get_running_loop().create_task(asked(b"hello"))
        _, writer = await connect()
        writer.write(b"hello")
        return network, writer

    network, _ = run(main)
    assert "localhost:49153 to replica-0:8000" in network.open_connections
