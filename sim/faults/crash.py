"""A replica that dies, and comes back."""

from sim.faults.fault import Fault
from sim.faults.stage import Stage
from sim.schema import Index, Seconds


class CrashReplica(Fault, frozen=True, tag="crash_replica"):
    """A replica dies with all that it has, and `down_s` later is back, empty, with weights of version `version`.

    Its requests fail, and so does every call to it until it is back; the balancer knows nothing of it. It comes back
    between the trainer's steps, with its gate open.
    """

    replica: Index
    down_s: Seconds = 1.0
    version: Index = 0

    @property
    def idle_s(self) -> float:
        return self.down_s

    async def act(self, stage: Stage) -> str:
        if not stage.crash(self.replica):
            return "skipped: the replica is dead"
        await stage.sleep(self.down_s)
        async with stage.as_trainer():
            stage.restart(self.replica, self.version)
        return ""
