"""Weight updates, as trainers make them."""

from collections.abc import Iterator

from sim.engine.config import PauseMode
from sim.faults.fault import Fault, NamedIndex, Surroundings
from sim.faults.stage import Stage
from sim.schema import CaseError, Index, Seconds

LAST_REPLICA = "skipped: no replica would be left in the balancer"


class WeightUpdate(Fault, frozen=True, tag="weight_update"):
    """Every replica aborts all requests, takes the next weight version after `pause_s`, and resumes.

    `leaving`: replicas that leave the balancer first and reject what still arrives, then are added again and the
    sticky cache is cleared (the hybrid replicas of verl's separate-async trainer). Empty: its colocated trainer.
    Where a call to a replica fails, the update ends there, without weights for a replica that may still be at work, and
    all resume. `reset_prefix_cache`: whether the abort clears the prefix cache, as verl has it.
    `pause_mode`: vLLM's. `abort` is what verl does; with `wait` the replicas run what they have to its end first, with
    `keep` they freeze it and go on with the new weights, having computed its KV anew if `reset_prefix_cache`.
    """

    pause_s: Seconds = 1.0
    leaving: tuple[Index, ...] = ()
    reset_prefix_cache: bool = True
    pause_mode: PauseMode = "abort"

    @property
    def idle_s(self) -> float:
        return self.pause_s

    def named(self) -> Iterator[NamedIndex]:
        yield from super().named()
        yield from (NamedIndex("leaving", replica, "replica") for replica in self.leaving)

    def check(self, where: str, case: Surroundings) -> None:
        if len(set(self.leaving)) >= case.replicas:
            raise CaseError(f"{where}.leaving names all {case.replicas} replicas: at least one must stay")
        if self.pause_mode != "abort":
            self._check_pause_mode(f"{where}.pause_mode is {self.pause_mode}", case)
        super().check(where, case)

    def _check_pause_mode(self, where: str, case: Surroundings) -> None:
        if not case.server.rules.can_pause_without_abort:
            raise CaseError(f"{where}: only vLLM has it, and server.dialect is {case.server.dialect}")
        if case.server.engine is None:
            raise CaseError(f"{where}: it needs an engine that can be paused, and server.engine is null")
        if self.leaving:
            raise CaseError(f"{where}: replicas in leaving abort what they have, so only abort is allowed with them")

    async def act(self, stage: Stage) -> str:
        async with stage.as_trainer():
            leaving = [replica for replica in self.leaving if replica in stage.registered]
            if len(leaving) == len(stage.registered):
                return LAST_REPLICA
            if leaving:
                await stage.remove(leaving)
            try:
                await self._pause(stage, leaving)
                await stage.sleep(self.pause_s)
                await stage.next_version()
            finally:
                await stage.resume(stage.everyone)
                if leaving:
                    await stage.add(leaving)
                    await stage.clear_sticky()
        return ""

    async def _pause(self, stage: Stage, leaving: list[int]) -> None:
        if self.pause_mode == "abort":
            await stage.abort_all(stage.everyone, reset_prefix_cache=self.reset_prefix_cache, rejecting=set(leaving))
        else:
            await stage.pause(stage.everyone, self.pause_mode, clear_cache=self.reset_prefix_cache)
