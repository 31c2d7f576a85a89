"""Aborts from the side of the servers: of everything on a replica, or of one request by its id."""

from sim.faults.fault import Fault
from sim.faults.stage import Stage
from sim.schema import Index, Seconds


class AbortAll(Fault, frozen=True, tag="abort_all"):
    """One replica aborts all of its requests and resumes after `pause_s`, on the same weights."""

    replica: Index
    pause_s: Seconds = 0.0
    reset_prefix_cache: bool = True

    @property
    def idle_s(self) -> float:
        return self.pause_s

    async def act(self, stage: Stage) -> str:
        async with stage.as_trainer():
            try:
                await stage.abort_all([self.replica], reset_prefix_cache=self.reset_prefix_cache)
                await stage.sleep(self.pause_s)
            finally:
                await stage.resume([self.replica])
        return ""


class AbortRequest(Fault, frozen=True, tag="abort_request"):
    """The live request of `session`, if any, is aborted by its id."""

    session: Index

    async def act(self, stage: Stage) -> str:
        return "" if await stage.abort_request_of(self.session) else "skipped: the session has no live request"
