"""The balancer's end of the wire: which replicas a message is about, and what a balancer shows of itself."""

import pytest

from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.verl.balancer import PROTOCOL
from sim.transport.balancer_port import BalancerPort

NAMES = ["replica-0", "replica-1"]


def port_of(balancer):
    return BalancerPort(balancer, PROTOCOL, NAMES)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "result", "replicas"),
    [
        ("acquire_server", (), {"request_id": "a"}, ("replica-1", object()), (1,)),
        ("acquire_server", (), {"request_id": "a"}, None, ()),  # it raised
        ("acquire_server", (), {"request_id": "a"}, ("elsewhere", object()), ()),
        ("acquire_server", (), {"request_id": "a"}, "replica-1", ()),
        ("release_server", ("replica-0",), {}, None, (0,)),
        ("release_server", (), {"server_id": "replica-1"}, None, (1,)),
        ("release_server", (), {}, None, ()),
        ("release_server", (["replica-0"],), {}, None, ()),
        ("add_servers", ({"replica-1": object(), "replica-0": object()},), {}, None, (1, 0)),
        ("remove_servers", (), {"server_ids": ["replica-0"]}, None, (0,)),
        ("clear_sticky_cache", (), {}, {}, ()),
        ("get_status", (), {}, {"servers": {"replica-0": 1}}, ()),
    ],
)
def test_the_replicas_that_a_message_is_about(name, args, kwargs, result, replicas):
    assert port_of(LeastLoadedBalancer({})).replicas_of(name, args, kwargs, result) == replicas


def test_what_a_balancer_shows():
    balancer = LeastLoadedBalancer(dict.fromkeys(NAMES), tie_break="first")
    port = port_of(balancer)
    assert port.shown() == ((0, 0), 0)
    balancer.acquire_server("a")
    balancer.remove_servers(["replica-1"])
    assert port.shown() == ((1, None), 1)


class Silent:
    pass


class Broken:
    def get_status(self):
        raise KeyError("servers")


class Other:
    def get_status(self):
        return [1]


@pytest.mark.parametrize("cls", [Silent, Broken, Other])
def test_a_balancer_that_shows_nothing_of_the_kind_shows_nothing(cls):
    assert port_of(cls()).shown() == (None, None)
