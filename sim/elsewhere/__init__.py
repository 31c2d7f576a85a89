"""A second process in which a case is run once more: with other hashes of strings, and nothing left of earlier worlds.

A set of names has another order there, and a client that warns once a process has not warned yet. The process starts
at the first request for it, or ahead of that with `begin`, and serves all SUTs that can be loaded by their names. It
forks for each run, so that no run finds what another left. Where it cannot be had, there is nothing to say.
"""

import atexit
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from typing import IO, Any, Literal

import msgspec

from sim.case import Case
from sim.registry import plugins_loaded
from sim.sut.framework import Sut
from sim.sut.registry import was_loaded

_PATIENCE_S = 60.0
"""A process that takes longer, to start or for a run, is given up for good."""

_SEEDS: dict[str, str] = {"replica-0": "2", "replica-1": "3"}
"""By what a set of these two has first here: a PYTHONHASHSEED under which CPython puts the other one first."""


class Ask(msgspec.Struct, frozen=True):
    """What is to be run (no case: the SUT is to be loaded), judged by which policies against the SUT's own, and whether
    all that happens is wanted in words."""

    sut: str
    case: Case | None = None
    flags: dict[str, str] = {}
    events: bool = False


class RanElsewhere(msgspec.Struct, frozen=True):
    """`digest`: of what the SUT did, its warnings left out. `violations`: (invariant, message). `events`: in words, if
    they were asked for. `failed`: why there is no answer."""

    digest: str = ""
    violations: list[tuple[str, str]] = []
    events: list[str] = []
    failed: str = ""


class Hello(msgspec.Struct, frozen=True):
    """What the process is told first: where modules are found, and which plugins to import."""

    path: list[str]
    plugins: list[str]


class _Process:
    def __init__(self) -> None:
        first: str = next(iter({"replica-0", "replica-1"}))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sim.elsewhere"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": _SEEDS[first], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._buffer = b""
        self._loading: list[str] = [""]
        """What it has not said yet that it has loaded, in its order; the first is rollcage itself."""
        self._asked_for: set[str] = set()
        self._send(Hello([*sys.path], plugins_loaded()))

    def load(self, sut: str) -> None:
        """Has it load a SUT, without waiting for that."""
        if sut not in self._asked_for:
            self._asked_for.add(sut)
            self._loading.append(sut)
            self._send(Ask(sut))

    def has_loaded(self, sut: str, timeout_s: float = 0.0) -> bool:
        """Whether it can run a SUT at once, or in so much time."""
        while self._loading and (sut in self._loading or sut not in self._asked_for):
            if self._line(timeout_s) is None:
                return False
            self._loading.pop(0)
        return sut in self._asked_for

    def ask(self, question: Ask) -> RanElsewhere | None:
        """Its answer; None where it has none, and never will."""
        deadline = time.perf_counter() + _PATIENCE_S
        self.load(question.sut)
        while self._loading:
            if not self.has_loaded(self._loading[-1], _PATIENCE_S):
                return None
        if not self._send(question):
            return None
        line = self._line(deadline - time.perf_counter())
        return None if line is None else msgspec.json.decode(line, type=RanElsewhere)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # something was still to be written
                    pipe.close()

    def _send(self, message: Ask | Hello) -> bool:
        stdin: IO[Any] | None = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(msgspec.json.encode(message) + b"\n")
            stdin.flush()
        except OSError:
            return False
        return True

    def _line(self, timeout_s: float) -> bytes | None:
        """The next line that it writes; None: it writes none in that time."""
        stdout: IO[Any] | None = self._process.stdout
        assert stdout is not None
        deadline = time.perf_counter() + timeout_s
        while b"\n" not in self._buffer:
            left_s = max(0.0, deadline - time.perf_counter())
            if not select.select([stdout], [], [], left_s)[0]:
                return None
            read = os.read(stdout.fileno(), 1 << 20)
            if not read:
                return None
            self._buffer += read
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line


_process: _Process | Literal["given up"] | None = None


def can_run(sut: Sut, case: Case) -> bool:
    """Whether it makes sense to ask: the SUT is what its name stands for, and the case is not a large one."""
    return hasattr(os, "fork") and _process != "given up" and case.repeat == 1 and was_loaded(sut)


def begin(sut: Sut | None = None) -> None:
    """Starts the process and has it load a SUT, so that it is ready when it is asked; for one who will ask."""
    global _process
    if _process is None and hasattr(os, "fork"):
        try:
            _process = _Process()
        except OSError:
            _process = "given up"
        else:
            atexit.register(end)
    if isinstance(_process, _Process) and sut is not None and was_loaded(sut):
        _process.load(sut.name)


def is_ready(sut: Sut) -> bool:
    """Whether the process, begun before, runs a SUT without being waited for."""
    return isinstance(_process, _Process) and _process.has_loaded(sut.name)


def run(sut: Sut, case: Case, *, events: bool = False) -> RanElsewhere | None:
    """Runs a case there; None where that cannot be done."""
    global _process
    if not can_run(sut, case):
        return None
    begin()
    if not isinstance(_process, _Process):
        return None
    answer = _process.ask(Ask(sut.name, case, dict(sut.flags), events))
    if answer is None:
        _process.end()
        _process = "given up"
    return None if answer is None or answer.failed else answer


def end() -> None:
    """Ends the process; the next request starts another."""
    global _process
    if isinstance(_process, _Process):
        _process.end()
    _process = None
