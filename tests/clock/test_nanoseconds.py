"""Seconds to whole nanoseconds."""

import pytest

from sim.clock import NS_PER_S, to_ns


@pytest.mark.parametrize(("seconds", "ns"), [(0, 0), (1, NS_PER_S), (1e-9, 1), (0.4e-9, 0), (0.1 + 0.2, 300_000_000)])
def test_to_ns_rounds_to_the_nearest(seconds: float, ns: int) -> None:
    assert to_ns(seconds) == ns


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), float("-inf")])
def test_to_ns_refuses_what_is_no_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="finite number of seconds"):
        to_ns(seconds)
