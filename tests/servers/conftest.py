"""Benches that are put away after the test."""

import pytest

from tests.servers.bench import Bench


@pytest.fixture
def bench():
    benches = []

    def make(*args, **kwargs):
        benches.append(Bench(*args, **kwargs))
        return benches[-1]

    yield make
    for each in benches:
        each.loop.close()
