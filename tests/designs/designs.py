"""Right designs that differ from the reference, each with a wrong variant; built on their own, without rollcage's code.

`DESIGNS`: by name, how to build the right and the wrong one, the policies that it declares, and the invariant that
catches the wrong one.
"""

import asyncio
import logging
import random
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

logger = logging.getLogger("designs")

CUT = {"abort", "aborted"}
SPELLINGS = ("max_tokens", "max_new_tokens")


# Clients


@dataclass
class Job:
    """One call of generate on its way."""

    request_id: str
    prompt: list[int]
    params: dict[str, Any]
    left: int | None
    """What may still be asked for; None: the server knows."""
    context: int
    answer: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[Any] = field(default_factory=list)
    reason: str = "length"

    def has_room(self) -> bool:
        return len(self.prompt) + len(self.answer) < self.context and (self.left is None or self.left > 0)

    def take(self, output: Any) -> None:
        self.answer += output.token_ids
        self.log_probs += output.log_probs or []
        if output.token_ids:
            self.versions.append(output.extra_fields.get("global_steps"))
        self.reason = output.stop_reason
        if self.left is not None:
            self.left -= len(output.token_ids)

    def forget(self) -> None:
        """Gives back what was taken."""
        if self.left is not None:
            self.left += len(self.answer)
        self.answer, self.log_probs, self.versions, self.reason = [], [], [], "length"

    def result(self) -> Any:
        extra = {}
        if self.versions:
            extra = {"min_global_steps": min(self.versions), "max_global_steps": max(self.versions)}
        return SimpleNamespace(
            token_ids=self.answer, log_probs=self.log_probs, stop_reason=self.reason, extra_fields=extra
        )


class Worker:
    """A client made of a loop over jobs; what an abort leads to is `after_abort`."""

    rest_s = 0.5

    def __init__(self, context: Any, balancer: Any = None) -> None:
        self.settings = context.config
        self.rollout = context.config.actor_rollout_ref.rollout
        self.balancer = context.balancer if balancer is None else balancer
        self.servers = context.servers
        self.serial = 0

    def job(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Job:
        rest = {key: value for key, value in sampling_params.items() if key not in SPELLINGS}
        limit = next((sampling_params[key] for key in SPELLINGS if key in sampling_params), None)
        if limit is None:
            limit = self.default_limit()
        spelling = next((key for key in SPELLINGS if key in sampling_params), SPELLINGS[0])
        return Job(
            request_id, list(prompt_ids), {"spelling": spelling, "rest": rest}, limit, self.rollout.max_model_len
        )

    def default_limit(self) -> int | None:
        length = self.rollout.get("response_length")
        if isinstance(length, int) and not isinstance(length, bool) and length >= 1:
            return length
        return self.fallback(length)

    def fallback(self, length: Any) -> int | None:
        logger.warning("no use of response_length %r", length)
        return None

    async def generate(self, request_id: str, *, prompt_ids: Any, sampling_params: dict[str, Any], **_: Any) -> Any:
        job = self.job(request_id, prompt_ids, sampling_params)
        while job.has_room():
            job.take(await self.ask(job))
            if job.reason not in CUT or not self.goes_on(job):
                return job.result()
            if job.has_room():
                await asyncio.sleep(self.rest_s)
        job.reason = "length"
        return job.result()

    def goes_on(self, job: Job) -> bool:
        del job
        return bool(self.settings.async_training.partial_rollout)

    async def ask(self, job: Job) -> Any:
        async with Slot(self, job.request_id) as slot:
            return await self.call(slot, job)

    def call(self, slot: "Slot", job: Job) -> Any:
        self.serial += 1
        slot.call_id = f"{job.request_id}#{self.serial}"
        params = dict(job.params["rest"])
        if job.left is not None:
            params[job.params["spelling"]] = job.left
        slot.tokens = len(job.prompt) + len(job.answer)
        return slot.server.generate.remote(
            prompt_ids=job.prompt + job.answer, sampling_params=params, request_id=slot.call_id
        )


class Slot:
    """A place on a replica, for as long as the block lasts."""

    call_id = ""

    def __init__(self, worker: Worker, request_id: str) -> None:
        self.worker, self.request_id = worker, request_id

    async def __aenter__(self) -> "Slot":
        promise = asyncio.ensure_future(self.acquire())
        try:
            self.name, self.server = await asyncio.shield(promise)
        except asyncio.CancelledError:
            promise.add_done_callback(lambda done: done.exception() or self.release(done.result()[0]))
            raise
        return self

    def acquire(self) -> Any:
        return self.worker.balancer.acquire_server.remote(self.request_id)

    def release(self, name: str) -> None:
        self.worker.balancer.release_server.remote(name)

    async def __aexit__(self, *_: object) -> None:
        self.release(self.name)


class Dropping(Worker):
    """What was aborted is thrown away, and the response begins anew."""

    def goes_on(self, job: Job) -> bool:
        reason = job.reason
        job.forget()
        job.reason = reason
        return super().goes_on(job)


class Forgetting(Dropping):
    """WRONG: takes what was thrown away for used, so that the new response is short."""

    def goes_on(self, job: Job) -> bool:
        left = job.left
        again = super().goes_on(job)
        job.left = left
        return again


class Aborted(Exception):
    pass


class Raising(Worker):
    """An abort is the caller's affair."""

    def goes_on(self, job: Job) -> bool:
        raise Aborted(job.request_id)


class RaisingAnyhow(Worker):
    """WRONG: fails whatever is short."""

    async def ask(self, job: Job) -> Any:
        output = await super().ask(job)
        if len(output.token_ids) < 3:
            raise Aborted(job.request_id)
        return output


class FailingFast(Worker):
    """Raises where nothing is left, and where its request was aborted."""

    async def generate(self, request_id: str, *, prompt_ids: Any, sampling_params: dict[str, Any], **_: Any) -> Any:
        job = self.job(request_id, prompt_ids, sampling_params)
        if not job.has_room():
            raise Aborted("nothing is left")
        job.take(await self.ask(job))
        if job.reason in CUT:
            raise Aborted("aborted")
        return job.result()


class FailingAtLong(FailingFast):
    """WRONG: raises over a prompt that it thinks too long."""

    async def generate(self, request_id: str, *, prompt_ids: Any, sampling_params: dict[str, Any], **_: Any) -> Any:
        if len(prompt_ids) > self.rollout.prompt_length:
            raise Aborted("too long")
        return await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)


