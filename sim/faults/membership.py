"""What happens to the balancer: replicas that come and go, a cache that is cleared, messages that are late."""

from sim.faults.fault import Fault
from sim.faults.stage import Stage
from sim.faults.weight_update import LAST_REPLICA
from sim.schema import MAX_TIME_S, Index, Seconds


class RemoveReplica(Fault, frozen=True, tag="remove_replica"):
    """A replica leaves the balancer; its requests go on."""

    replica: Index

    async def act(self, stage: Stage) -> str:
        if stage.registered <= {self.replica}:
            return LAST_REPLICA
        await stage.remove([self.replica])
        return ""


class AddReplica(Fault, frozen=True, tag="add_replica"):
    """A replica is added to the balancer, whether or not it is there already."""

    replica: Index

    async def act(self, stage: Stage) -> str:
        await stage.add([self.replica])
        return ""


class ClearSticky(Fault, frozen=True, tag="clear_sticky"):
    """The balancer forgets which session went where."""

    async def act(self, stage: Stage) -> str:
        return await stage.clear_sticky()


class DelayReleases(Fault, frozen=True, tag="delay_releases"):
    """From `at` on, for `duration_s`, every release reaches the balancer `delay_s` late, however often it has
    come; of several such faults the longest holds."""

    delay_s: Seconds
    duration_s: Seconds = MAX_TIME_S

    @property
    def late_s(self) -> float:
        return self.delay_s

    async def act(self, stage: Stage) -> str:
        stage.delay_releases(self.delay_s, self.duration_s)
        return ""
