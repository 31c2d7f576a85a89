"""What is wrong in worlds that seldom come: many turns, long rests, many sessions, exact lengths, replicas at once."""

import asyncio

from tests.power.wrong.base import ABORTED, Client, LeastLoadedBalancer, balancer, client


class AnewWithTheFourthTurn(Client):
    """From its fourth turn on a session's limit is not lowered when it is resumed."""

    def __init__(self, config, balancer):
        super().__init__(config, balancer)
        self.turns = {}

    async def generate(self, request_id, **kwargs):
        self.turns[request_id] = self.turns.get(request_id, 0) + 1
        return await super().generate(request_id, **kwargs)

    def limit(self, call):
        return call.budget if self.turns[call.request_id] >= 4 else super().limit(call)


class DropsWhatIsOld(Client):
    """What is more than two versions older than the newest answer of the response is dropped."""

    def merge(self, call, output):
        super().merge(call, output)
        newest = output.extra_fields.get("global_steps")
        if call.versions and newest is not None and newest - call.versions[0] > 2:
            first = call.pieces[0]
            call.ids, call.log_probs, call.versions = call.ids[first:], call.log_probs[first:], call.versions[1:]


class StopsAtTheLastToken(Client):
    """An abort that leaves exactly one token to ask for ends the response."""

    def has_room(self, call):
        return super().has_room(call) and not (call.aborts and call.left == 1)


class CachesTheAnswer(Client):
    """Who has the same prompt of another session gets that one's answer."""

    def __init__(self, config, balancer):
        super().__init__(config, balancer)
        self.answers = {}

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        key = (tuple(prompt_ids), tuple(sampling_params.items()))
        if key not in self.answers:
            answer = await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)
            if answer.stop_reason not in ABORTED:
                self.answers[key] = answer
            return answer
        return self.answers[key]


class LongPromptPaysTwice(Client):
    """A prompt above 256 tokens is counted in the resumed limit."""

    def limit(self, call):
        left = super().limit(call)
        return (
            left if left is None or len(call.prompt) <= 256 or not call.ids else max(1, left - len(call.prompt) // 256)
        )


class RaisesAtANewVersion(Client):
    """A response that more than two versions have worked on is an error."""

    def merge(self, call, output):
        super().merge(call, output)
        if len(set(call.versions)) > 2:
            raise RuntimeError("too many versions")


class RestsLonger(Client):
    """Each rest is twice as long as the one before; after the eighth it is for ever."""

    async def rest(self, call):
        if call.aborts >= 8:
            await asyncio.get_running_loop().create_future()
        await super().rest(call)


class LastTwoAtOnce(LeastLoadedBalancer):
    """Of replicas that leave at the same time only the first is forgotten by those who are there."""

    def __init__(self, servers):
        super().__init__(servers)
        self.handles = dict(servers)
        self.missing = 0

    def remove_servers(self, server_ids):
        super().remove_servers(server_ids)
        self.missing = len(self.handles) - len(self.servers)

    def acquire_server(self, request_id):
        name = self.session_server.get(request_id)
        if name is not None and name not in self.servers and self.missing >= 2:
            return name, self.handles[name]
        return super().acquire_server(request_id)


class LooksAtThree(LeastLoadedBalancer):
    """Looks at the first three replicas only."""

    def choose(self):
        first = list(self.servers)[:3]
        return min(first, key=self.loads.get) if len(self.servers) > 3 else super().choose()


class ManyAtOnce(LeastLoadedBalancer):
    """With 24 sessions in flight one more is not counted."""

    def acquire_server(self, request_id):
        found = super().acquire_server(request_id)
        if sum(self.loads.values()) > 24:
            self.release_server(found[0], request_id)
        return found


WRONG = {
    "anew-with-the-fourth-turn": client(AnewWithTheFourthTurn, "B1"),
    "drops-what-is-old": client(DropsWhatIsOld, "A2", "L1", "B1"),
    "stops-at-the-last-token": client(StopsAtTheLastToken, "B2"),
    "caches-the-answer": client(CachesTheAnswer, "L1", "A2", "S1"),
    "long-prompt-pays-twice": client(LongPromptPaysTwice, "B2"),
    "raises-at-a-third-version": client(RaisesAtANewVersion, "A9"),
    "rests-for-ever": client(RestsLonger, "V1"),
    "last-two-at-once": balancer(LastTwoAtOnce, "R5"),
    "looks-at-three": balancer(LooksAtThree, "R1"),
    "many-at-once": balancer(ManyAtOnce, "R3"),
}
