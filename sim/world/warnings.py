"""Warnings of the system under test, heard instead of printed."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Heard = Callable[[str, str], None]
"""Is told the logger's name and the text of each warning."""

_NOT_FOR_USERS = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning, BytesWarning)
"""Python does not show them unless it is asked to."""

_BY_THE_COLLECTOR = r"coroutine .* was never awaited"
"""Said when an object is freed, whenever that is."""

_NOBODY = logging.NullHandler()


@contextmanager
def warnings_heard(heard: Heard) -> Iterator[None]:
    """While it lasts, warnings and worse go to `heard` and nowhere else, whatever loggers they come from and however
    `logging` is set up meanwhile; and so do those of the module `warnings`, as from the logger `py.warnings`, each time
    that they are raised and not once a process. What was set up before is in force afterwards."""
    root, original = logging.getLogger(), logging.Logger.callHandlers
    kept = root.handlers[:], root.level, root.manager.disable
    root.handlers[:] = [_NOBODY]

    def hear(_logger: logging.Logger, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            try:
                text = record.getMessage()
            except Exception:  # the arguments do not fit: `logging` would complain on the terminal and go on
                text = str(record.msg)
            heard(record.name, text)

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        heard("py.warnings", str(message))

    setattr(logging.Logger, "callHandlers", hear)  # noqa: B010  # a method that is assigned to is a type error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            for category in _NOT_FOR_USERS:
                warnings.simplefilter("ignore", category)
            warnings.filterwarnings("ignore", _BY_THE_COLLECTOR, RuntimeWarning)
            warnings.showwarning = show
            yield
    finally:
        setattr(logging.Logger, "callHandlers", original)  # noqa: B010
        root.handlers[:], level, root.manager.disable = kept
        root.setLevel(level)
