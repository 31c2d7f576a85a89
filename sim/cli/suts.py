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
    """On what to show a case, if nobody says: the known-good client, unless a verdict is expected."""
    return suts_with_verdict(entry, policies)[0] if any(_named(entry)) else load_sut(CLEAN, policies)


def _named(entry: Entry) -> list[str]:
    """The SUTs with a verdict that can be loaded by their key: built-in ones if there are any."""
    known = [name for name in builtin_names() if name in entry.expected]
    # A find of one's own client names it; a package's key has a version and is left to --sut.
    return known or [key for key in entry.expected if "==" not in key]


def suts_with_verdict(entry: Entry, policies: Mapping[str, str]) -> list[Sut]:
    """The built-in SUTs that a kept case has a verdict for, those that violate something first."""
    known = sorted(_named(entry), key=lambda name: not entry.expected[name])
    return load_suts(known or DEMONSTRATION, policies)
