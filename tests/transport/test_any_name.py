"""A handle goes along wherever it is put, and a balancer's methods may have any name."""

import copy
import dataclasses
import keyword

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.case import Budget, Case, Session
from sim.invariants.judging import judge
from sim.sut.reference.client import PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.transport.copies import copied
from sim.transport.handles import Handle
from sim.world import run_world

CASE = Case(Budget(4, 10), (Session(2), Session(2)), replicas=2)
HANDLES = [name for name in dir(Handle("x", object(), lambda _: None)) if not name.startswith("__")]
"""What a handle has of its own."""


@dataclasses.dataclass
class Box:
    inside: object


NESTS = [
    lambda x: Box(x),
    lambda x: [x],
    lambda x: {"key": x},
    lambda x: (x, 1),
    lambda x: Box([{"key": (x,)}]),
    lambda x: {x},
]


def innermost(nest):
    """What is no container, however deep."""
    while True:
        if isinstance(nest, Handle):
            return nest
        if isinstance(nest, Box):
            nest = nest.inside
        elif isinstance(nest, dict):
            (nest,) = nest.values()
        else:
            nest = next(iter(nest))


@given(nest=st.sampled_from(NESTS), outer=st.sampled_from(NESTS[:4]))
def test_a_copy_of_whatever_holds_a_handle_holds_that_handle(nest, outer):
    handle = Handle("server", object(), lambda _: None)
    assert innermost(copied(outer(nest(handle)))) is handle
    assert innermost(copy.deepcopy(nest(handle))) is handle


@pytest.mark.parametrize("nest", NESTS)
def test_a_balancer_may_be_sent_a_handle_in_anything(nest):
    class Keeping(LeastLoadedBalancer):
        def __init__(self, servers):
            super().__init__(servers)

        def keep(self, what):
            assert innermost(what) is not None
            return

    class Sending(PinnedClient):
        async def acquire(self, request_id):
            server_id, server = await super().acquire(request_id)
            await self.balancer.keep.remote(nest(server))
            return server_id, server

    sut = sut_of("sending", lambda context: Sending(context.config, context.make_balancer(Keeping)))
    trace = run_world(CASE, sut)
    assert judge(CASE, trace) == []
    assert {turn.ended.outcome for _, turn in trace.ledger.turns()} == {"ok"}


names = st.from_regex(r"[a-z][a-z_]{0,12}", fullmatch=True).filter(lambda name: not keyword.iskeyword(name))
spoken_of = st.sampled_from(
    ["offers", "handle", "shown", "shown_loads", "replicas_named", "remote", "balancer", "port", "protocol"]
)


@settings(max_examples=60, deadline=None)
@given(name=st.one_of(spoken_of, names, st.sampled_from([each.lstrip("_") for each in HANDLES] or ["handle"])))
def test_a_balancers_method_may_have_any_name(name):
    if hasattr(LeastLoadedBalancer, name):
        return

    class Asked(PinnedClient):
        async def acquire(self, request_id):
            assert await getattr(self.balancer, name).remote(3) == 4
            return await super().acquire(request_id)

    def build(context):
        def init(self, servers):
            LeastLoadedBalancer.__init__(self, servers)

        cls = type("Own", (LeastLoadedBalancer,), {"__init__": init, name: lambda self, number: number + 1})
        return Asked(context.config, context.make_balancer(cls))

    trace = run_world(CASE, sut_of("asked", build))
    assert {turn.ended.outcome for _, turn in trace.ledger.turns()} == {"ok"}
    assert judge(CASE, trace) == []


def test_the_known_good_client_needs_none_of_it():
    assert judge(CASE, run_world(CASE, load_sut(CLEAN))) == []
