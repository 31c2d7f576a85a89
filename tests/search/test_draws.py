"""A search is the same whatever else its process has loaded."""

import sys

import hypothesis
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from sim.search.draws import from_the_seed_alone

MODULE = "ODD = [" + ", ".join(str(771_000 + 7 * number) for number in range(400)) + "]\n"


def drawn():
    """The integers that a run with a fixed seed draws."""
    seen = []

    @hypothesis.seed(3)
    @hypothesis.settings(max_examples=300, database=None, phases=[hypothesis.Phase.generate])
    @hypothesis.given(st.integers(0, 10_000_000))
    def look(number):
        seen.append(number)

    look()
    return seen


def test_a_module_with_constants_of_its_own_changes_nothing(tmp_path, monkeypatch):
    with from_the_seed_alone():
        before = drawn()
    (tmp_path / "odd_constants.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import odd_constants

    try:
        assert not set(drawn()).isdisjoint(odd_constants.ODD), "Hypothesis reads them no longer: this file can go"
        with from_the_seed_alone():
            assert drawn() == before
    finally:
        del sys.modules["odd_constants"]


def test_outside_it_all_is_as_it_was():
    provider, cache = providers.HypothesisProvider._local_constants, providers.CONSTANTS_CACHE
    with from_the_seed_alone():
        assert providers.CONSTANTS_CACHE is not cache
    assert (providers.HypothesisProvider._local_constants, providers.CONSTANTS_CACHE) == (provider, cache)
