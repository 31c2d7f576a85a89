"""Requests that fail, and answers that come late or never."""

from sim.faults.fault import Fault
from sim.faults.stage import Stage
from sim.schema import Index, Seconds


class FailRequest(Fault, frozen=True, tag="fail_request"):
    """The live request of `session`, if any, fails with what it has: the server raises, as with HTTP's 500."""

    session: Index

    async def act(self, stage: Stage) -> str:
        return "" if stage.fail_request_of(self.session) else "skipped: the session has no live request"


class DelayAnswer(Fault, frozen=True, tag="delay_answer"):
    """The next answer of a server to `session` comes `delay_s` late."""

    session: Index
    delay_s: Seconds = 60.0

    @property
    def late_s(self) -> float:
        return self.delay_s

    async def act(self, stage: Stage) -> str:
        stage.delay_answer(self.session, self.delay_s)
        return ""


class LoseAnswer(Fault, frozen=True, tag="lose_answer"):
    """The next answer of a server to `session` never comes: `told_after_s` after it was due, the call raises what the
    transport has to say, as Ray's do where the connection to an actor is lost."""

    session: Index
    told_after_s: Seconds = 1.0

    @property
    def late_s(self) -> float:
        return self.told_after_s

    async def act(self, stage: Stage) -> str:
        stage.lose_answer(self.session, self.told_after_s)
        return ""
