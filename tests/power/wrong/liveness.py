"""Clients that wait for ever, wake for nothing, give up, or turn what failed into something else."""

import asyncio

from tests.power.wrong.base import Client, Output, client


class WaitsForTheVersion(Client):
    """After its second abort a response waits until a newer version answers somebody."""

    newest = 0

    def merge(self, call, output):
        super().merge(call, output)
        self.newest = max(self.newest, output.extra_fields.get("global_steps") or 0)
        call.seen = output.extra_fields.get("global_steps") or 0

    async def rest(self, call):
        await super().rest(call)
        while call.aborts >= 2 and self.newest <= call.seen:
            await asyncio.sleep(self.rest_s)


class PollsWhileFull(Client):
    """Looks again at once for as long as three others are under way."""

    busy = 0

    async def attempt(self, call):
        while self.busy >= 3:
            await asyncio.sleep(0)
        self.busy += 1
        try:
            return await super().attempt(call)
        finally:
            self.busy -= 1


class GivesUpAfterFive(Client):
    """The fifth abort of a response ends it."""

    def goes_on(self, call):
        return super().goes_on(call) and call.aborts < 5

    def result(self, call):
        if call.aborts >= 5:
            call.reason = "length"
        return super().result(call)


class RaisesAtSix(Client):
    """The sixth abort of a response is an error."""

    def goes_on(self, call):
        if call.aborts == 6:
            raise RuntimeError("aborted too often")
        return super().goes_on(call)


class ErrorsAreEmpty(Client):
    """What fails when it is resumed is an empty answer."""

    async def attempt(self, call):
        try:
            return await super().attempt(call)
        except Exception:
            if not call.aborts:
                raise
            return Output([], [], "length", {})


class PermitsGetLost(Client):
    """At most four at once; who is cancelled keeps his permit."""

    def __init__(self, config, balancer):
        super().__init__(config, balancer)
        self.permits = asyncio.Semaphore(4)

    async def attempt(self, call):
        await self.permits.acquire()
        output = await super().attempt(call)
        self.permits.release()
        return output


class LocksWhatFailed(Client):
    """One request a session at a time, under a lock that only an answer opens; turns go on after an error."""

    def __init__(self, config, balancer):
        super().__init__(config, balancer)
        self.locks = {}

    async def attempt(self, call):
        lock = self.locks.setdefault(call.request_id, asyncio.Lock())
        for _ in range(2):
            await lock.acquire()
            try:
                output = await super().attempt(call)
            except Exception:
                await asyncio.sleep(self.rest_s)
                continue
            lock.release()
            return output
        raise RuntimeError("failed twice")


class WaitsForCompany(Client):
    """A resume waits until no other response is between abort and resume, and looks for that when one ends."""

    def __init__(self, config, balancer):
        super().__init__(config, balancer)
        self.resting = 0
        self.free = asyncio.Event()

    async def rest(self, call):
        self.resting += 1
        await super().rest(call)
        while self.resting > 1:
            self.free.clear()
            await self.free.wait()
        self.resting -= 1
        self.free.set()


WRONG = {
    "waits-for-the-version": client(WaitsForTheVersion, "V1"),
    "polls-while-full": client(PollsWhileFull, "V1"),
    "gives-up-after-five": client(GivesUpAfterFive, "B2"),
    "raises-at-six": client(RaisesAtSix, "A9"),
    "errors-are-empty": client(ErrorsAreEmpty, "B2"),
    "permits-get-lost": client(PermitsGetLost, "V1"),
    "locks-what-failed": client(LocksWhatFailed, "V1"),
    "waits-for-company": client(WaitsForCompany, "V1"),
}
