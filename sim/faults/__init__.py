"""What goes wrong, or on, around the rollouts: one small class a fault kind, by the name that Cases have for it."""

from sim.faults.aborts import AbortAll, AbortRequest
from sim.faults.cancel import CancelClient
from sim.faults.control import FailControl
from sim.faults.crash import CrashReplica
from sim.faults.fault import Fault, NamedIndex, Surroundings
from sim.faults.kind import checked_kind
from sim.faults.membership import AddReplica, ClearSticky, DelayReleases, RemoveReplica
from sim.faults.requests import DelayAnswer, FailRequest, LoseAnswer
from sim.faults.rolling_update import RollingUpdate
from sim.faults.stage import Stage
from sim.faults.triggers import AfterSent, AfterTokens, AtTime, Every, When
from sim.faults.weight_update import WeightUpdate
from sim.registry import Registry

FAULTS: Registry[type[Fault]] = Registry("fault")


def register_fault(fault: type[Fault]) -> type[Fault]:
    """Makes a kind of fault known, so that Cases can hold it and searches draw it; may be used as a decorator.

    Raises `RegistrationError` for a class that is no `Fault` with a tag of its own, an `async def act` and fields that
    a Case can hold, and for a tag that is taken.
    """
    return FAULTS.add(checked_kind(fault), fault)


for _fault in (
    WeightUpdate,
    AbortAll,
    AbortRequest,
    CancelClient,
    RemoveReplica,
    AddReplica,
    ClearSticky,
    DelayReleases,
    FailRequest,
    DelayAnswer,
    LoseAnswer,
    CrashReplica,
    FailControl,
    RollingUpdate,
):
    register_fault(_fault)

__all__ = [
    "FAULTS",
    "AbortAll",
    "AbortRequest",
    "AddReplica",
    "AfterSent",
    "AfterTokens",
    "AtTime",
    "CancelClient",
    "ClearSticky",
    "CrashReplica",
    "DelayAnswer",
    "DelayReleases",
    "Every",
    "FailControl",
    "FailRequest",
    "Fault",
    "LoseAnswer",
    "NamedIndex",
    "RemoveReplica",
    "RollingUpdate",
    "Stage",
    "Surroundings",
    "WeightUpdate",
    "When",
    "register_fault",
]
