"""An invariant of its own: `T1`, and a client that breaks it.

`toy_invariant:hedging` asks twice at once, and takes the first answer.
"""

import asyncio

from sim.invariants.interface import Invariant
from sim.invariants.table import register_invariant
from sim.invariants.violation import Violation
from sim.sut.reference.client import PinnedClient


def check_one_at_a_time(evidence):
    """Whether each request of a turn was sent after the answer to the one before it."""
    for session, turn in evidence.ledger.turns():
        for before, after in zip(turn.attempts, turn.attempts[1:], strict=False):
            if before.delivered is None or before.delivered.t_ns > after.sent.t_ns:
                number = turn.started.turn
                yield Violation(
                    "T1", f"session {session} turn {number} sent a request before it had its answer", session
                )


register_invariant(Invariant("T1", "lifecycle", "A turn has one request at a time.", check_one_at_a_time))


class Hedging(PinnedClient):
    async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
        twice = [
            asyncio.ensure_future(super(Hedging, self).attempt(request_id, prompt_ids, dict(sampling_params)))
            for _ in range(2)
        ]
        done, _ = await asyncio.wait(twice, return_when=asyncio.FIRST_COMPLETED)
        return next(each for each in twice if each in done).result()


def hedging(context):
    return Hedging(context.config, context.balancer)
