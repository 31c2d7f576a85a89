"""Balancers that choose, remember or count wrongly."""

from tests.power.wrong.base import LeastLoadedBalancer, balancer


class RemembersEight(LeastLoadedBalancer):
    """Remembers where eight sessions are; a ninth pushes the oldest out."""

    def acquire_server(self, request_id):
        found = super().acquire_server(request_id)
        while len(self.session_server) > 8:
            self.session_server.popitem(last=False)
        return found


class StaysFourTimes(LeastLoadedBalancer):
    """A session chooses anew with every fifth request."""

    def __init__(self, servers):
        super().__init__(servers)
        self.times = {}

    def acquire_server(self, request_id):
        self.times[request_id] = self.times.get(request_id, 0) + 1
        if self.times[request_id] % 5 == 0:
            self.session_server.pop(request_id, None)
        return super().acquire_server(request_id)


class FirstOfMany(LeastLoadedBalancer):
    """Takes the first of more than two equals."""

    def choose(self):
        least = min(self.loads.values(), default=0)
        equals = [name for name, load in self.loads.items() if load == least]
        return equals[0] if len(equals) > 2 else super().choose()


class OneCountForBoth(LeastLoadedBalancer):
    """A release that comes when its replica has left and come back is counted against the new one."""

    def release_server(self, server_id, request_id=None):
        if server_id in self.loads and self.loads[server_id] > 0:
            self._earlier.pop(server_id, None)
        super().release_server(server_id, request_id)


class ComesBackFull(LeastLoadedBalancer):
    """A replica that comes back has the count with which it left."""

    def __init__(self, servers):
        super().__init__(servers)
        self.left_with = {}

    def remove_servers(self, server_ids):
        for name in server_ids:
            self.left_with[name] = self.loads.get(name, 0)
        super().remove_servers(server_ids)

    def add_servers(self, servers):
        anew = [name for name in servers if name not in self.servers]
        super().add_servers(servers)
        for name in anew:
            self.loads[name] += self.left_with.pop(name, 0)


class ForgetsTheOthers(LeastLoadedBalancer):
    """When a replica leaves, nobody's place is remembered."""

    def remove_servers(self, server_ids):
        super().remove_servers(server_ids)
        self.session_server.clear()


class SecondBestInACrowd(LeastLoadedBalancer):
    """With more than six requests in flight the second best will do."""

    def choose(self):
        if len(self.loads) > 1 and sum(self.loads.values()) > 6:
            return sorted(self.loads, key=self.loads.get)[1]
        return super().choose()


class LooksEveryThird(LeastLoadedBalancer):
    """Looks at the counts with every third choice, and takes turns meanwhile."""

    looks = 0
    best = ()

    def choose(self):
        self.looks += 1
        if self.looks % 3 == 1 or not set(self.best) <= set(self.servers) or not self.best:
            self.best = tuple(sorted(self.servers, key=self.loads.get))
        return self.best[self.looks % min(2, len(self.best))]


class ClearsTheCounts(LeastLoadedBalancer):
    """To clear the sticky cache starts the counts at zero, where somebody is in flight on every replica."""

    def clear_sticky_cache(self):
        if self.loads and all(self.loads.values()):
            self.loads = dict.fromkeys(self.loads, 0)
            self.in_flight = {name: {} for name in self.in_flight}
        return super().clear_sticky_cache()


class KeepsWhoIsUnderWay(LeastLoadedBalancer):
    """A removed replica still gets the sessions that have a request there."""

    def __init__(self, servers):
        super().__init__(servers)
        self.gone = {}

    def remove_servers(self, server_ids):
        for name in server_ids:
            if self.in_flight.get(name):
                self.gone[name] = (self.servers.get(name), set(self.in_flight[name]))
        super().remove_servers(server_ids)

    def acquire_server(self, request_id):
        name = self.session_server.get(request_id)
        if name in self.gone and name not in self.servers and request_id in self.gone[name][1]:
            return name, self.gone[name][0]
        return super().acquire_server(request_id)


class NeverComesBack(LeastLoadedBalancer):
    """A replica that has left twice is not taken back."""

    def __init__(self, servers):
        super().__init__(servers)
        self.left = {}

    def remove_servers(self, server_ids):
        for name in server_ids:
            self.left[name] = self.left.get(name, 0) + 1
        super().remove_servers(server_ids)

    def choose(self):
        usable = {name: load for name, load in self.loads.items() if self.left.get(name, 0) < 2}
        if not usable:
            return super().choose()
        return min(usable, key=usable.get)


class ReleasesTheWrongOne(LeastLoadedBalancer):
    """A release for a replica that is not there is taken for one of the fullest's."""

    def release_server(self, server_id, request_id=None):
        if server_id not in self.servers and self.servers:
            fullest = max(self.loads, key=self.loads.get)
            if self.loads[fullest]:
                super().release_server(fullest)
                return
        super().release_server(server_id, request_id)


WRONG = {
    "remembers-eight": balancer(RemembersEight, "R2"),
    "stays-four-times": balancer(StaysFourTimes, "R2"),
    "first-of-many": balancer(FirstOfMany, "R4"),
    "one-count-for-both": balancer(OneCountForBoth, "R3", "R1"),
    "comes-back-full": balancer(ComesBackFull, "R3", "R1"),
    "forgets-the-others": balancer(ForgetsTheOthers, "R2"),
    "second-best-in-a-crowd": balancer(SecondBestInACrowd, "R1"),
    "looks-every-third": balancer(LooksEveryThird, "R1"),
    "clears-the-counts": balancer(ClearsTheCounts, "R3", "R1"),
    "keeps-who-is-under-way": balancer(KeepsWhoIsUnderWay, "R5"),
    "never-comes-back": balancer(NeverComesBack, "R1"),
    "releases-the-wrong-one": balancer(ReleasesTheWrongOne, "R3", "R1"),
}
