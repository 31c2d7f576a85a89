"""A world never opens a real socket: each way out raises an error that names the call."""

import asyncio
import concurrent.futures
import http.client
import socket
import threading
import urllib.request
from collections.abc import Callable
from socket import gethostbyname as held_by_value
from typing import Any

import pytest

from tests.clock.runs import world

NOBODY = ("127.0.0.1", 9)


def in_a_world(call: Callable[[], Any]) -> None:
    async def main() -> None:
        call()

    with world(1) as loop:
        loop.run_until_complete(main())


def by_requests() -> None:
    pytest.importorskip("requests", reason="requests is not installed").get("http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: socket.socket().connect(NOBODY), "socket.connect"),
        (lambda: socket.socket().connect_ex(NOBODY), "socket.connect"),
        (lambda: socket.socket(socket.AF_UNIX).connect("/nowhere"), "socket.connect"),
        (lambda: socket.create_connection(NOBODY), "socket.getaddrinfo"),
        (lambda: socket.socket().bind(("127.0.0.1", 0)), "socket.bind"),
        (lambda: socket.create_server(("127.0.0.1", 0)), "socket.bind"),
        (lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", NOBODY), "socket.sendto"),
        (lambda: socket.socket(type=socket.SOCK_DGRAM).sendmsg([b"x"], [], 0, NOBODY), "socket.sendmsg"),
        (lambda: socket.getaddrinfo("localhost", 80), "socket.getaddrinfo"),
        (lambda: socket.gethostbyname("localhost"), "socket.gethostbyname"),
        (lambda: socket.gethostbyname_ex("localhost"), "socket.gethostbyname"),
        (lambda: held_by_value("localhost"), "socket.gethostbyname"),
        (lambda: socket.gethostbyaddr("127.0.0.1"), "socket.gethostbyaddr"),
        (lambda: socket.getnameinfo(NOBODY, 0), "socket.getnameinfo"),
        (lambda: http.client.HTTPConnection(*NOBODY).request("GET", "/"), "socket.getaddrinfo"),
        (lambda: urllib.request.urlopen("http://127.0.0.1:9"), "socket.getaddrinfo"),
        (by_requests, "socket.getaddrinfo"),
    ],
)
def test_the_real_network_is_refused_by_name(call: Callable[[], Any], named: str) -> None:
    with pytest.raises(
        RuntimeError, match=rf"^{named}\(.* in a world: it would leave virtual time for the real network"
    ):
        in_a_world(call)


def test_nor_do_jobs_of_threads_leave_a_world() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"^socket.connect"):
            await asyncio.to_thread(socket.socket().connect, NOBODY)

    with world(1) as loop:
        loop.run_until_complete(main())


def test_an_executor_of_threads_is_refused_though_its_threads_are_there() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        executor.submit(lambda: None).result()
        with pytest.raises(RuntimeError, match="an executor was given a job in a world"):
            in_a_world(lambda: executor.submit(held_by_value, "localhost"))
        executor.submit(lambda: None).result()


def test_a_runner_with_a_loop_of_its_own_is_refused() -> None:
    """As uvloop.run's, where a job of an executor sees no running loop."""
    real = asyncio.new_event_loop()

    async def nothing() -> None:
        """Not awaited."""

    def run_it() -> None:
        with asyncio.Runner(loop_factory=lambda: real) as runner:
            coroutine = nothing()
            try:
                runner.run(coroutine)
            finally:
                coroutine.close()

    async def main() -> None:
        with pytest.raises(RuntimeError, match="a second event loop in a world"):
            await asyncio.to_thread(run_it)

    with world(1) as loop:
        loop.run_until_complete(main())


def test_other_threads_go_where_they_like() -> None:
    inside, found = threading.Event(), []

    def progress_bar() -> None:
        inside.wait()
        found.append(socket.getaddrinfo("127.0.0.1", 80))

    thread = threading.Thread(target=progress_bar, daemon=True)
    thread.start()

    def show() -> None:
        inside.set()
        thread.join()

    in_a_world(show)
    assert found


def test_between_worlds_all_is_as_before() -> None:
    in_a_world(lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass
