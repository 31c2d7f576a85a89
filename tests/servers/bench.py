"""A bench: one simulated server on a virtual loop, without a world around it. A token takes 1 s."""

import asyncio

from sim.case import Budget, ServerSettings
from sim.clock import VirtualLoop, to_ns
from sim.dialects import DIALECTS
from sim.engine import Engine, EngineConfig
from sim.engine.latency import Constant
from sim.engine.timed import TimedEngine
from sim.servers.gate import SubmissionGate
from sim.servers.port import ServerParts
from sim.servers.server import SimulatedServer
from sim.sut.verl.servers import TokenOutput
from sim.tokens import first_token
from sim.trace import Trace

BUDGET = Budget(prompt_length=8, response_length=10, max_model_len=32)


class NeverStops:
    """A model that goes on, unless told where a session stops; and nobody who watches."""

    def __init__(self):
        self.stops = {}

    def stop_after(self, session, prompt_tokens):
        del prompt_tokens
        return self.stops.get(session)

    def shared_prompt(self, session):
        del session

    def priority(self, session):
        del session
        return 0

    def next_threshold(self, session):
        del session

    def decoded(self, session, tokens):
        pass

    def total(self, session):
        del session
        return 0


def plain_output(token_ids, log_probs, stop_reason, version):
    """An answer as verl's clients know it, its tokens as lists."""
    log_probs = None if log_probs is None else list(log_probs)
    return TokenOutput(list(token_ids), log_probs, stop_reason, extra_fields={"global_steps": version})


class Bench:
    """One server, its loop and its trace."""

    def __init__(self, dialect="vllm", *, token_time_s=1.0, max_num_seqs=8, **settings):
        self.dialect = dialect
        self.loop = VirtualLoop()
        self.trace = Trace(8)
        self.model = NeverStops()
        settings = ServerSettings(dialect, token_time_s=token_time_s, **settings)
        config = EngineConfig(
            num_gpu_blocks=101, block_size=4, max_num_seqs=max_num_seqs, max_num_batched_tokens=64, max_model_len=40
        )
        engine = TimedEngine(Engine(config), Constant(to_ns(token_time_s), to_ns(settings.prefill_s)))
        self.server = SimulatedServer(
            ServerParts(
                replica=0,
                settings=settings,
                dialect=settings.rules,
                budget=BUDGET,
                gate=SubmissionGate(),
                engine=engine,
                clock=self.loop,
                events=self.trace,
                model=self.model,
                watcher=self.model,
                make_output=plain_output,
            )
        )
        self.requests = 0

    def ask(self, session=0, prompt_tokens=4, at_s=0.0, **params):
        """A task that asks for a generation at a given time."""
        request = self.requests
        self.requests += 1
        params = {"temperature": 1.0, "logprobs": True} | params
        prompt_ids = list(range(first_token(session), first_token(session) + prompt_tokens))

        async def call():
            await asyncio.sleep(at_s)
            answer = await self.server.generate(request, prompt_ids, params, f"id-{request}")
            assert answer.tokens == len(answer.output.token_ids)
            return answer.output

        return self.loop.create_task(call())

    def at(self, at_s, method, *args, **kwargs):
        """A task that calls another method of the server at a given time."""

        async def call():
            await asyncio.sleep(at_s)
            return await getattr(self.server, method)(*args, **kwargs)

        return self.loop.create_task(call())

    def run(self, *tasks):
        """The tasks' results, when all is over."""
        return self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    def events(self, *kinds):
        return [event for event in self.trace.events if isinstance(event, kinds)]


def limit_of_10(dialect):
    """Params with the limit that verl's servers assume for a short prompt, for those that assume another."""
    if not dialect.startswith("plain-"):
        return {}
    return {DIALECTS[dialect].limit_keys[0]: 10}
