"""The same verdicts in two runs in a row, and on a machine that is busy with something else."""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_checks.cases import DEFERRED, PINNED, overrun, own_cases
from gpu_checks.engines import RealEngines
from gpu_checks.replay import RealReplay, replay
from sim.sut.registry import load_sut

CHOSEN = (("overrun-16", DEFERRED), ("few-tokens", DEFERRED), ("no-gate", PINNED))


def verdicts(engines: RealEngines) -> list[tuple[object, ...]]:
    """What must not change: the verdict, the violations, and the total, none of which a machine's speed decides."""
    cases = {kept.name: kept.case for kept in own_cases()} | {"overrun-16": overrun(16)}
    results: list[RealReplay] = [replay(name, cases[name], load_sut(sut), engines) for name, sut in CHOSEN]
    return [(each.case, each.sut, each.verdict, each.detail, each.violated, each.decoded_tokens) for each in results]


def _burn() -> None:
    while os.getppid() == _parent:
        sum(range(10_000))


_parent = os.getpid()


@contextmanager
def busy_machine() -> Iterator[None]:
    """A process more than there are cores, all of them running."""
    context = multiprocessing.get_context("fork")
    burners = [context.Process(target=_burn, daemon=True) for _ in range((os.cpu_count() or 1) + 1)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def test_twice_and_under_load(engines: RealEngines) -> None:
    first = verdicts(engines)
    assert {verdict for _, _, verdict, *_ in first} == {"reproduced"}, first
    assert verdicts(engines) == first
    with busy_machine():
        assert verdicts(engines) == first
