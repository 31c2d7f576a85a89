"""Plugins are loaded for one test, and forgotten after it."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from sim.dialects import DIALECTS
from sim.faults import FAULTS
from sim.invariants.table import INVARIANTS
from sim.registry import load_plugin
from sim.search import campaign
from sim.sut.frameworks import FRAMEWORKS

TOYS = Path(__file__).parent


@pytest.fixture(autouse=True)
def short_shrinks(monkeypatch):
    """What Hypothesis leaves is taken apart all the same."""
    monkeypatch.setattr(campaign, "MOST_SHRINK_WORLDS", 250)


@pytest.fixture
def forgetful(monkeypatch):
    """Whatever is registered meanwhile is not known afterwards. The toys can be imported, each time anew."""
    monkeypatch.syspath_prepend(TOYS)
    with ExitStack() as stack:
        for registry in (DIALECTS, FAULTS, FRAMEWORKS, INVARIANTS):
            stack.enter_context(registry.forgetting())
        yield
    for name in [name for name in sys.modules if name.startswith("toy_")]:
        del sys.modules[name]


@pytest.fixture
def plugin(forgetful):
    """Loads a plugin, and returns its module."""

    def load(name):
        load_plugin(name)
        return sys.modules[name]

    return load
