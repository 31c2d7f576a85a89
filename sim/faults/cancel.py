"""A caller that gives up."""

from sim.faults.fault import Fault
from sim.faults.stage import Stage
from sim.schema import Index


class CancelClient(Fault, frozen=True, tag="cancel_client"):
    """The task that runs `session` is cancelled."""

    session: Index

    async def act(self, stage: Stage) -> str:
        return "" if stage.cancel(self.session) else "skipped: the session has ended, or not begun"
