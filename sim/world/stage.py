"""The stage of a running world: what its faults act on, through the calls that the framework's trainer makes."""

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.clock import to_ns
from sim.engine.config import PauseMode
from sim.events import Cancelled
from sim.faults.stage import ControlCall
from sim.servers.failures import ActorDiedError, CallFailed, ServerError
from sim.servers.mortal import MortalServer
from sim.servers.port import Clock
from sim.sut.framework import Framework
from sim.trace import Trace
from sim.transport.handles import Handle
from sim.world.ports import Network

MOST_RESUMES = 8
"""How often a trainer tells a replica to go on that fails to."""


async def _all(calls: Sequence[Awaitable[Any]]) -> None:
    """Waits for the end of calls that are all under way already; raises what the first of them raised."""
    failed: Exception | None = None
    for call in calls:
        try:
            await call
        except Exception as error:
            failed = failed or error
    if failed is not None:
        raise failed


@dataclass(slots=True)
class WorldStage:
    """See `sim.faults.Stage`. `sessions`: the tasks of those that live."""

    framework: Framework
    clock: Clock
    trace: Trace
    network: Network
    names: list[str]
    servers: list[MortalServer]
    handles: list[Handle]
    balancer: Handle
    sessions: "dict[int, asyncio.Task[None]]"
    registered: set[int] = field(init=False)
    trainer: asyncio.Lock = field(default_factory=asyncio.Lock)
    version: int = 0

    def __post_init__(self) -> None:
        self.registered = set(self.everyone)

    @property
    def everyone(self) -> list[int]:
        return list(range(len(self.names)))

    def as_trainer(self) -> asyncio.Lock:
        return self.trainer

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def abort_all(
        self, replicas: Sequence[int], *, reset_prefix_cache: bool, rejecting: Collection[int] = ()
    ) -> None:
        abort_all = self.framework.trainer.abort_all
        await _all(
            [
                abort_all(self.handles[each], reset_prefix_cache=reset_prefix_cache, reject=each in rejecting)
                for each in replicas
            ]
        )

    async def pause(self, replicas: Sequence[int], mode: PauseMode, *, clear_cache: bool) -> None:
        pause = self.framework.trainer.pause
        await _all([pause(self.handles[each], mode, clear_cache=clear_cache) for each in replicas])

    async def resume(self, replicas: Sequence[int]) -> None:
        resume = self.framework.trainer.resume
        await _all([self._resumed(each, resume(self.handles[each])) for each in replicas])

    async def _resumed(self, replica: int, call: Awaitable[Any]) -> None:
        for _ in range(MOST_RESUMES):
            try:
                await call
                return
            except ActorDiedError:  # there is nothing left in it that is paused
                return
            except CallFailed:
                call = self.framework.trainer.resume(self.handles[replica])
        await call

    async def next_version(self) -> None:
        await self.set_version(self.everyone, self.begin_version())

    def begin_version(self) -> int:
        self.version += 1
        return self.version

    async def set_version(self, replicas: Sequence[int], version: int) -> None:
        set_version = self.framework.trainer.set_weight_version
        await _all([set_version(self.handles[each], version) for each in replicas])

    async def remove(self, replicas: Sequence[int]) -> None:
        self.registered.difference_update(replicas)
        await self.framework.balancer.remove(self.balancer, [self.names[each] for each in replicas])

    async def add(self, replicas: Sequence[int]) -> None:
        self.registered.update(replicas)
        joining = {self.names[each]: self.handles[each] for each in replicas}
        await self.framework.balancer.add(self.balancer, joining)

    async def clear_sticky(self) -> str:
        cleared = self.framework.balancer.clear_sticky(self.balancer)
        if isinstance(cleared, str):
            return cleared
        await cleared
        return ""

    async def abort_request_of(self, session: int) -> bool:
        for server, handle in zip(self.servers, self.handles, strict=True):
            for request_id in server.live_request_ids(session):
                await self.framework.trainer.abort_request(handle, request_id)
                return True
        return False

    def fail_request_of(self, session: int) -> bool:
        return any(
            server.fail_request(session, ServerError(f"replica {server.replica} failed at the request"))
            for server in self.servers
        )

    def delay_answer(self, session: int, delay_s: float) -> None:
        self.network.disturb_answer(session, to_ns(delay_s), is_lost=False)

    def lose_answer(self, session: int, told_after_s: float) -> None:
        self.network.disturb_answer(session, to_ns(told_after_s), is_lost=True)

    def crash(self, replica: int) -> bool:
        server = self.servers[replica]
        if server.is_dead:
            return False
        server.crash()
        return True

    def restart(self, replica: int, version: int) -> None:
        self.servers[replica].restart(version)

    def fail_control(self, replica: int, call: ControlCall, times: int, *, is_done: bool) -> None:
        self.servers[replica].fail_control(call, times, is_done)

    def cancel(self, session: int) -> bool:
        task = self.sessions.get(session)
        if task is None:
            return False
        for server in self.servers:
            server.book()  # so that what is decoded after the cancel can be told from what was before
        self.trace.add(Cancelled(self.clock.now_ns, session))
        task.cancel()
        return True

    def delay_releases(self, delay_s: float, duration_s: float) -> None:
        until_ns = self.clock.now_ns + to_ns(duration_s)
        self.network.delay_releases(until_ns, to_ns(delay_s))
