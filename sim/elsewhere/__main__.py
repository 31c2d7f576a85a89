"""The second process: reads what is to be run, a line each, and forks for every run."""

import gc
import os
import sys
from contextlib import suppress
from dataclasses import replace

import msgspec

from sim.case import Budget, Case, Session
from sim.elsewhere import Ask, Hello, RanElsewhere
from sim.invariants.harness import deeds, digest_of_deeds
from sim.invariants.judging import judge
from sim.registry import RegistrationError, load_plugin
from sim.sut.framework import Sut
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world


def _answer(sut: Sut, case: Case, events: bool) -> RanElsewhere:
    try:
        trace = run_world(case, sut)
        violations = [(each.invariant, each.message) for each in judge(case, trace)]
        return RanElsewhere(
            digest_of_deeds(trace), violations, [repr(event) for event in deeds(trace)] if events else []
        )
    except Exception as error:
        return RanElsewhere(failed=repr(error))


def _write(to: int, answer: RanElsewhere | None) -> None:
    left = (b"{}" if answer is None else msgspec.json.encode(answer)) + b"\n"
    while left:
        left = left[os.write(to, left) :]


def main() -> None:
    """Until its input ends."""
    out = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # what a SUT prints is no answer
    hello = msgspec.json.decode(sys.stdin.buffer.readline(), type=Hello)
    sys.path[:] = hello.path
    for plugin in hello.plugins:
        with suppress(RegistrationError):  # it may be gone by now; what needs it says so
            load_plugin(plugin)
    suts: dict[str, Sut] = {}
    run_world(Case(Budget(1, 1), (Session(1),)), load_sut(CLEAN))  # imports what worlds import late, once for all forks
    gc.collect()
    gc.freeze()
    _write(out, None)
    for line in sys.stdin.buffer:
        try:
            ask = msgspec.json.decode(line, type=Ask)
            if ask.sut not in suts:
                suts[ask.sut] = load_sut(ask.sut)
        except Exception as error:
            _write(out, RanElsewhere(failed=repr(error)))
            continue
        if ask.case is None:
            _write(out, None)
            continue
        child = os.fork()
        if not child:
            _write(out, _answer(replace(suts[ask.sut], flags=ask.flags), ask.case, ask.events))
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            _write(out, RanElsewhere(failed="the run died"))


if __name__ == "__main__":
    main()
