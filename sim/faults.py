"""What goes wrong, or on, around the rollouts: one small class a fault kind, and the triggers that set them off.

A fault acts on a `Stage`: the servers' handles, the balancer's handle and the sessions' tasks, exactly what a trainer
or an operator could reach. Trainer-side faults take turns (`Stage.trainer`), as one trainer's steps do.
"""

import asyncio
from bisect import insort
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sim.case import (
    AbortAll,
    AbortRequest,
    AddReplica,
    AfterSent,
    AfterTokens,
    AtTime,
    CancelClient,
    Case,
    ClearSticky,
    DelayReleases,
    Every,
    Fault,
    RemoveReplica,
    WeightUpdate,
    When,
)
from sim.clock import VirtualLoop, to_ns
from sim.events import Cancelled, FaultFired, spelled
from sim.servers.server import FakeRolloutServer
from sim.trace import Trace
from sim.transport.wire import BalancerHandle, ServerHandle, Wire


class Triggers:
    """Watches the sessions' progress, so that a fault can wait for an event instead of a time."""

    def __init__(self, case: Case, loop: VirtualLoop) -> None:
        self._loop = loop
        named = {fault.at.session for fault in case.faults if isinstance(fault.at, AfterTokens | AfterSent)}
        self._decoded_tokens = dict.fromkeys(named, 0)
        """Of the sessions that somebody waits for; also sent_requests."""
        self._sent_requests = dict.fromkeys(named, 0)
        self._thresholds: dict[int, list[int]] = {}
        self._waiters: dict[When, list[asyncio.Future[None]]] = {}
        for fault in case.faults:
            if isinstance(fault.at, AfterTokens):
                thresholds = self._thresholds.setdefault(fault.at.session, [])
                if fault.at.tokens not in thresholds:
                    insort(thresholds, fault.at.tokens)

    async def wait(self, when: When) -> None:
        """Returns when it is time, or the event has come."""
        if isinstance(when, AtTime | Every):
            await asyncio.sleep(when.time_s)
        elif not self._has_come(when):
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiters.setdefault(when, []).append(future)
            await future

    def _has_come(self, when: AfterTokens | AfterSent) -> bool:
        if isinstance(when, AfterTokens):
            return self._decoded_tokens[when.session] >= when.tokens
        return self._sent_requests[when.session] >= when.requests

    def _fire(self, when: When) -> None:
        for future in self._waiters.pop(when, ()):
            if not future.done():
                future.set_result(None)

    def next_threshold(self, session: int) -> int | None:
        """See `sim.servers.server.Watcher`."""
        thresholds = self._thresholds.get(session)
        if not thresholds:
            return None
        return thresholds[0]

    def decoded(self, session: int, tokens: int) -> None:
        """See `sim.servers.server.Watcher`."""
        if session not in self._decoded_tokens:
            return
        self._decoded_tokens[session] += tokens
        thresholds = self._thresholds.get(session)
        while thresholds and thresholds[0] <= self._decoded_tokens[session]:
            self._fire(AfterTokens(session, thresholds.pop(0)))

    def total(self, session: int) -> int:
        """See `sim.servers.server.Watcher`."""
        return self._decoded_tokens.get(session, 0)

    def sent(self, session: int) -> None:
        """See `sim.transport.wire.SentListener`."""
        if session in self._sent_requests:
            self._sent_requests[session] += 1
            self._fire(AfterSent(session, self._sent_requests[session]))


@dataclass(slots=True)
class Stage:
    """What a fault can act on."""

    loop: VirtualLoop
    trace: Trace
    wire: Wire
    triggers: Triggers
    names: list[str]
    servers: list[FakeRolloutServer]
    handles: list[ServerHandle]
    balancer: BalancerHandle
    sessions: "dict[int, asyncio.Task[None]]"
    """Those that live."""
    registered: set[int]
    trainer: asyncio.Lock
    version: int = 0


async def _all(calls: "list[asyncio.Future[Any]]") -> None:
    """Waits for calls that are all under way already."""
    for call in calls:
        await call


async def _abort(stage: Stage, replicas: list[int], *, reset_prefix_cache: bool, rejecting: set[int]) -> None:
    calls = []
    for replica in replicas:
        keywords = {"reject_request": True} if replica in rejecting else {}
        if not reset_prefix_cache:
            keywords["reset_prefix_cache"] = False
        calls.append(stage.handles[replica].abort_all_requests.remote(**keywords))
    await _all(calls)


