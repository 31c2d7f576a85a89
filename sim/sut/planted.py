"""The known-bad ones: each planted bug a few lines on a reference, named after what it does.

They prove that the harness finds what it should: each is caught by the invariant it is listed under.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from sim.servers.port import MakeServer
from sim.servers.server import SimulatedServer
from sim.sut.bugs.balancers import (
    FavouriteBalancer,
    ForgetfulBalancer,
    GhostBalancer,
    SetPickingBalancer,
    UnevenBalancer,
    WorldCountingBalancer,
    ZeroingBalancer,
)
from sim.sut.bugs.clients import (
    AskingForNothingClient,
    AveragingClient,
    GivingUpClient,
    LimitWritingClient,
    SilentFallbackClient,
    SlotLeakingClient,
    StingyClient,
)
from sim.sut.bugs.content import (
    AbortHidingClient,
    ForgettingClient,
    LengthSayingClient,
    NewestVersionClient,
    PaddingClient,
    RepeatingClient,
    TokenLosingClient,
    TurningClient,
)
from sim.sut.bugs.failing import (
    CarelessTrainer,
    ForgetfulTrainer,
    ImpatientClient,
    LossHidingClient,
    MourningClient,
    NewestOnlyClient,
    SiblingFailingClient,
    StubbornClient,
    TwiceAskingClient,
)
from sim.sut.bugs.servers import cache_keeping_server, deaf_server, stuck_gate_server, twice_ending_server
from sim.sut.interface import Context, Factory
from sim.sut.reference.client import DeferredClient, PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.verl.servers import Trainer


class Planted(NamedTuple):
    """A planted bug: the invariant that must catch it, and what it puts in the place of the known-good parts.

    `most_sessions`: of the case that it shrinks to, where two do not show it. `policies`: those that it declares.
    """

    invariant: str
    client: type[DeferredClient] = PinnedClient
    balancer: type[LeastLoadedBalancer] | None = None
    make_server: MakeServer = SimulatedServer
    most_sessions: int = 2
    trainer: Trainer = Trainer()
    policies: Mapping[str, str] = MappingProxyType({})


PLANTED: dict[str, Planted] = {
    "deferred": Planted("B1", DeferredClient),
    "stingy": Planted("B2", StingyClient),
    "writes-limit": Planted("B4", LimitWritingClient),
    "asks-for-nothing": Planted("B6", AskingForNothingClient),
    "budget-anew": Planted("B7", policies={"budget": "trajectory"}),
    "silent-fallback": Planted("B8", SilentFallbackClient),
    "deaf-server": Planted("B10", make_server=deaf_server),
    "fails-siblings": Planted("B5", SiblingFailingClient),
    "impatient": Planted("B2", ImpatientClient, most_sessions=3),
    "hides-loss": Planted("B2", LossHidingClient),
    "ends-twice": Planted("A1", make_server=twice_ending_server),
    "loses-tokens": Planted("A2", TokenLosingClient),
    "newest-only": Planted("A2", NewestOnlyClient, most_sessions=4),
    "forgets-to-resume": Planted("A3", trainer=ForgetfulTrainer()),
    "ignores-failed-abort": Planted("A4", trainer=CarelessTrainer()),
    "forgets-what-it-has": Planted("L3", ForgettingClient),
    "repeats-token": Planted("L1", RepeatingClient),
    "pads-log-probs": Planted("L1", PaddingClient),
    "turns-log-probs-round": Planted("L1", TurningClient),
    "names-newest-version": Planted("S1", NewestVersionClient),
    "says-length": Planted("A10", LengthSayingClient),
    "hides-abort": Planted("A10", AbortHidingClient),
    "leaves-request": Planted("W1"),
    "asks-twice": Planted("W2", TwiceAskingClient),
    "divides-by-tokens": Planted("A5", AveragingClient),
    "stubborn": Planted("A8", StubbornClient),
    "gives-up": Planted("A9", GivingUpClient),
    "routes-anywhere": Planted("R1", balancer=UnevenBalancer),
    "forgets-session": Planted("R2", balancer=ForgetfulBalancer),
    "zeroes-count": Planted("R3", balancer=ZeroingBalancer),
    "favourite": Planted("R4", balancer=FavouriteBalancer, most_sessions=20),
    "routes-to-removed": Planted("R5", balancer=GhostBalancer),
    "leaks-slot": Planted("R7", SlotLeakingClient),
    "keeps-cache": Planted("S2", make_server=cache_keeping_server),
    "stuck-gate": Planted("V1", make_server=stuck_gate_server),
    "mourns-for-ever": Planted("V1", MourningClient),
    "counts-worlds": Planted("D1", balancer=WorldCountingBalancer),
    "picks-from-set": Planted("D1", balancer=SetPickingBalancer),
}


def factory(planted: Planted) -> Factory:
    """Builds the SUT of a planted bug."""

    def make(context: Context) -> DeferredClient:
        balancer = context.make_balancer(planted.balancer) if planted.balancer else context.balancer
        return planted.client(context.config, balancer)

    return make
