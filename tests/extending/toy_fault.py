"""A fault of its own: `abort_storm`, and a client that four aborts do not disturb.

`toy_fault:impatient` takes what it has for an answer when it was aborted for the fifth time.
"""

from typing import Annotated, Literal

from msgspec import Meta

from sim.faults import Fault, register_fault
from sim.schema import Index
from sim.sut.reference.client import PinnedClient

TRIES = 1000


@register_fault
class AbortStorm(Fault, frozen=True, tag="abort_storm"):
    """A request of `session` is aborted, and so are those that come in its place, `times` in all, with `calm_s` in
    between. With `whom` "all" a replica aborts the others too, each time."""

    session: Index
    times: Annotated[int, Meta(ge=5, le=9)] = 5
    calm_s: Annotated[float, Meta(ge=0, le=0.5)] = 0.0
    whom: Literal["one", "all"] = "one"

    @property
    def idle_s(self):
        return self.times * self.calm_s

    async def act(self, stage):
        aborts = 0
        for _ in range(TRIES):
            if await stage.abort_request_of(self.session):
                aborts += 1
                if self.whom == "all":
                    await stage.abort_all(stage.everyone, reset_prefix_cache=True)
                    await stage.resume(stage.everyone)
                if aborts == self.times:
                    return ""
                await stage.sleep(self.calm_s)
            await stage.sleep(0.01)
        return f"skipped: only {aborts} requests came"


class Impatient(PinnedClient):
    """Aborts are counted over a session; the fifth one ends its response."""

    def __init__(self, config, balancer):
        super().__init__(config, balancer)
        self.aborts = {}

    async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
        output = await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)
        if output.stop_reason == "aborted":
            self.aborts[request_id] = self.aborts.get(request_id, 0) + 1
            if self.aborts[request_id] == 5:
                output.stop_reason = "completed"
        return output


def impatient(context):
    return Impatient(context.config, context.balancer)
