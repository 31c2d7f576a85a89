"""Without verl, or without what it imports, an error says which package is missing and how to get it in a clone."""

import importlib
import types

import pytest

from sim.sut.registry import SutError, load_sut


@pytest.fixture
def lacking(monkeypatch):
    """A verl whose modules cannot be imported for want of a package."""

    def make(package, only_below=""):
        real = importlib.import_module

        def lacks(name, *more):
            if name.startswith("verl") and name.startswith(only_below or "verl"):
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            return types.SimpleNamespace(__path__=[]) if name.startswith("verl") else real(name, *more)

        monkeypatch.setattr(importlib, "import_module", lacks)

    return make


def test_verl_itself(lacking):
    lacking("verl")
    with pytest.raises(SutError, match=r"needs the package verl, which is not installed: .*pip install '\.\[verl\]'"):
        load_sut("verl")


@pytest.mark.parametrize(("package", "below"), [("ray", ""), ("tensordict.nn", ""), ("fastapi", "verl.")])
def test_what_verl_imports(lacking, package, below):
    lacking(package, below)
    name = package.partition(".")[0]
    with pytest.raises(
        SutError, match=f"verl is installed, and the package {name}, which it imports, is not: in a clone"
    ):
        load_sut("verl")
