"""Weight updates that reach one replica after the other."""

from sim.faults.fault import Fault
from sim.faults.stage import Stage
from sim.schema import Seconds


class RollingUpdate(Fault, frozen=True, tag="rolling_update"):
    """Each replica in turn aborts its requests, takes the next weight version after `pause_s`, and resumes, while the
    others go on, on the weights that they have. The next one's turn is `spacing_s` later."""

    pause_s: Seconds = 1.0
    spacing_s: Seconds = 1.0

    def lasts_s(self, replicas: int) -> float:
        return (self.pause_s + self.spacing_s) * replicas

    async def act(self, stage: Stage) -> str:
        async with stage.as_trainer():
            version = stage.begin_version()
            for replica in stage.everyone:
                try:
                    await stage.abort_all([replica], reset_prefix_cache=True)
                    await stage.sleep(self.pause_s)
                    await stage.set_version([replica], version)
                finally:
                    await stage.resume([replica])
                await stage.sleep(self.spacing_s)
        return ""
