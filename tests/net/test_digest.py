"""A world with a network is the same in every process."""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.clock import Fifo, Order, RandomOrder
from sim.net import Line, StreamNetwork
from tests.net.runs import now_s, run

for package in ("aiohttp", "httpx", "uvicorn"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra http)")

from tests.net.http_parties import ask_aiohttp, ask_httpx, serve_aiohttp, serve_uvicorn  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
SCRIPT = "from tests.net.test_digest import *\nfor order in (Fifo(), RandomOrder(1)): print(digest(order))"


def digest(order: Order) -> str:
    """Of a world in which each of the clients calls each of the servers, with faults."""

    async def main(network: StreamNetwork) -> list[Any]:
        log: list[Any] = []
        await serve_aiohttp("replica-0")
        await serve_uvicorn("replica-1")

        async def call(number: int, ask: Callable[[str], Any], host: str) -> None:
            await asyncio.sleep(number % 3)
            try:
                async with asyncio.timeout(4):
                    log.append((now_s(), number, await ask(host)))
            except Exception as error:
                log.append((now_s(), number, type(error).__name__))

        async def trouble() -> None:
            network.cut_answer("replica-0", 100)
            await asyncio.sleep(1.5)
            log.append(network.reset("replica-1"))
            network.go_dark("replica-0")
            await asyncio.sleep(1)
            network.light_up("replica-0")

        async with asyncio.TaskGroup() as group:
            group.create_task(trouble())
            for number in range(24):
                ask = (ask_aiohttp, ask_httpx)[number % 2]
                group.create_task(call(number, ask, f"replica-{number // 2 % 2}"))
        loop: Any = asyncio.get_running_loop()
        return [*log, *network.open_connections, loop.steps, loop.deviations]

    log = run(main, Line(latency_s=0.01, bytes_per_s=1e6), order)
    return hashlib.sha256(repr(log).encode()).hexdigest()


def test_a_world_is_the_same_in_every_process_and_under_every_hash_seed() -> None:
    found = [digest(order) for order in (Fifo(), RandomOrder(1))]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("0", "1", "77")
    ]
    for process in processes:
        assert process.communicate()[0].split() == found
    assert found[0] != found[1]