async def _pause(stage: Stage, replicas: list[int], fault: WeightUpdate) -> None:
    await _all(
        [
            stage.handles[replica].pause_generation.remote(mode=fault.pause_mode, clear_cache=fault.reset_prefix_cache)
            for replica in replicas
        ]
    )


async def _resume(stage: Stage, replicas: list[int]) -> None:
    await _all([stage.handles[replica].resume_generation.remote() for replica in replicas])


async def _remove(stage: Stage, replicas: list[int]) -> None:
    stage.registered.difference_update(replicas)
    await stage.balancer.remove_servers.remote([stage.names[replica] for replica in replicas])


async def _add(stage: Stage, replicas: list[int]) -> None:
    stage.registered.update(replicas)
    await stage.balancer.add_servers.remote({stage.names[replica]: stage.handles[replica] for replica in replicas})


async def _clear_sticky(stage: Stage) -> str:
    if not stage.balancer.offers("clear_sticky_cache"):
        return "this balancer has no clear_sticky_cache"
    await stage.balancer.clear_sticky_cache.remote()
    return ""


async def update_weights(stage: Stage, fault: WeightUpdate) -> str:
    everyone = list(range(len(stage.names)))
    async with stage.trainer:
        leaving = [replica for replica in fault.leaving if replica in stage.registered]
        if len(leaving) == len(stage.registered):
            return "skipped: no replica would be left in the balancer"
        if leaving:
            await _remove(stage, leaving)
        if fault.pause_mode == "abort":
            await _abort(stage, everyone, reset_prefix_cache=fault.reset_prefix_cache, rejecting=set(leaving))
        else:
            await _pause(stage, everyone, fault)
        await asyncio.sleep(fault.pause_s)
        stage.version += 1
        await _all([handle.set_global_steps.remote(stage.version) for handle in stage.handles])
        await _resume(stage, everyone)
        if leaving:
            await _add(stage, leaving)
            await _clear_sticky(stage)
    return ""


async def abort_all(stage: Stage, fault: AbortAll) -> str:
    async with stage.trainer:
        await _abort(stage, [fault.replica], reset_prefix_cache=fault.reset_prefix_cache, rejecting=set())
        await asyncio.sleep(fault.pause_s)
        await _resume(stage, [fault.replica])
    return ""


async def abort_request(stage: Stage, fault: AbortRequest) -> str:
    for server, handle in zip(stage.servers, stage.handles, strict=True):
        for request_id in server.live_request_ids(fault.session):
            await handle.abort_request.remote(request_id)
            return ""
    return "skipped: the session has no live request"


async def cancel_client(stage: Stage, fault: CancelClient) -> str:
    task = stage.sessions.get(fault.session)
    if task is None:
        return "skipped: the session has ended, or not begun"
    for server in stage.servers:
        server.book()  # so that what is decoded after the cancel can be told from what was before
    stage.trace.add(Cancelled(stage.loop.now_ns, fault.session))
    task.cancel()
    return ""


async def remove_replica(stage: Stage, fault: RemoveReplica) -> str:
    if stage.registered <= {fault.replica}:
        return "skipped: no replica would be left in the balancer"
    await _remove(stage, [fault.replica])
    return ""


async def add_replica(stage: Stage, fault: AddReplica) -> str:
    await _add(stage, [fault.replica])
    return ""


async def clear_sticky(stage: Stage, fault: ClearSticky) -> str:
    del fault
    return await _clear_sticky(stage)


async def delay_releases(stage: Stage, fault: DelayReleases) -> str:
    until_ns = stage.loop.now_ns + to_ns(fault.duration_s)
    stage.wire.release_delays.append((until_ns, to_ns(fault.delay_s)))
    return ""


_ACTIONS: dict[type[Any], Callable[[Stage, Any], Awaitable[str]]] = {
    WeightUpdate: update_weights,
    AbortAll: abort_all,
    AbortRequest: abort_request,
    CancelClient: cancel_client,
    RemoveReplica: remove_replica,
    AddReplica: add_replica,
    ClearSticky: clear_sticky,
    DelayReleases: delay_releases,
}


async def act(stage: Stage, index: int, fault: Fault) -> None:
    """Does what the fault says, now. What it raises is on the trace: a trainer's failure is not the world's."""
    kind = fault.__struct_config__.tag
    fired = FaultFired(stage.loop.now_ns, index, str(kind))
    stage.trace.add_open(fired)
    try:
        note = await _ACTIONS[type(fault)](stage, fault)
    except Exception as error:
        note = spelled(error)
    stage.trace.amend(fired, FaultFired(fired.t_ns, index, fired.kind, note))
