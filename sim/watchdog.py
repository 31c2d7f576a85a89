"""Ends a world that stands still in real time: a client that computes for ever, or waits for something real.

Virtual time cannot see it, since the event loop never gets control back. A timer signal does, in the main thread of
systems that have one; elsewhere nothing watches.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

MOST_REAL_S = 30.0
"""Real time that one world may take. Worlds take milliseconds."""

_AGAIN_S = 1.0


class Blocked(KeyboardInterrupt):
    """Passes through asyncio as an interrupt does, which an ordinary exception would not."""


@contextmanager
def watched() -> Iterator[None]:
    """Raises `Blocked`, with the place, when the body takes more than `MOST_REAL_S`. A debugger switches it off."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    if signal.getitimer(signal.ITIMER_REAL)[0]:  # someone else's timer, say a test's own limit
        yield
        return
    seconds = MOST_REAL_S

    def blocked(_number: int, frame: FrameType | None) -> None:
        if sys.gettrace() is None:
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
