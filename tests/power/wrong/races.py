"""What is wrong under one order of two events only: right in every run in which nothing comes in between."""

import asyncio
from collections import deque

from tests.power.wrong.base import Client, LeastLoadedBalancer, balancer, client, step

# Balancers with async methods, as Ray's async actors have: other messages are handled wherever they await.


class LostAcquire(LeastLoadedBalancer):
    """Reads the count before it waits, and writes it after."""

    async def acquire_server(self, request_id):
        before = dict(self.loads)
        await step()
        name, handle = super().acquire_server(request_id)
        if name in before:
            self.loads[name] = before[name] + 1
        return name, handle


class LostRelease(LeastLoadedBalancer):
    """The same for releases."""

    async def release_server(self, server_id, request_id=None):
        before = self.loads.get(server_id)
        await step()
        super().release_server(server_id, request_id)
        if before and server_id in self.loads:
            self.loads[server_id] = before - 1


class ChoosesThenCounts(LeastLoadedBalancer):
    """Two who come at once choose before either is counted."""

    async def acquire_server(self, request_id):
        name = self.session_server.get(request_id)
        if name not in self.servers:
            name = self.choose()
        await step()
        if name in self.servers:
            self.session_server[request_id] = name
        return super().acquire_server(request_id)


class HandsOutTheGone(LeastLoadedBalancer):
    """The replica that was chosen may be gone when the answer leaves."""

    async def acquire_server(self, request_id):
        found = super().acquire_server(request_id)
        await step()
        await step()
        return found


class GathersThem(LeastLoadedBalancer):
    """All who come within a moment go to the same replica."""

    gathering = None

    async def acquire_server(self, request_id):
        if self.gathering is None:
            self.gathering = self.choose()
            await step()
            name, self.gathering = self.gathering, None
        else:
            name = self.gathering
        if self.session_server.get(request_id) not in self.servers and name in self.servers:
            self.session_server[request_id] = name
        return super().acquire_server(request_id)


class GhostAfterRelease(LeastLoadedBalancer):
    """A release that waits writes its replica's count anew, though that has left meanwhile."""

    async def release_server(self, server_id, request_id=None):
        known = server_id in self.loads
        await step()
        super().release_server(server_id, request_id)
        if known and server_id not in self.loads:
            self.loads[server_id] = 0


class AddsThenResets(LeastLoadedBalancer):
    """A replica that is added is usable before its count is set to zero."""

    async def add_servers(self, servers):
        anew = [name for name in servers if name not in self.servers]
        super().add_servers(servers)
        await step()
        for name in anew:
            if name in self.loads:
                self.loads[name] = 0
                self.in_flight[name] = {}


class WaitersKeepTheirChoice(LeastLoadedBalancer):
    """At most two a replica: who waits for a place has chosen before."""

    async def acquire_server(self, request_id):
        name = self.session_server.get(request_id)
        if name not in self.servers:
            name = self.choose()
        handle = self.servers[name]
        for _ in range(1000):
            if self.loads.get(name, 0) < 2:
                break
            await asyncio.sleep(0.01)
        if name in self.servers:
            self.session_server[request_id] = name
            return super().acquire_server(request_id)
        return name, handle


class NobodyWakesThem(LeastLoadedBalancer):
    """At most four at once: a release wakes one waiter, and a removal takes the place that he was to have."""

    def __init__(self, servers):
        super().__init__(servers)
        self.waiting = deque()

    async def acquire_server(self, request_id):
        if sum(self.loads.values()) >= 4:
            place = asyncio.get_running_loop().create_future()
            self.waiting.append(place)
            await place
        return super().acquire_server(request_id)

    def release_server(self, server_id, request_id=None):
        super().release_server(server_id, request_id)
        if self.waiting and server_id in self.servers:
            self.waiting.popleft().set_result(None)


# Clients that keep between two awaits what another session may change, or are cancelled in one very step.


class SharedLimit(Client):
    """Writes down what is left before it acquires, where all sessions write."""

    async def attempt(self, call):
        self.left = call.left
        return await super().attempt(call)

    def limit(self, call):
        return None if call.left is None else self.left


class SharedPrompt(Client):
    """Puts the prompt together before it acquires, in one place for all."""

    async def attempt(self, call):
        self.sent = call.prompt + call.ids
        return await super().attempt(call)

    def prompt(self, call):
        return self.sent


class SharedServer(Client):
    """Releases whichever server was acquired last."""

    async def attempt(self, call):
        self.name, server = await self.acquire(call)
        try:
            return await self.ask(call, server)
        finally:
            self.release(self.name)


class LostPermit(Client):
    """Counts by hand who is under way, and writes the count after an await; at most four may be."""

    under_way = 0

    async def attempt(self, call):
        while self.under_way >= 4:
            await asyncio.sleep(0.1)
        self.under_way += 1
        try:
            return await super().attempt(call)
        finally:
            now = self.under_way
            await step()
            self.under_way = now - 1


class SharedVersion(Client):
    """Names as the newest version that which was the last to answer, whomever."""

    newest = None

    def merge(self, call, output):
        super().merge(call, output)
        self.newest = output.extra_fields.get("global_steps")

    async def attempt(self, call):
        output = await super().attempt(call)
        await step()
        return output

    def result(self, call):
        output = super().result(call)
        if call.versions:
            output.extra_fields["max_global_steps"] = self.newest
        return output


