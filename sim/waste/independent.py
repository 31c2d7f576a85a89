"""Many responses under timed weight updates, computed at once instead of simulated.

On today's servers every request decodes at a constant rate, however many there are. A response's fate then follows
from its own lengths, its arrival and the times of the updates, and NumPy goes through all responses one attempt at
a time. It is exact, not an estimate: `tests/waste/test_independent.py` holds it against the world, and
`sim.waste.what_if` simulates a sample of every run again. Where outcomes might depend on the order of events in one
instant, or on each other, `waste_of_all` says so by returning None, and the world must be simulated.

Not covered: several turns, transport delays, explicit limits, clients other than the two reference ones.
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.case import Budget
from sim.clock import to_ns
from sim.dialects import DIALECTS
from sim.sut.reference.client import RESUME_WAIT_S
from sim.waste.ledger import Tally, Waste
from sim.waste.variants import Client

Ints = NDArray[np.int64]

MOST_ATTEMPTS = 100_000
"""More of one response than any budget allows: an update leaves time for at least a token."""


class Pace(NamedTuple):
    """The times of a world in nanoseconds: a weight update each `update_ns` (0: never), the k-th at k times that."""

    token_ns: int
    prefill_ns: int
    update_ns: int
    pause_ns: int

    @property
    def idle_ns(self) -> int:
        """From an abort to the resume's start: the update's pause, or the client's wait if that is longer."""
        return max(self.pause_ns, to_ns(RESUME_WAIT_S))

    @property
    def makes_progress(self) -> bool:
        """Whether there is time for a token between two updates."""
        return not self.update_ns or self.update_ns - self.idle_ns >= self.token_ns + self.prefill_ns


def waste_of_all(
    prompts: Ints,
    stops_after: Ints,
    arrivals_ns: Ints,
    *,
    budget: Budget,
    dialect: str,
    client: Client,
    partial_rollout: bool,
    pace: Pace,
) -> Waste | None:
    """The sums over responses of one turn each; None where only a simulation can tell.

    `stops_after`: the model's own end, `NEVER` where it has none. Prompts are at most max_model_len.
    """
    assert pace.makes_progress, "an update must leave time for a token"
    rules = DIALECTS[dialect]
    r, context = budget.response_length, budget.context_tokens
    honours = bool(rules.limit_keys) and client == "pinned"
    waits_for_first_token = rules.pause_waits_for == "first token"

    waste = Waste(responses=len(prompts))
    decoded = np.zeros_like(prompts)
    dropped = np.zeros(len(prompts), dtype=bool)
    live = np.flatnonzero(prompts < context)
    asked_ns = arrivals_ns[live]
    for _ in range(MOST_ATTEMPTS):
        if not len(live):
            break
        p, done = prompts[live], decoded[live]
        start_ns, next_ns = _started(asked_ns, pace)
        if start_ns is None:
            return None
        room = context - p - done - rules.reserved_tokens
        wanted = r - done if honours else functools.reduce(np.minimum, rules.default.terms(budget, p + done))
        grant = np.maximum(rules.least_grant, np.minimum(wanted, room))
        end = np.minimum(grant, stops_after[live] - done)
        first_ns = start_ns + pace.prefill_ns
        tokens, aborted = end, np.zeros(len(live), dtype=bool)
        if pace.update_ns:
            so_far = (next_ns - first_ns) // pace.token_ns
            aborted = so_far < end
            if waits_for_first_token and bool((aborted & (so_far < 1)).any()):
                return None  # vLLM's gate waits for a first token, and so holds up everyone on that replica
            tokens = np.minimum(end, np.maximum(so_far, 0))
        done = done + tokens
        decoded[live] = done
        before = done - tokens
        waste.prefill_tokens += int(p[(tokens > 0) & (before == 0)].sum())
        waste.recomputed_tokens += int((p + before)[(tokens > 0) & (before > 0)].sum())
        goes_on = aborted & (p + done < context)
        if client == "pinned":
            goes_on &= done < r
        if not partial_rollout:
            dropped[live] = aborted & (done < r) & (context - p - done - rules.reserved_tokens > 0)
            break
        live, asked_ns = live[goes_on], (next_ns + to_ns(RESUME_WAIT_S))[goes_on]
    _count(waste, prompts, decoded, dropped, r)
    return waste


def _started(asked_ns: Ints, pace: Pace) -> tuple[Ints | None, Ints]:
    """When requests that are sent at `asked_ns` begin, and the next update after that; None at a tie with one."""
    if not pace.update_ns:
        return asked_ns, asked_ns
    last = asked_ns // pace.update_ns
    if bool(((asked_ns == last * pace.update_ns) & (last > 0)).any()):
        return None, asked_ns
    resumed_ns = np.where(last > 0, last * pace.update_ns + pace.pause_ns, 0)
    return np.maximum(asked_ns, resumed_ns), (last + 1) * pace.update_ns


def _count(waste: Waste, prompts: Ints, decoded: Ints, dropped: NDArray[np.bool_], response_length: int) -> None:
    waste.delivered_tokens = int(decoded.sum())
    within = np.minimum(decoded, response_length)
    beyond = decoded - within
    waste.count("dropped", _tally(prompts[dropped], decoded[dropped]))
    waste.count("kept", _tally(prompts[~dropped], within[~dropped]))
    waste.count("overrun", _tally(prompts[~dropped] + response_length, beyond[~dropped]))


def _tally(positions: Ints, tokens: Ints) -> Tally:
    """As `sim.waste.ledger.tally`, over many rows."""
    return Tally(int(tokens.sum()), int((tokens * positions + tokens * (tokens - 1) // 2).sum()))
