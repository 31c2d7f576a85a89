"""A wire, and a balancer at its end, without a world around them."""

import pytest

from sim.case import Transport
from sim.clock import VirtualLoop
from sim.sut.verl.balancer import PROTOCOL
from sim.sut.verl.servers import REQUESTS
from sim.trace import Trace
from sim.transport.balancer_port import BalancerPort
from sim.transport.wire import Wire


class Nobody:
    def sent(self, session):
        pass


class Notebook:
    """A balancer that keeps what it is given."""

    def __init__(self):
        self.kept = []

    def acquire_server(self, request_id):
        return "replica-0", request_id

    def release_server(self, *args, **kwargs):
        self.kept.append((args, kwargs))

    def fail(self):
        raise KeyError("no such thing")


@pytest.fixture
def wired():
    """Makes (loop, trace, port, handle of the balancer)."""
    loops = []

    def make(**settings):
        loop = VirtualLoop()
        loops.append(loop)
        trace = Trace(1)
        port = BalancerPort(Notebook(), PROTOCOL, ["replica-0"])
        wire = Wire(Transport(**settings), REQUESTS, loop, trace, Nobody())
        return loop, trace, port, wire.balancer_handle(port)

    yield make
    for loop in loops:
        loop.close()
