"""One digest of a little of everything, in every process."""

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import numpy as np

from sim.clock import RandomOrder
from tests.clock.runs import Log, race, race_under, world


async def everything(log: Log, changed: bool) -> None:
    """A little of everything whose order or value Python leaves open."""
    await race(log)
    names = {f"session-{n}" for n in range(50)}
    for name in sorted(names):
        await asyncio.sleep(random.choice((0, 0.25)))
        log.append((name, uuid4().hex, random.random(), np.random.randint(100), time.time()))
    crowd = {asyncio.create_task(asyncio.sleep(random.random(), name)) for name in sorted(names)}
    while crowd:
        done, crowd = await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
        log.append([(task.get_name(), task.result()) for task in done] + [task.get_name() for task in crowd])
    orphans = {asyncio.create_task(asyncio.Event().wait()) for _ in range(30)}
    log.append([task.get_name() for task in orphans] + [task.get_name() for task in asyncio.all_tasks()])
    if changed:
        log.append("one event more")


def digest(changed: bool = False) -> str:
    log: Log = []
    with world(12, RandomOrder(11)) as loop:
        loop.run_until_complete(everything(log, changed))
    log.append(loop.deviations)
    return hashlib.sha256(repr(log).encode()).hexdigest()


def test_one_digest_in_four_processes_with_four_hash_seeds_and_after_other_worlds() -> None:
    race_under(RandomOrder(1))  # other worlds ran before this one, and not in the other processes
    here = digest()
    root = Path(__file__).parents[2]
    program = "from tests.clock.test_digest import digest; print(digest())"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in (0, 1, 2, 4242)
    ]
    assert {child.communicate()[0].strip() for child in children} == {here}


def test_a_changed_event_changes_the_digest() -> None:
    assert digest() == digest() != digest(changed=True)