class Hedging(Worker):
    """Asks a second replica when the first is slow, keeps the first answer and aborts the other request."""

    patience_s = 0.2

    async def ask(self, job: Job) -> Any:
        calls = [asyncio.create_task(self.one(job, job.request_id))]
        try:
            done, _ = await asyncio.wait(calls, timeout=self.patience_s)
            if not done and len(self.servers) > 1:
                calls.append(asyncio.create_task(self.one(job, f"{job.request_id}/hedge")))
                done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            elif not done:
                await asyncio.wait(calls)
            return self.chosen([call for call in calls if call.done()])
        finally:
            for call in calls:
                call.cancel()

    def chosen(self, done: "list[asyncio.Task[Any]]") -> Any:
        return done[0].result()

    async def one(self, job: Job, name: str) -> Any:
        async with Slot(self, name) as slot:
            try:
                return await self.call(slot, job)
            except asyncio.CancelledError:
                slot.server.abort_request.remote(slot.call_id)
                raise


class HedgingTwice(Hedging):
    """WRONG: the loser's slot is never given back."""

    async def one(self, job: Job, name: str) -> Any:
        slot = await Slot(self, name).__aenter__()
        output = await self.call(slot, job)
        slot.release(slot.name)
        return output


class OwnDefault(Worker):
    """Has a limit of its own where the config has none."""

    limit = 7

    def fallback(self, length: Any) -> int | None:
        super().fallback(length)
        return self.limit


class OwnDefaultOverAll(OwnDefault):
    """WRONG: for every response."""

    def default_limit(self) -> int | None:
        super().default_limit()
        return 2 * self.limit


