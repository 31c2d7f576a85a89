"""Warnings of the system under test, heard instead of printed."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Heard = Callable[[str, str], None]
"""Is told the logger's name and the text of each warning."""


class _Tap(logging.Handler):
    """One serves all worlds, since only one runs at a time and `logging` registers every handler for good."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: Heard | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.heard is not None:
            try:
                text = record.getMessage()
            except Exception:  # the arguments do not fit: `logging` would complain on the terminal and go on
                text = str(record.msg)
            self.heard(record.name, text)


_tap = _Tap()


@contextmanager
def warnings_heard(heard: Heard) -> Iterator[None]:
    """While it lasts, warnings and worse go to `heard` and nowhere else."""
    root = logging.getLogger()
    kept = root.handlers[:]
    root.handlers[:] = [_tap]
    _tap.heard = heard
    try:
        yield
    finally:
        _tap.heard = None
        root.handlers[:] = kept
