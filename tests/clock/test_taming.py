"""Clocks and randomness in a world, and all as before after it."""

import asyncio
import gc
import os
import random
import secrets
import threading
import time
import uuid
from uuid import uuid4

import numpy as np
import pytest

from sim.clock import tamed
from tests.clock.runs import Log, world


def draws() -> Log:
    """One of everything that a world must not leave to chance."""
    return [
        (time.time(), time.time_ns(), time.monotonic(), time.perf_counter_ns()),
        (uuid4().hex, *(getattr(uuid, name)().hex for name in ("uuid1", "uuid6", "uuid7") if hasattr(uuid, name))),
        (os.urandom(4), secrets.token_hex(4), secrets.randbelow(1000)),
        (random.random(), random.choice(range(1000)), random.gauss(0, 1), random.Random().random()),
        (random.SystemRandom().random(), np.random.normal(), np.random.randint(1000), np.random.default_rng().random()),
    ]


def draws_in_a_world(seed: int, sleep_s: float = 1) -> Log:
    async def main() -> Log:
        await asyncio.sleep(sleep_s)
        return draws()

    with world(seed) as loop:
        return loop.run_until_complete(main())


def test_a_world_draws_everything_from_its_seed() -> None:
    first = draws_in_a_world(1)
    draws()  # what happens between worlds does not matter
    assert draws_in_a_world(1) == first
    for one, other in zip(first[1:], draws_in_a_world(2)[1:], strict=True):
        assert not set(one) & set(other)


def test_every_clock_shows_virtual_time() -> None:
    (wall, wall_ns, monotonic, perf_ns), *_ = draws_in_a_world(1, sleep_s=2.5)
    assert (monotonic, perf_ns) == (2.5, 2_500_000_000)
    assert wall == 1704067202.5
    assert wall_ns == 1704067202_500_000_000


def test_other_threads_sleep_as_they_like() -> None:
    inside, done = threading.Event(), []

    def progress_bar() -> None:
        inside.wait()
        time.sleep(0)
        done.append("slept")

    thread = threading.Thread(target=progress_bar)
    thread.start()
    with world(1):
        inside.set()
        thread.join()
    assert done == ["slept"]


def test_uuid1_does_not_know_this_machine() -> None:
    with world(1):
        assert uuid.uuid1().node == 0x02_00_00_00_00_01


def test_random_seed_and_numpy_seed_work_inside() -> None:
    expected = random.Random(5).random()
    with world(1):
        random.seed(5)
        assert random.random() == expected
        random.seed()
        unseeded = random.random()
        np.random.seed(5)
        assert np.random.randint(10**9) == np.random.RandomState(5).randint(10**9)
    with world(1):
        random.seed()
        assert random.random() == unseeded


def test_what_would_escape_virtual_time_is_refused() -> None:
    with world(1) as loop:
        with pytest.raises(RuntimeError, match=r"time\.sleep\(3\) in a world: .* use asyncio\.sleep"):
            time.sleep(3)
        with pytest.raises(RuntimeError, match="a thread was started in a world"):
            threading.Thread(target=print).start()
        main = asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="a second event loop in a world"):
            asyncio.run(main)
        main.close()
        with pytest.raises(RuntimeError, match="cannot be nested"), tamed(loop, 2):
            pass
        assert time.time() == 1704067200  # still tamed after the refused nesting


def test_numpys_second_normal_does_not_leak_out_of_a_world() -> None:
    np.random.seed(1)
    expected = np.random.normal(size=3).tolist()
    np.random.seed(1)
    with world(1):
        np.random.normal()  # numpy draws normals in pairs and keeps the second
    assert np.random.normal(size=3).tolist() == expected


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_all_is_restored_whatever_happens_inside(error: type[BaseException] | None) -> None:
    modules = (time, os, random, random.Random, uuid, threading, asyncio, asyncio.events, secrets)
    uuid.uuid1()  # so that its cached node is known
    before = [dict(vars(module)) for module in modules]
    states = random.getstate(), np.random.get_state()[1].tolist()
    try:
        with world(3):
            draws()
            assert not gc.isenabled()
            if error:
                raise error
    except (ValueError, KeyboardInterrupt):
        assert error
    assert [dict(vars(module)) for module in modules] == before
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    assert gc.isenabled()
