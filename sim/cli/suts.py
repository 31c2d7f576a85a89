"""Which SUTs a command is about, and how far it has come."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import click

from sim.corpus import Entry
from sim.sut.interface import Sut
from sim.sut.registry import CLEAN, builtin_names, load_sut

DEMONSTRATION = ("reference:deferred", CLEAN)
"""The known-bad client and the known-good one."""


def load_suts(names: Iterable[str]) -> list[Sut]:
    return [load_sut(name) for name in names]


def suts_with_verdict(entry: Entry) -> list[Sut]:
    """The built-in SUTs that a kept case has a verdict for, those that violate something first."""
    known = [name for name in builtin_names() if name in entry.expected]
    if not known:
        # A find of one's own client names it; a package's key has a version and is left to --sut.
        known = [key for key in entry.expected if "==" not in key]
    known.sort(key=lambda name: not entry.expected[name])
    return load_suts(known or DEMONSTRATION)


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


def indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
