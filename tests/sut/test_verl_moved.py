"""Classes of verl are found wherever they have moved inside the package. It is a stand-in here, with its shape."""

import sys
from textwrap import dedent

import pytest

from sim.case import Budget, Case, Session
from sim.faults import AbortAll, AfterTokens
from sim.sut.interface import SutError
from sim.sut.registry import load_sut
from sim.world import run_world

CLIENT = """
    from sim.sut.reference.client import PinnedClient

    class FullyAsyncLLMServerClient(PinnedClient):
        def __init__(self, config, load_balancer_handle):
            super().__init__(config, load_balancer_handle)
"""
BALANCER = """
    from sim.sut.reference.routing import LeastLoadedBalancer

    class GlobalRequestLoadBalancer(LeastLoadedBalancer):
        pass
"""


@pytest.fixture
def verl(tmp_path, monkeypatch):
    """Writes a package of that name, with these modules."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)

    def write(modules):
        for path, source in {"__init__.py": "__version__ = '99.0'", **modules}.items():
            file = tmp_path / "verl" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dedent(source))

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]


def test_in_homes_that_nobody_has_heard_of(verl):
    verl({"somewhere/else/client.py": CLIENT, "somewhere/__init__.py": BALANCER})
    sut = load_sut("verl")
    assert sut.key == "verl==99.0"
    case = Case(Budget(4, 10, 64), (Session(4),), (AbortAll(AfterTokens(0, 3), 0),))
    trace = run_world(case, sut)
    assert trace.is_done
    assert [attempt.decoded_tokens for attempt in trace.ledger.attempts] == [3, 7]


def test_a_known_home_comes_first(verl):
    """The package's source is not searched then: what cannot be imported elsewhere is no matter."""
    verl(
        {
            "workers/rollout/llm_server.py": CLIENT,
            "workers/rollout/router.py": BALANCER,
            "aaa.py": "1 / 0\nclass FullyAsyncLLMServerClient: pass",
        }
    )
    assert load_sut("verl").name == "verl"


def test_nowhere(verl):
    verl({"client.py": CLIENT.replace("FullyAsync", "Other")})
    with pytest.raises(SutError, match=r"no FullyAsyncLLMServerClient in verl \(verl\.workers\.rollout\.llm_server: "):
        load_sut("verl")


def test_a_home_that_lacks_a_package_says_so(verl):
    verl({"client.py": "import no_such_package_at_all" + dedent(CLIENT)})
    with pytest.raises(SutError, match="verl is installed, and the package no_such_package_at_all, which it imports"):
        load_sut("verl")