class Capping(Worker):
    """A caller's limit holds up to response_length."""

    def job(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Job:
        job = super().job(request_id, prompt_ids, sampling_params)
        length = self.rollout.get("response_length")
        if job.left is not None and type(length) is int and length > 0:
            job.left = self.capped(job.left, length)
        return job

    def capped(self, left: int, length: int) -> int:
        return min(left, length)


class CappingLow(Capping):
    """WRONG: one too low."""

    def capped(self, left: int, length: int) -> int:
        return min(left, max(1, length - 1))


class WholeTrajectory(Worker):
    """One budget for all that the model says in a session."""

    def __init__(self, context: Any, balancer: Any = None) -> None:
        super().__init__(context, balancer)
        self.said: dict[str, int] = defaultdict(int)

    async def generate(self, request_id: str, *, prompt_ids: Any, sampling_params: dict[str, Any], **_: Any) -> Any:
        result = await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)
        self.said[request_id] += len(result.token_ids)
        return result

    def job(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Job:
        job = super().job(request_id, prompt_ids, sampling_params)
        if job.left is not None:
            job.left -= self.said[request_id]
        return job


class FailingOver(Worker):
    """Sends what is stalled to another replica, under another name, and goes home with the next turn."""

    stall_s = 300.0

    async def ask(self, job: Job) -> Any:
        try:
            return await asyncio.wait_for(self.one(job, job.request_id), self.stall_s)
        except TimeoutError:
            return await self.one(job, f"{job.request_id}/again")

    async def one(self, job: Job, name: str) -> Any:
        async with Slot(self, name) as slot:
            return await self.call(slot, job)


class RoamingOver(FailingOver):
    """WRONG: every second request goes somewhere else."""

    async def ask(self, job: Job) -> Any:
        return await self.one(job, f"{job.request_id}/{self.serial}")


# Balancers


class Ring:
    """Replicas in turn. What all the balancers here have in common: places, counts, what came and went."""

    def __init__(self, servers: dict[str, Any]) -> None:
        self.servers = dict(servers)
        self.busy: dict[str, int] = dict.fromkeys(servers, 0)
        self.home: dict[str, str] = {}
        self.turn = 0

    def pick(self, request_id: str) -> str:
        del request_id
        names = list(self.servers)
        self.turn += 1
        return names[self.turn % len(names)]

    def place(self, request_id: str) -> str:
        name = self.home.get(request_id, "")
        return name if name in self.servers else self.pick(request_id)

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        if not self.servers:
            raise RuntimeError("no replica")
        name = self.home[request_id] = self.place(request_id)
        self.busy[name] += 1
        return name, self.servers[name]

    def release_server(self, server_id: str) -> None:
        self.busy[server_id] -= 1

    def add_servers(self, servers: dict[str, Any]) -> None:
        for name, handle in servers.items():
            self.servers[name] = handle
            self.busy.setdefault(name, 0)

    def remove_servers(self, server_ids: list[str]) -> None:
        for name in server_ids:
            self.servers.pop(name, None)

    def clear_sticky_cache(self) -> dict[str, Any]:
        self.home.clear()
        return {}

    def get_status(self) -> dict[str, Any]:
        return {"servers": {name: self.busy[name] for name in self.servers}}

    def get_total_inflight(self) -> int:
        return sum(self.busy[name] for name in self.servers)


class UnevenRing(Ring):
    """WRONG: the first comes twice in a round."""

    def pick(self, request_id: str) -> str:
        del request_id
        names = [*self.servers, next(iter(self.servers))]
        self.turn += 1
        return names[self.turn % len(names)]


class TwoChoices(Ring):
    better = staticmethod(min)

    def pick(self, request_id: str) -> str:
        del request_id
        names = list(self.servers)
        pair = random.sample(names, 2) if len(names) > 1 else names
        return self.better(pair, key=self.busy.get)


class WorseOfTwo(TwoChoices):
    """WRONG: takes the more loaded one."""

    better = staticmethod(max)


class AnyOne(Ring):
    def pick(self, request_id: str) -> str:
        del request_id
        return random.choice(list(self.servers))


class NeverTheLast(Ring):
    """WRONG: the last replica starves."""

    def pick(self, request_id: str) -> str:
        del request_id
        names = list(self.servers)
        return random.choice(names[:-1] or names)


class Rendezvous(Ring):
    """The highest random weight of id and replica."""

    def place(self, request_id: str) -> str:
        return max(self.servers, key=lambda name: zlib.crc32(f"{request_id}@{name}".encode()))


class Modulo(Ring):
    def place(self, request_id: str) -> str:
        names = sorted(self.servers)
        return names[zlib.crc32(request_id.encode()) % len(names)]


class Salted(Ring):
    """WRONG: the hash has a number in it that counts requests."""

    def place(self, request_id: str) -> str:
        self.turn += 1
        return max(self.servers, key=lambda name: zlib.crc32(f"{request_id}@{name}@{self.turn}".encode()))


class Prefixes(Ring):
    """Where most of the prompt's blocks have been, else where the fewest are."""

    def __init__(self, servers: dict[str, Any]) -> None:
        super().__init__(servers)
        self.blocks: dict[str, set[tuple[int, ...]]] = defaultdict(set)

    def require_acquire_fields(self) -> list[str]:
        return ["prompt_ids"]

    def acquire_server(self, request_id: str, prompt_ids: Any = ()) -> tuple[str, Any]:
        blocks = {tuple(prompt_ids[: 4 * n]) for n in range(1, 1 + len(prompt_ids) // 4)}
        self.asked = blocks
        name, handle = super().acquire_server(request_id)
        self.blocks[name] |= blocks
        return name, handle

    def pick(self, request_id: str) -> str:
        del request_id
        return max(self.servers, key=lambda name: (len(self.blocks[name] & self.asked), -self.busy[name]))


class PrefixesAfterAll(Prefixes):
    """WRONG: keeps sending to a replica that is gone."""

    def __init__(self, servers: dict[str, Any]) -> None:
        super().__init__(servers)
        self.all = dict(servers)

    def remove_servers(self, server_ids: list[str]) -> None:
        super().remove_servers(server_ids)
        self.servers = self.servers or {}

    def acquire_server(self, request_id: str, prompt_ids: Any = ()) -> tuple[str, Any]:
        name = self.home.get(request_id, "")
        if name in self.all and name not in self.servers:
            self.busy[name] += 1
            return name, self.all[name]
        return super().acquire_server(request_id, prompt_ids)


class Least(Ring):
    def pick(self, request_id: str) -> str:
        del request_id
        least = min(self.busy[name] for name in self.servers)
        return random.choice([name for name in self.servers if self.busy[name] == least])


class Tokens(Least):
    """Counts what it gave out in tokens of its own kind: 10 a request."""

    each = 10

    def __init__(self, servers: dict[str, Any]) -> None:
        super().__init__(servers)
        self.free = dict.fromkeys(servers, 1000)

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        name, handle = super().acquire_server(request_id)
        self.free[name] -= self.each
        return name, handle

    def release_server(self, server_id: str) -> None:
        super().release_server(server_id)
        self.free[server_id] += self.each

    def get_status(self) -> dict[str, Any]:
        return {"servers": {name: self.free[name] for name in self.servers}}

    get_total_inflight = None  # type: ignore[assignment]


class LeakingTokens(Tokens):
    """WRONG: gives back less than it took."""

    def release_server(self, server_id: str) -> None:
        super().release_server(server_id)
        self.free[server_id] -= 1


class Draining(Least):
    """A removed replica keeps the sessions that it has."""

    def __init__(self, servers: dict[str, Any]) -> None:
        super().__init__(servers)
        self.handles = dict(servers)

    def place(self, request_id: str) -> str:
        name = self.home.get(request_id, "")
        return name if name in self.handles else self.pick(request_id)

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        if not self.servers and self.home.get(request_id) not in self.handles:
            raise RuntimeError("no replica takes new sessions")
        name = self.home[request_id] = self.place(request_id)
        self.busy[name] += 1
        return name, self.handles[name]


class DrainingNever(Draining):
    """WRONG: new sessions go to what drains, too."""

    def pick(self, request_id: str) -> str:
        del request_id
        return random.choice(list(self.handles))


class Asynchronous(Least):
    """As an actor with async methods has them."""

    async def acquire_server(self, request_id: str) -> tuple[str, Any]:  # type: ignore[override]
        return super().acquire_server(request_id)

    async def release_server(self, server_id: str) -> None:  # type: ignore[override]
        super().release_server(server_id)


class Overtaken(Asynchronous):
    """WRONG: reads a count, waits, and writes what it read."""

    async def release_server(self, server_id: str) -> None:  # type: ignore[override]
        count = self.busy[server_id]
        await asyncio.sleep(0.1)
        self.busy[server_id] = count - 1


# The table


class PrefixSlot(Slot):
    prompt: Any = ()

    def acquire(self) -> Any:
        return self.worker.balancer.acquire_server.remote(self.request_id, prompt_ids=self.prompt)


class Telling(Worker):
    """Tells the balancer what the prompt is."""

    async def ask(self, job: Job) -> Any:
        slot = PrefixSlot(self, job.request_id)
        slot.prompt = job.prompt + job.answer
        async with slot:
            return await self.call(slot, job)


Build = Callable[[Any], Any]


def built(worker: type[Worker], balancer: type[Any] | None = None) -> Build:
    def build(context: Any) -> Worker:
        return worker(context, None if balancer is None else context.make_balancer(balancer))

    return build


class Design(NamedTuple):
    right: Build
    wrong: Build
    policies: dict[str, str]
    caught_by: str
    kind: str


DESIGNS: dict[str, Design] = {
    "round-robin": Design(built(Worker, Ring), built(Worker, UnevenRing), {"routing": "round-robin"}, "R1", "routing"),
    "power-of-two": Design(
        built(Worker, TwoChoices), built(Worker, WorseOfTwo), {"routing": "power-of-two"}, "R1", "routing"
    ),
    "random": Design(built(Worker, AnyOne), built(Worker, NeverTheLast), {"routing": "random"}, "R4", "routing"),
    "affinity": Design(
        built(Telling, Prefixes), built(Telling, PrefixesAfterAll), {"routing": "affinity"}, "R5", "routing"
    ),
    "hash": Design(built(Worker, Rendezvous), built(Worker, Salted), {"routing": "hash"}, "R2", "routing"),
    "hash-modulo": Design(built(Worker, Modulo), built(Worker, Salted), {"routing": "hash"}, "R2", "routing"),
    "drop-on-abort": Design(built(Dropping), built(Forgetting), {"after_abort": "restart"}, "B2", "budget"),
    "raise-on-abort": Design(built(Raising), built(RaisingAnyhow), {"after_abort": "raise"}, "A9", "lifecycle"),
    "fail-fast": Design(built(FailingFast), built(FailingAtLong), {"fail_fast": "yes"}, "A9", "lifecycle"),
    "hedged": Design(built(Hedging), built(HedgingTwice), {"hedged": "yes"}, "R7", "routing"),
    "own-default": Design(built(OwnDefault), built(OwnDefaultOverAll), {"default_limit": "own"}, "B1", "budget"),
    "capped": Design(built(Capping), built(CappingLow), {"explicit_limit": "capped"}, "B2", "budget"),
    "assistant-budget": Design(
        built(WholeTrajectory), built(Worker), {"budget": "trajectory-assistant"}, "B1", "budget"
    ),
    "fail-over": Design(built(FailingOver), built(RoamingOver), {"sticky": "fail-over"}, "R2", "routing"),
    "own-counts": Design(built(Worker, Tokens), built(Worker, LeakingTokens), {"routing": "custom"}, "R3", "routing"),
    "draining": Design(built(Worker, Draining), built(Worker, DrainingNever), {"removal": "drains"}, "R5", "routing"),
    "async-methods": Design(built(Worker, Asynchronous), built(Worker, Overtaken), {}, "R3", "routing"),
}
for _design in DESIGNS.values():
    for _build in (_design.right, _design.wrong):
        _build.rollcage_policies = {"budget": "turn", **_design.policies}  # type: ignore[attr-defined]
