"""SUT names and what they stand for."""

import difflib
import importlib
import sys
import textwrap
from pathlib import Path

from sim.sut.interface import Sut, SutError
from sim.sut.planted import PLANTED, Planted
from sim.sut.planted import factory as planted_factory

CLEAN = "reference:pinned"
"""The known-good client; every other built-in is a planted bug."""

VERL_NAMES = ("verl", "verl:plain")


def builtin_names() -> list[str]:
    """The built-in SUTs: the known-good one first."""
    return [CLEAN, *(f"reference:{name}" for name in PLANTED)]


def load_sut(name: str) -> Sut:
    """The SUT of that name. Raises `SutError`: the known names and the closest, or why it cannot be imported."""
    if name == CLEAN:
        return Sut(CLEAN, CLEAN, planted_factory(Planted("")))
    prefix, _, rest = name.partition(":")
    if prefix == "reference":
        planted = PLANTED.get(rest)
        if planted is None:
            raise _unknown(name)
        return Sut(name, name, planted_factory(planted), planted.server)
    if name in VERL_NAMES:
        from sim.sut import verl

        return verl.load(name)
    if prefix and rest:
        return _from_module(name, prefix, rest)
    raise _unknown(name)


def _unknown(name: str) -> SutError:
    known = {each.removeprefix("reference:"): each for each in (*builtin_names(), *VERL_NAMES)}
    close = difflib.get_close_matches(name.removeprefix("reference:"), known, n=1)
    planted = textwrap.wrap(", ".join(builtin_names()[1:]), 96, break_on_hyphens=False)
    lines = [
        f"unknown SUT {name!r}" + (f"; did you mean {known[close[0]]}?" if close else ""),
        f"  the known-good client: {CLEAN}",
        "  planted bugs:",
        *(f"    {line}" for line in planted),
        f"  the installed package: {', '.join(VERL_NAMES)}",
        "  your own: MODULE:FACTORY",
    ]
    return SutError("\n".join(lines))


def _from_module(name: str, module: str, attribute: str) -> Sut:
    here = str(Path.cwd())
    if here not in sys.path:
        # As `python -m` does: a factory in the working directory can be named without installing it.
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever the module's own code raises
        raise SutError(
            f"SUT {name!r}: the module {module!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    factory = getattr(found, attribute, None)
    if not callable(factory):
        has = "is not callable" if hasattr(found, attribute) else "does not exist"
        raise SutError(f"SUT {name!r}: {attribute!r} in {module!r} {has}; a FACTORY(context) is needed")
    return Sut(name, name, factory)
