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
"""Real time that the body of `watched` may take, or, where it shows its progress, may go without any."""

_AGAIN_S = 1.0  # after which a body that has swallowed one `Blocked` gets another


class Blocked(KeyboardInterrupt):
    """Says where the body stood. It passes through asyncio as an interrupt does, which an Exception would not."""


@contextmanager
def watched(progress: Callable[[], int] | None = None) -> Iterator[None]:
    """Raises `Blocked` in the body once it has taken more than `MOST_REAL_S`. `progress` returns a number that changes
    while the body gets on: it then has that long again. Nothing is raised under a debugger, or while somebody else, say
    a test's own limit, has a timer signal set."""
    if (
        threading.current_thread() is not threading.main_thread()
        or not hasattr(signal, "setitimer")
        or signal.getitimer(signal.ITIMER_REAL)[0]
    ):
        yield
        return
    limit_s = MOST_REAL_S
    seen: int | None = None

    def on_alarm(_number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if progress is not None and (now := progress()) != seen:
            seen = now
            signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
        elif sys.gettrace() is None:
            where = f" in {frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})" if frame else ""
            raise Blocked(f"did not let go for {limit_s:g} s of real time{where}")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
