"""A framework of its own: `hive`. Nothing in it is spelled, shaped or sent as anywhere else.

Its config is flat, its limit is a field of an object, its servers `complete` a task, and its queen leases workers: a
lease is an object that goes back as it came. Three SUTs: `hive` is good, `hive:greedy` never says what is left, and the
queen of `hive:lopsided` sends everyone to her favourite.
"""

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from sim.sut.framework import Framework, Returned, Sut
from sim.sut.frameworks import register_framework
from sim.transport.protocol import AskedFor, BalancerProtocol, RequestProtocol

# What it knows


@dataclass(frozen=True)
class Settings:
    """Its config; None: it was not told."""

    longest_answer: Any
    whole_context: int
    goes_on: bool


def make_config(case):
    shown = case.budget.client_response_length
    return Settings(None if shown is UNSET else shown, case.budget.context_tokens, case.partial_rollout)


def make_params(limit):
    return {"wish": {"most": None if limit is None else limit.tokens}}


@dataclass(frozen=True)
class Task:
    """What a client asks a worker for."""

    text: list
    most: int | None


@dataclass(frozen=True)
class Honey:
    """What a worker answers."""

    drops: list
    ripe: bool
    """Whether it came to its own end."""
    season: int


@dataclass
class Comb:
    """What a client returns."""

    drops: list
    ripe: bool
    seasons: list


class Worker:
    """A server, as clients and the keeper know it."""

    def __init__(self, server):
        self._server = server

    def complete(self, request, task, *, tag):
        wish = {} if task.most is None else {"max_tokens": task.most}
        return self._server.generate(request, task.text, wish, tag)

    async def smoke_out(self, forget):
        return await self._server.abort_all(reset_prefix_cache=forget)

    async def rest(self, how):
        await self._server.pause(how)

    async def wake(self):
        await self._server.resume()

    async def season(self, number):
        await self._server.set_weight_version(number)

    async def recall(self, tag):
        return await self._server.abort_request(tag)


class Keeper:
    """How its trainer calls workers."""

    def abort_all(self, server, *, reset_prefix_cache, reject):
        del reject  # its workers cannot
        return server.smoke_out.remote(reset_prefix_cache)

    def pause(self, server, mode, *, clear_cache):
        del clear_cache
        return server.rest.remote(mode)

    def resume(self, server):
        return server.wake.remote()

    def set_weight_version(self, server, version):
        return server.season.remote(version)

    def abort_request(self, server, request_id):
        return server.recall.remote(request_id)


# Its balancer


@dataclass(frozen=True)
class Lease:
    worker: str
    handle: Any
    bee: str


class Queen:
    """Leases the worker with the fewest leases, and the same again to whom she knows."""

    def __init__(self, workers):
        self.workers = dict(workers)
        self.leases = {name: [] for name in self.workers}
        self.known = {}

    def lease(self, bee):
        name = self.known.get(bee)
        if name not in self.workers:
            name = self.choose()
        self.known[bee] = name
        self.leases[name].append(bee)
        return Lease(name, self.workers[name], bee)

    def choose(self):
        fewest = min(len(leases) for leases in self.leases.values())
        equals = [name for name, leases in self.leases.items() if len(leases) == fewest]
        return random.choice(equals)

    def give_back(self, lease):
        bees = self.leases.get(lease.worker, [])
        if lease.bee in bees:
            bees.remove(lease.bee)

    def hatch(self, name, handle):
        self.workers[name] = handle
        self.leases.setdefault(name, [])

    def lose(self, name):
        self.workers.pop(name, None)
        self.leases.pop(name, None)

    def forget(self):
        self.known.clear()

    def census(self):
        return [(name, len(leases)) for name, leases in self.leases.items()]


class LopsidedQueen(Queen):
    """Chooses her first worker, however busy."""

    def choose(self):
        return next(iter(self.workers))


def replicas(role, args, kwargs, result):
    match role:
        case "acquire":
            return [result.worker] if isinstance(result, Lease) else []
        case "release":
            (lease,) = (*args, *kwargs.values())
            return [lease.worker]
        case "add" | "remove":
            return args[:1]
    return []


