"""Ends a world that stands still in real time: a client that computes for ever, or waits for something real.

Virtual time cannot see it, since the event loop never gets control back. A timer signal does, in the main thread of
systems that have one; elsewhere nothing watches.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

MOST_REAL_S = 30.0
"""Real time that one world may take. Worlds take milliseconds; a large one has as much for each sign of life."""

_AGAIN_S = 1.0


class Blocked(KeyboardInterrupt):
    """Passes through asyncio as an interrupt does, which an ordinary exception would not."""


@contextmanager
def watched(signs_of_life: Callable[[], int] | None = None) -> Iterator[None]:
    """Raises `Blocked`, with the place, when the body takes more than `MOST_REAL_S`; or, where it gives signs of life,
    that long without one: the number that it shows has not changed. A debugger switches it off."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    if signal.getitimer(signal.ITIMER_REAL)[0]:  # someone else's timer, say a test's own limit
        yield
        return
    seconds = MOST_REAL_S
    seen: list[int] = []

    def blocked(_number: int, frame: FrameType | None) -> None:
        if signs_of_life is not None and (shown := [signs_of_life()]) != seen:
            seen[:] = shown
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
        elif sys.gettrace() is None:
            code = frame.f_code if frame is not None else None
            where = f" in {code.co_qualname} ({code.co_filename}:{frame.f_lineno})" if frame and code else ""
            raise Blocked(f"did not let go for {seconds:g} s of real time{where}")

    before = signal.signal(signal.SIGALRM, blocked)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
