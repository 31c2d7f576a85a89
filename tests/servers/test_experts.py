"""Routed experts: N − 1 rows for N tokens, each of which says its position and the weights that read it."""

import pytest

from sim.case import Budget, Case, ServerSettings, Session
from sim.faults import AfterTokens, WeightUpdate
from sim.servers.experts import routed_experts
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import sut_of
from sim.world import run_world


def test_a_row_for_each_token_but_the_last():
    rows = routed_experts("list", 2, [(2, 2, 0), (4, 1, 3)])
    assert rows == [[[0, 0]], [[1, 0]], [[2, 0]], [[3, 3]]]


def test_none_where_nothing_is_asked_for_or_decoded():
    assert routed_experts("none", 2, [(2, 2, 0)]) is None
    assert routed_experts("list", 2, []) is None


@pytest.mark.parametrize("container", ["list", "numpy", "torch"])
def test_answers_bring_them_in_the_container_that_the_case_names(container):
    if container != "list":
        pytest.importorskip(container)
    seen = []

    class Keeping(PinnedClient):
        def merge(self, final, output):
            seen.append(output.routed_experts)
            super().merge(final, output)

    server = ServerSettings(routed_experts=container)
    case = Case(Budget(4, 6), (Session(2),), (WeightUpdate(AfterTokens(0, 3)),), server=server)
    run_world(case, sut_of("keeping", lambda context: Keeping(context.config, context.balancer)))
    first, second = (rows if container == "list" else rows.tolist() for rows in seen)
    assert first == [[[position, 0]] for position in range(2 + 3 - 1)]
    assert second == [[[position, 1]] for position in range(2 + 6 - 1)]
    if container != "list":
        assert seen[0].shape == (4, 1, 2)


def test_none_unless_the_case_says_so():
    assert ServerSettings().routed_experts == "none"