def counts(queen):
    def shown():
        census = dict(queen.census())
        return census, sum(census.values())

    return shown


def everyone(calls):
    return asyncio.gather(*calls)


BALANCER = BalancerProtocol(
    roles={"lease": "acquire", "give_back": "release", "hatch": "add", "lose": "remove", "forget": "clear_sticky"},
    make=lambda cls, servers: cls(servers),
    replicas=replicas,
    counts=counts,
    add=lambda queen, servers: everyone([queen.hatch.remote(*each) for each in servers.items()]),
    remove=lambda queen, names: everyone([queen.lose.remote(name) for name in names]),
    clear_sticky=lambda queen: queen.forget.remote(),
)


# Its client


class Bee:
    """Collects what was asked for, and goes on after it was smoked out."""

    def __init__(self, settings, queen):
        self.settings = settings
        self.queen = queen

    def wanted(self, most):
        """Drops of a whole answer; None: whatever the worker gives."""
        if most is None:
            most = self.settings.longest_answer
            if type(most) is not int or most <= 0:
                logging.getLogger("hive").warning("longest_answer is %r: each worker gives what it likes", most)
                return None
        return most

    async def collect(self, name, flower, most):
        comb, wanted = Comb([], False, []), self.wanted(most)
        while len(flower) + len(comb.drops) < self.settings.whole_context:
            left = None if wanted is None else wanted - len(comb.drops)
            if left == 0:
                break
            lease = await self.lease(name)
            try:
                task = Task(flower + comb.drops, self.said(left))
                honey = await lease.handle.complete.remote(task, tag=f"{name}/{len(comb.drops)}")
            finally:
                self.queen.give_back.remote(lease)
            comb.drops += honey.drops
            comb.seasons += [honey.season] * bool(honey.drops)
            if honey.ripe or not self.settings.goes_on:
                break
            await asyncio.sleep(0.5)
        return comb

    def said(self, left):
        """What a worker is told of what is left."""
        return left

    async def lease(self, name):
        """A lease; who leaves before it comes gives it back when it does."""
        asked = self.queen.lease.remote(name)
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(lambda late: self.queen.give_back.remote(late.result()))
            raise


class GreedyBee(Bee):
    """Never says what is left."""

    def said(self, left):
        return None


class AsCallersKnowIt:
    """A bee, called as the agent loop calls clients."""

    def __init__(self, bee):
        self.bee = bee

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        del kwargs
        return await self.bee.collect(request_id, prompt_ids, sampling_params["wish"]["most"])


def make_output(token_ids, log_probs, stop_reason, version):
    del log_probs
    return Honey(token_ids, stop_reason in ("completed", "stop", "length"), version)


def returned(comb):
    return Returned(comb.drops, None, min(comb.seasons, default=None), max(comb.seasons, default=None))


def read(args, kwargs):
    (task,) = args
    del kwargs
    return AskedFor(task.text, {} if task.most is None else {"most": task.most})


BEES = {"hive": (Bee, Queen), "hive:greedy": (GreedyBee, Queen), "hive:lopsided": (Bee, LopsidedQueen)}


def load(name):
    bee, queen = BEES[name]

    def factory(context):
        return AsCallersKnowIt(bee(context.config, context.make_balancer(queen)))

    return Sut(name, f"{name}==1.0", factory, HIVE)


HIVE = Framework(
    name="hive",
    make_config=make_config,
    budget_setting="longest_answer",
    make_params=make_params,
    requests=RequestProtocol("complete", read),
    trainer=Keeper(),
    balancer=BALANCER,
    make_face=Worker,
    make_output=make_output,
    returned=returned,
    make_balancer=lambda servers, router: Queen(servers),
    suts=tuple(BEES),
    load=load,
)

register_framework(HIVE)


def build(context):
    """A factory of a user's own, in the hive's shape."""
    return AsCallersKnowIt(Bee(context.config, context.balancer))


build.rollcage_framework = "hive"
