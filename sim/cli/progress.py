"""How far a command has come."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def progress_bar(label: str, length: int) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, nothing in a pipe. What is yielded is told how much is done."""
    hidden = not sys.stderr.isatty()
    with click.progressbar(length=length, label=f"{label:<24}", file=sys.stderr, hidden=hidden) as bar:

        def tick(done: float) -> None:
            step = min(length, int(done)) - bar.pos
            if step > 0:
                bar.update(step)

        yield tick
