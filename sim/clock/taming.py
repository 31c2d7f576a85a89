"""Taming of what is global: the clocks and the sources of randomness of the whole process.

Replaces private names of CPython's `random`, `threading` and `uuid`: they hold on to what they took at import.
"""

import asyncio
import concurrent.futures
import functools
import gc
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from sim.clock.loop import Replacement, VirtualLoop
from sim.clock.nanoseconds import NS_PER_S
from sim.clock.way_out import no_way_out

_EPOCH_NS = 1_704_067_200 * NS_PER_S  # time.time() at virtual time 0: 2024-01-01, so that dates look like dates
_START_THREAD = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
_STREAM = 0x9E3779B97F4A7C15  # keeps the bytes of os.urandom apart from the global random's


@contextmanager
def tamed(loop: VirtualLoop, seed: int) -> Iterator[None]:
    """While a world runs: clocks show virtual time, and every global source of randomness is drawn from the seed.

    Tamed: `time.time`, `monotonic`, `perf_counter` and their `_ns` forms; `os.urandom` and with it `uuid4` and
    `secrets`; `uuid1`, `uuid6` and `uuid7`; the global `random` and unseeded `random.Random()`; numpy's global state.
    Garbage collection waits, since finalisers would run at moments that depend on earlier worlds.
    Refused with a RuntimeError: `time.sleep` (it would block virtual time), threads and what is submitted to an
    executor's, a second event loop, nested use, and the real network (see `sim.clock.way_out`).
    Not tamed, being C code out of reach: `datetime.now()`, `time.localtime()` without an argument.
    All is restored afterwards; only numpy's cached second normal is dropped.

    uuid4 and secrets are tamed at their root, so a `from uuid import uuid4` made earlier is tamed too; a
    `from time import time` is not.
    """
    from numpy.random import mtrand  # here, not at the top: it takes 0.1 s, and the command line must answer at once

    if isinstance(getattr(os.urandom, "__self__", None), _Entropy):
        raise RuntimeError("a world is running already; tamed() cannot be nested")
    generator: random.Random = random._inst  # what random.choice and the rest are bound to
    clocks = [(time, name, clock) for name, clock in clocks_of(loop).items()]
    replacements = (*clocks, *_randomness(seed, generator), *_refusals(), *loop.replacements())
    saved = [getattr(owner, name) for owner, name, _ in replacements]
    saved_random = generator.getstate()
    saved_bits = mtrand.get_bit_generator()
    collecting = gc.isenabled()
    try:
        gc.disable()
        for owner, name, value in replacements:
            setattr(owner, name, value)
        generator.seed(seed)
        mtrand.set_bit_generator(_bit_generator())
        mtrand.seed(seed % 2**32)
        with no_way_out():
            yield
    finally:
        for (owner, name, _), value in zip(replacements, saved, strict=True):
            setattr(owner, name, value)
        generator.setstate(saved_random)
        mtrand.set_bit_generator(saved_bits)
        if collecting:
            gc.enable()


def clocks_of(loop: VirtualLoop) -> dict[str, Callable[[], float]]:
    """Virtual time, by the names that the module `time` has for clocks."""
    return {
        "time": lambda: (_EPOCH_NS + loop.now_ns) / NS_PER_S,
        "time_ns": lambda: _EPOCH_NS + loop.now_ns,
        "monotonic": loop.time,
        "monotonic_ns": lambda: loop.now_ns,
        "perf_counter": loop.time,
        "perf_counter_ns": lambda: loop.now_ns,
    }


class _Entropy:
    """The bytes of os.urandom. The generator is made at the first call: most worlds never ask."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generator: random.Random | None = None

    def draw_bytes(self, size: int, /) -> bytes:
        if self._generator is None:
            self._generator = random.Random(self._seed ^ _STREAM)
        return self._generator.randbytes(size)


def _randomness(seed: int, generator: random.Random) -> tuple[Replacement, ...]:
    draw_bytes = _Entropy(seed).draw_bytes
    original_seed = random.Random.seed

    def seed_random(generator: random.Random, a: Any = None, version: int = 2) -> None:
        original_seed(generator, int.from_bytes(draw_bytes(32), "big") if a is None else a, version)

    return (
        (os, "urandom", draw_bytes),
        (random, "_urandom", draw_bytes),  # SystemRandom's, and so that of secrets
        (random, "seed", functools.partial(seed_random, generator)),
        (random.Random, "seed", seed_random),
        *_UUID,
    )


_UUID: tuple[Replacement, ...] = (
    (uuid, "_generate_time_safe", None),  # uuid1 then takes the time from time.time_ns
    (uuid, "_node", 0x02_00_00_00_00_01),  # the "network address" in it: locally administered, nobody's
    # The last time that each of uuid1, uuid6 and uuid7 has given; it gives none before it.
    *((uuid, name, 0) for name in vars(uuid) if name.startswith("_last_")),
)


@functools.cache
def _bit_generator() -> Any:
    """numpy's global generator while a world runs. Making one takes 80 µs, reseeding 1 µs: it is kept and reseeded."""
    from numpy.random import MT19937

    return MT19937(0)


def _refusals() -> tuple[Replacement, ...]:
    home = threading.get_ident()  # other threads, say a progress bar's, may sleep and start threads as they like
    original_sleep = time.sleep
    original_start = getattr(threading, _START_THREAD)

    def sleep(seconds: float, /) -> None:
        if threading.get_ident() == home:
            raise RuntimeError(f"time.sleep({seconds!r}) in a world: it would block virtual time; use asyncio.sleep")
        original_sleep(seconds)

    def start_thread(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == home:
            raise RuntimeError("a thread was started in a world, where no seed could reproduce it; use to_thread")
        return original_start(*args, **kwargs)

    def submit(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("an executor was given a job in a world, where no seed could reproduce it; use to_thread")

    def new_event_loop(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("a second event loop in a world: asyncio.run would wait in real time for virtual clocks")

    return (
        (time, "sleep", sleep),
        (threading, _START_THREAD, start_thread),
        (concurrent.futures.ThreadPoolExecutor, "submit", submit),
        (concurrent.futures.ProcessPoolExecutor, "submit", submit),
        (asyncio.Runner, "run", new_event_loop),  # uvloop's has loops of its own
        (asyncio, "new_event_loop", new_event_loop),
        (asyncio.events, "new_event_loop", new_event_loop),  # asyncio.run's
    )
