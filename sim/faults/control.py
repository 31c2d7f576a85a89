"""What a trainer tells a server, and the server does not do, or does not say that it did."""

from typing import Annotated

from msgspec import Meta

from sim.faults.fault import Fault
from sim.faults.stage import ControlCall, Stage
from sim.schema import Index


class FailControl(Fault, frozen=True, tag="fail_control"):
    """The next `times` calls of one kind that `replica` gets from a trainer fail: an `abort` (or any other pause),
    a `resume`, or a `set_version`. `done`: it does what the call says, and the caller is told an error all the same.

    Of a call that goes to every replica it is this one's that fails; with faults for all of them, all do.
    """

    replica: Index
    call: ControlCall = "abort"
    times: Annotated[int, Meta(ge=1, le=1000)] = 1
    done: bool = False

    async def act(self, stage: Stage) -> str:
        stage.fail_control(self.replica, self.call, self.times, is_done=self.done)
        return ""
