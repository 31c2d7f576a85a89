"""Engines for as long as they are needed, and many cases replayed on them: for pytest and for the command line."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gpu_checks.engines import (
    HOW_TO_INSTALL,
    EngineSettings,
    RealEngines,
    is_installed,
    prepare_environment,
    tiny_model,
)
from gpu_checks.real_world import DEFAULT_SPEED, RealLoop
from gpu_checks.replay import RealReplay, replay
from sim.case import Case
from sim.sut.framework import Sut


class VllmUnusable(RuntimeError):
    """There is no vLLM, or it does not start: the message says what to install, or why."""


@contextmanager
def engine_session(settings: EngineSettings | None = None, speed: float = DEFAULT_SPEED) -> Iterator[RealEngines]:
    """Engines of which the first one is up. Raises `VllmUnusable`."""
    if not is_installed():
        raise VllmUnusable(HOW_TO_INSTALL)
    loop = RealLoop(speed)
    try:
        with tiny_model() as folder:
            engines = RealEngines(settings or EngineSettings(), folder, loop)
            try:
                _start(engines)
                yield engines
            finally:
                engines.close()
    finally:
        loop.close()


def _start(engines: RealEngines) -> None:
    try:
        prepare_environment()
        engines.take(1)
    except Exception as error:
        raise VllmUnusable(f"vLLM is installed and does not start: {type(error).__name__}: {error}") from error


class Job(NamedTuple):
    """A case to replay with a SUT, and what it keeps as violated there, if anything."""

    name: str
    case: Case
    sut: Sut
    kept: list[str] | None = None


def replay_all(
    jobs: Iterable[Job], engines: RealEngines, tell: Callable[[RealReplay], None], *, full_size: bool = True
) -> list[RealReplay]:
    """Replays the jobs one after the other; `tell` hears of each as it is done."""
    replays = []
    for job in jobs:
        replays.append(replay(job.name, job.case, job.sut, engines, job.kept, full_size=full_size))
        tell(replays[-1])
    return replays