class BetweenAcquireAndTry(Client):
    """Who is cancelled in the one step between the slot and the try keeps it."""

    async def attempt(self, call):
        name, server = await self.acquire(call)
        await step()
        try:
            return await self.ask(call, server)
        finally:
            self.release(name)


class ReleasesTwice(Client):
    """A cancel that comes in the step of the answer gives the slot back twice."""

    async def attempt(self, call):
        name, server = await self.acquire(call)
        promise = self.ask(call, server)
        try:
            output = await promise
        except BaseException:
            self.release(name)
            if promise.done() and not promise.cancelled() and promise.exception() is None:
                self.release(name)
            raise
        self.release(name)
        return output


class GivesBackIfWaiting(Client):
    """Cancelled while it acquires, it gives the slot back once that comes; one that has just come is forgotten."""

    async def acquire(self, call):
        promise = asyncio.ensure_future(self.balancer.acquire_server.remote(request_id=call.request_id))
        try:
            return await asyncio.shield(promise)
        except asyncio.CancelledError:
            if not promise.done():
                promise.add_done_callback(self.give_back)
            raise


class GivesBackIfThere(Client):
    """The other way round."""

    async def acquire(self, call):
        promise = asyncio.ensure_future(self.balancer.acquire_server.remote(request_id=call.request_id))
        try:
            return await asyncio.shield(promise)
        except asyncio.CancelledError:
            await step()
            if promise.done():
                self.give_back(promise)
            raise


class AnswersByCount(Client):
    """Answers are kept under the number of those under way, which two may have."""

    def __init__(self, config, balancer):
        super().__init__(config, balancer)
        self.answers = {}

    async def attempt(self, call):
        number = len(self.answers)
        output = await super().attempt(call)
        self.answers[number] = output
        await step()
        return self.answers.pop(number, output)


class RestsWithTheOthers(Client):
    """All rest until the first of them wakes; who joins in the very step in which that happens is not woken."""

    resumed = None

    async def rest(self, call):
        if self.resumed is None:
            self.resumed = asyncio.Event()
            asyncio.get_running_loop().call_later(self.rest_s, self.over)
        await step()
        await (self.resumed or asyncio.Event()).wait()

    def over(self):
        self.resumed.set()
        self.resumed = None


class PermitOfTheCancelled(Client):
    """At most three at once: a place that is handed to somebody who is cancelled in that step is lost."""

    def __init__(self, config, balancer):
        super().__init__(config, balancer)
        self.places, self.waiting = 3, deque()

    async def attempt(self, call):
        if self.places:
            self.places -= 1
        else:
            mine = asyncio.get_running_loop().create_future()
            self.waiting.append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if mine in self.waiting:
                    self.waiting.remove(mine)
                raise
        try:
            return await super().attempt(call)
        finally:
            while self.waiting:
                place = self.waiting.popleft()
                if not place.done():
                    place.set_result(None)
                    break
            else:
                self.places += 1


class CancelledInItsRest(Client):
    """The slot is kept over a rest that is short, and given back twice where that is cancelled."""

    async def attempt(self, call):
        name, server = await self.acquire(call)
        try:
            output = await self.ask(call, server)
        except BaseException:
            self.release(name)
            raise
        try:
            await step()
        except asyncio.CancelledError:
            self.release(name)
            raise
        finally:
            self.release(name)
        return output


WRONG = {
    "lost-acquire": balancer(LostAcquire, "R3", "R1"),
    "lost-release": balancer(LostRelease, "R3", "R1"),
    "chooses-then-counts": balancer(ChoosesThenCounts, "R1"),
    "hands-out-the-gone": balancer(HandsOutTheGone, "R5"),
    "gathers-them": balancer(GathersThem, "R1"),
    "ghost-after-release": balancer(GhostAfterRelease, "R3", "R1", "R5"),
    "adds-then-resets": balancer(AddsThenResets, "R3", "R1"),
    "waiters-keep-their-choice": balancer(WaitersKeepTheirChoice, "R5"),
    "nobody-wakes-them": balancer(NobodyWakesThem, "V1"),
    "shared-limit": client(SharedLimit, "B1", "B2"),
    "shared-prompt": client(SharedPrompt, "L1", "L3", "B1", "B2", "A2"),
    "shared-server": client(SharedServer, "R3", "R7", "R1"),
    "lost-permit": client(LostPermit, "V1"),
    "shared-version": client(SharedVersion, "S1"),
    "between-acquire-and-try": client(BetweenAcquireAndTry, "R7"),
    "releases-twice": client(ReleasesTwice, "R3", "R1"),
    "gives-back-if-waiting": client(GivesBackIfWaiting, "R7"),
    "gives-back-if-there": client(GivesBackIfThere, "R7"),
    "answers-by-count": client(AnswersByCount, "L1", "A2", "L3"),
    "rests-with-the-others": client(RestsWithTheOthers, "V1"),
    "permit-of-the-cancelled": client(PermitOfTheCancelled, "V1"),
    "cancelled-in-its-step": client(CancelledInItsRest, "R3", "R1"),
}
