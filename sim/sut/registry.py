"""SUT names and what they stand for."""

import dataclasses
import difflib
import textwrap
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from sim.registry import FROM_PLUGINS, PluginError, import_from_here, module_of_file, why_not_imported
from sim.sut.framework import Sut
from sim.sut.frameworks import FRAMEWORKS
from sim.sut.interface import Factory, SutError, declared_by
from sim.sut.reference.adapter import CLEAN, REFERENCE
from sim.sut.verl.adapter import VERL

__all__ = ["CLEAN", "builtin_names", "load_sut", "sut_of"]


def builtin_names() -> list[str]:
    """The built-in SUTs: the known-good one first."""
    return list(REFERENCE.suts)


_loaded: "weakref.WeakValueDictionary[int, Sut]" = weakref.WeakValueDictionary()


def load_sut(name: str, flags: Mapping[str, str] = MappingProxyType({})) -> Sut:
    """The SUT of that name, judged by these policies against its own. Raises `SutError`: the known names and the
    closest, or why it cannot be imported."""
    sut = dataclasses.replace(_load(name), flags=flags)
    _loaded[id(sut)] = sut
    return sut


def was_loaded(sut: Sut) -> bool:
    """Whether this very SUT was loaded by its name, so that another process can load it too."""
    return _loaded.get(id(sut)) is sut


def _load(name: str) -> Sut:
    prefix, _, rest = name.partition(":")
    framework = FRAMEWORKS.find(prefix)
    if framework is not None:
        if name not in framework.suts:
            raise _unknown(name)
        sut = framework.call("load", name)
        if not isinstance(sut, Sut):
            raise PluginError(f"framework {prefix!r}, load: it returned {sut!r} for {name}; a Sut is needed")
        return sut
    if prefix and rest:
        return _from_module(name, prefix, rest)
    raise _unknown(name)


def sut_of(name: str, factory: Factory) -> Sut:
    """A SUT of one's own factory, in verl's shape unless the factory's `rollcage_framework` names another. Raises
    `SutError` where that is not known."""
    shape = getattr(factory, "rollcage_framework", VERL.name)
    framework = FRAMEWORKS.find(shape)
    if framework is None:
        raise SutError(f"SUT {name!r}: {FRAMEWORKS.unknown(shape)}")
    return Sut(name, name, factory, framework, declared=declared_by(factory, f"the factory of SUT {name!r}"))


def _unknown(name: str) -> SutError:
    packages = [sut for framework in FRAMEWORKS.values() if framework is not REFERENCE for sut in framework.suts]
    known = {each.removeprefix("reference:"): each for each in (*builtin_names(), *packages)}
    close = [known[each] for each in difflib.get_close_matches(name.removeprefix("reference:"), known, n=1)]
    if name and Path(name).with_suffix(".py").is_file():
        close = [f"{module_of_file(name)}:FACTORY"]
    planted = textwrap.wrap(", ".join(builtin_names()[1:]), 96, break_on_hyphens=False)
    lines = [
        f"unknown SUT {name!r}" + (f"; did you mean {close[0]}?" if close else ""),
        f"  the known-good client: {CLEAN}",
        "  planted bugs:",
        *(f"    {line}" for line in planted),
        f"  the installed package: {', '.join(packages)}",
        "  your own: MODULE:FACTORY",
        f"  {FROM_PLUGINS}",
    ]
    return SutError("\n".join(lines))


def _from_module(name: str, module: str, attribute: str) -> Sut:
    try:
        found = import_from_here(module)
    except (Exception, SystemExit) as error:  # whatever the module's own code raises
        raise SutError(f"SUT {name!r}: the module {module!r} cannot be imported: {why_not_imported(error)}") from error
    factory = getattr(found, attribute, None)
    if not callable(factory):
        has = "is not callable" if hasattr(found, attribute) else "does not exist"
        callables = [each for each in dir(found) if each[0] != "_" and callable(getattr(found, each))]
        close = difflib.get_close_matches(attribute, callables, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise SutError(f"SUT {name!r}: {attribute!r} in {module!r} {has}{hint}; a FACTORY(context) is needed")
    return sut_of(name, factory)
