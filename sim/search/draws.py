"""Draws that go by the seed alone.

Hypothesis puts constants among its draws which it has read in the modules that are loaded, so that what else a process
has imported, or which test ran before, would change the worlds of a search.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis.internal.conjecture import providers

_READ = "_local_constants"
"""What Hypothesis has nothing public for: the constants that it has read."""


@contextmanager
def from_the_seed_alone() -> Iterator[None]:
    """Leaves those constants out meanwhile. Versions of Hypothesis that know none (before 6.131) need nothing."""
    constants: Any = getattr(providers, "Constants", None)
    provider: Any = providers.HypothesisProvider
    if constants is None or not hasattr(provider, _READ):
        yield
        return
    usual, cache = getattr(provider, _READ), providers.CONSTANTS_CACHE
    setattr(provider, _READ, constants())
    providers.CONSTANTS_CACHE = type(cache)(cache.max_size)
    try:
        yield
    finally:
        setattr(provider, _READ, usual)
        providers.CONSTANTS_CACHE = cache
