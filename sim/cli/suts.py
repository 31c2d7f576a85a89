"""Which SUTs a command is about."""

from collections.abc import Iterable, Mapping

from sim.corpus import Entry
from sim.sut.framework import Sut
from sim.sut.registry import CLEAN, builtin_names, load_sut

DEMONSTRATION = ("reference:deferred", CLEAN)
"""The known-bad client and the known-good one."""


def load_suts(names: Iterable[str], policies: Mapping[str, str]) -> list[Sut]:
    """Each once."""
    return [load_sut(name, policies) for name in dict.fromkeys(names)]


def sut_to_show(entry: Entry, policies: Mapping[str, str]) -> Sut:
    """On what to show a case, if nobody says: the known-good client, unless a built-in one has a verdict."""
    return suts_with_verdict(entry, policies)[0] if any(_built_in(entry)) else load_sut(CLEAN, policies)


def _built_in(entry: Entry) -> list[str]:
    return [name for name in builtin_names() if name in entry.expected]


def suts_with_verdict(entry: Entry, policies: Mapping[str, str]) -> list[Sut]:
    """The built-in SUTs that a kept case has a verdict for, those that violate something first."""
    known = sorted(_built_in(entry), key=lambda name: not entry.numbers(name))
    return load_suts(known or DEMONSTRATION, policies)


def foreign_names(entry: Entry) -> list[str]:
    """The SUTs of one's own that a kept case has a verdict for, where no built-in one has: a file's word imports
    nothing, so that they are run only where the command line names them. A package's key has a version, and is left to
    `--sut` as well."""
    return [] if _built_in(entry) else [key for key in entry.expected if ":" in key and "==" not in key]
