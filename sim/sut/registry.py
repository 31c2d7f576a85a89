"""SUT names and what they stand for."""

import importlib
import sys
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
    """The SUT of that name. Raises `SutError` that lists the known names, or says what cannot be imported."""
    if name == CLEAN:
        return Sut(CLEAN, CLEAN, planted_factory(Planted("")))
    prefix, _, rest = name.partition(":")
    if prefix == "reference":
        planted = PLANTED.get(rest)
        if planted is None:
            raise SutError(f"unknown SUT {name!r}; known are {', '.join(builtin_names())}, {_others()}")
        return Sut(name, name, planted_factory(planted), planted.server)
    if name in VERL_NAMES:
        from sim.sut import verl

        return verl.load(name)
    if prefix and rest:
        return _from_module(name, prefix, rest)
    raise SutError(f"unknown SUT {name!r}; known are {', '.join(builtin_names())}, {_others()}")


def _others() -> str:
    return f"{', '.join(VERL_NAMES)} (the installed package) and MODULE:FACTORY"


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
