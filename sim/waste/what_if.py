"""The same load under several policies and update intervals: what each of them wastes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from sim.case import Budget, Case, Router, ServerSettings, Session, Turn
from sim.clock import NS_PER_S, to_ns
from sim.events import WorldEnded
from sim.faults import AfterTokens, AtTime, Every, Fault, WeightUpdate, When
from sim.sut.registry import load_sut
from sim.trace import Trace
from sim.waste.closed_form import NEVER
from sim.waste.independent import Pace, waste_of_all
from sim.waste.ledger import Waste, mean_update_wait_s, waste_of
from sim.waste.lengths import Lengths
from sim.waste.policies import UPDATE_MODES, Policy
from sim.world import run_world

ARRIVAL_TICK_TOKENS = 10
"""Responses arrive at whole multiples of so many token times, plus `_ARRIVAL_OFFSET_TOKENS`."""

_ARRIVAL_OFFSET_TOKENS = 3
"""So that no arrival falls on an update: what happens in one instant is a race, and not what is compared here."""

SAMPLE = 40
"""Responses of each computed row that are simulated as well."""

MOST_FAULTS = 100_000

How = Literal["computed", "simulated"]


class WhatIfError(ValueError):
    """Settings that cannot be compared: the message names the setting, its value and what is allowed."""


class Disagreement(AssertionError):
    """A computed result and the simulation of its sample differ: a defect of this tool."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the policies have in common. Times are seconds, lengths tokens."""

    budget: Budget
    server: ServerSettings = ServerSettings()
    replicas: int = 1
    update_mode: str = UPDATE_MODES[0]
    pause_s: float = 1.0
    spread_s: float | None = None
    """Over how long responses arrive, evenly; None: over whole update intervals, as many as a mean response takes,
    so that an update finds responses at every stage alike, as it does in a run that goes on and on."""
    seed: int = 0
    simulate: bool = False
    """Whether everything is simulated, even where computing it is exact."""
    with_engine: bool = False
    """Whether the servers run on `server.engine`, with steps and KV, or decode at a constant rate whatever happens."""

    @property
    def of_servers(self) -> ServerSettings:
        return self.server if self.with_engine else msgspec.structs.replace(self.server, engine=None)

    @property
    def leaving(self) -> tuple[int, ...]:
        return tuple(range(self.replicas // 2)) if self.update_mode == "separate" else ()


@dataclass(frozen=True)
class Row:
    """One policy under one update interval (None: no updates)."""

    policy: str
    update_tokens: int | None
    waste: Waste
    how: How
    update_wait_s: float | None = None
    """How late the new weights came on average: an update may have to wait for the requests. None: not simulated."""


@dataclass
class Comparison:
    """What has been compared so far."""

    rows: list[Row] = field(default_factory=list)
    sampled: int = 0
    """Responses that were computed and simulated, and came out equal."""
    interrupted: bool = False


Progress = Callable[[int, int], None]
"""Called with the rows that are done and the rows in all."""


def compare(
    setting: Setting,
    load: Lengths,
    policies: list[Policy],
    intervals: list[int | None],
    progress: Progress = lambda *_: None,
) -> Comparison:
    """A row for each policy and interval (in token times). An interrupt ends it with the rows that it has."""
    for interval in intervals:
        check_interval(setting, interval)
    comparison = Comparison()
    of = len(policies) * len(intervals)
    try:
        for interval in intervals:
            for policy in policies:
                progress(len(comparison.rows), of)
                comparison.rows.append(_row(setting, load, policy, interval, comparison))
        progress(of, of)
    except KeyboardInterrupt:
        comparison.interrupted = True
    return comparison


def check_setting(setting: Setting) -> None:
    """Raises `WhatIfError` where a setting is impossible."""
    if setting.update_mode == "separate" and setting.replicas < 2:
        raise WhatIfError("update mode separate needs 2 replicas or more: half of them leave, the others stay")


def pace_of(setting: Setting, interval: int | None) -> Pace:
    token_ns = to_ns(setting.server.token_time_s)
    return Pace(token_ns, to_ns(setting.server.prefill_s), (interval or 0) * token_ns, to_ns(setting.pause_s))


def check_interval(setting: Setting, interval: int | None) -> None:
    """Raises `WhatIfError` where an update comes before the resume after the last one has decoded anything."""
    pace = pace_of(setting, interval)
    if not pace.makes_progress:
        least = -(-(pace.idle_ns + pace.prefill_ns) // pace.token_ns) + 1
        raise WhatIfError(
            f"an update every {interval} tokens ({pace.update_ns / NS_PER_S:g} s) leaves no time to decode: a resume "
            f"begins {pace.idle_ns / NS_PER_S:g} s after an abort; at least {least} tokens are needed"
        )


def _row(setting: Setting, load: Lengths, policy: Policy, interval: int | None, comparison: Comparison) -> Row:
    client = policy.builtin_client
    arrivals = arrivals_ns(setting, load, interval)
    computed = None
    if client is not None and not setting.simulate and is_independent(setting, load):
        assert client in ("deferred", "pinned")

        def compute(chosen: NDArray[np.int64]) -> Waste | None:
            return waste_of_all(
                load.prompts[chosen],
                load.responses[chosen, 0],
                arrivals[chosen],
                budget=setting.budget,
                dialect=setting.server.dialect,
                client="pinned" if client == "pinned" else "deferred",
                partial_rollout=policy.partial_rollout,
                pace=pace_of(setting, interval),
            )

        computed = compute(np.arange(len(load)))
    if computed is None:
        case, trace = _ran(setting, load, policy, interval, list(range(len(load))))
        return Row(policy.name, interval, waste_of(case, trace), "simulated", mean_update_wait_s(case, trace))
    sample = np.unique(np.linspace(0, len(load) - 1, SAMPLE).astype(np.int64))
    expected, found = compute(sample), waste_of(*_ran(setting, load, policy, interval, sample.tolist()))
    if expected != found:
        raise Disagreement(f"{policy.name}, update every {interval} tokens: computed {expected}, simulated {found}")
    comparison.sampled += len(sample)
    return Row(policy.name, interval, computed, "computed")


def is_independent(setting: Setting, load: Lengths) -> bool:
    """Whether no response's fate depends on another's, so that `sim.waste.independent` is exact.

    The servers decode at a constant rate, however many there are; one that queues, batches or preempts must end here.
    """
    return load.turns == 1 and not setting.server.admission_s and not setting.leaving and not setting.with_engine


# Worlds


def arrivals_ns(setting: Setting, load: Lengths, interval: int | None) -> NDArray[np.int64]:
    """When each response arrives: evenly over the spread, in the order of the load, on the tick; a group at once."""
    token_ns = to_ns(setting.server.token_time_s)
    if setting.spread_s is not None:
        spread_ns = to_ns(setting.spread_s)
    else:
        usual = np.minimum(load.responses, setting.budget.response_length).sum(axis=1)
        mean_tokens = round(float(usual.mean()))
        spread_ns = token_ns * (mean_tokens if interval is None else interval * -(-mean_tokens // interval))
    tick_ns = ARRIVAL_TICK_TOKENS * token_ns
    first = np.arange(len(load)) // load.group * load.group
    ticks = first * (spread_ns // len(load)) // tick_ns
    return ticks * tick_ns + _ARRIVAL_OFFSET_TOKENS * token_ns


def _ran(
    setting: Setting, load: Lengths, policy: Policy, interval: int | None, chosen: list[int]
) -> tuple[Case, Trace]:
    case = case_of(setting, load, policy, interval, chosen)
    trace = run_world(case, load_sut(policy.sut))
    _check_ended(trace)
    return case, trace


def _check_ended(trace: Trace) -> None:
    end = trace.events[-1]
    if not isinstance(end, WorldEnded) or end.reason != "done":
        reason = end.reason if isinstance(end, WorldEnded) else "unknown"
        raise WhatIfError(f"the world did not come to its end ({reason}): its waste says nothing")


def case_of(setting: Setting, load: Lengths, policy: Policy, interval: int | None, chosen: list[int]) -> Case:
    """The world of some responses of a load, with weight updates to its end."""
    arrivals = arrivals_ns(setting, load, interval)
    owners: dict[int, int] = {}
    sessions = []
    for number, index in enumerate(chosen):
        owner = owners.setdefault(index // load.group, number)
        session = _session(load, index, int(arrivals[index]) / NS_PER_S)
        if owner != number:
            session = msgspec.structs.replace(session, shares_prompt_with=owner)
        sessions.append(session)
    return Case(
        budget=setting.budget,
        sessions=tuple(sessions),
        faults=tuple(_updates(setting, load, policy, interval, int(arrivals[chosen].max()))),
        replicas=setting.replicas,
        server=setting.of_servers,
        router=Router(sticky=policy.sticky),
        partial_rollout=policy.partial_rollout,
        seed=setting.seed,
    )


def _session(load: Lengths, index: int, arrival_s: float) -> Session:
    lengths = [None if tokens >= NEVER else int(tokens) for tokens in load.responses[index]]
    turns = [Turn(tokens, load.tool_tokens, load.tool_time_s) for tokens in lengths[:-1]]
    return Session(int(load.prompts[index]), (*turns, Turn(lengths[-1])), arrival_s)


def _updates(
    setting: Setting, load: Lengths, policy: Policy, interval: int | None, last_arrival_ns: int
) -> Iterator[Fault]:
    """Updates until nothing can be left to decode, however many of them there are.

    At a constant rate it is known how many that are, and when. On engines requests queue, and an update may have to
    wait: there the next one is due an interval after the last one's pause began.
    """
    if interval is None:
        return
    pace = pace_of(setting, interval)
    if setting.with_engine:
        yield _update(setting, policy, Every((pace.update_ns - pace.pause_ns) / NS_PER_S))
        return
    tokens = setting.budget.context_tokens + load.turns
    idle_ns = load.turns * to_ns(load.tool_time_s) + last_arrival_ns
    decoded_per_update = (pace.update_ns - pace.idle_ns - pace.prefill_ns) // pace.token_ns
    count = idle_ns // pace.update_ns + -(-tokens // decoded_per_update) + 2
    if count > MOST_FAULTS:
        raise WhatIfError(
            f"an update every {interval} tokens makes {count} updates; at most {MOST_FAULTS} are possible"
        )
    for number in range(1, count + 1):
        yield _update(setting, policy, AtTime(number * pace.update_ns / NS_PER_S))


def _update(setting: Setting, policy: Policy, at: When) -> WeightUpdate:
    return WeightUpdate(at, setting.pause_s, setting.leaving, policy.reset_prefix_cache, policy.pause_mode)


# One response


def single_case(
    setting: Setting, policy: Policy, prompt_tokens: int, every_tokens: int, stops_after: int | None
) -> Case:
    """One response, aborted by a weight update each time it has decoded another `every_tokens`."""
    most = setting.budget.context_tokens - prompt_tokens
    thresholds = range(every_tokens, most + 1, every_tokens)
    if len(thresholds) > MOST_FAULTS:
        raise WhatIfError(
            f"an abort every {every_tokens} tokens makes too many aborts; at most {MOST_FAULTS} are possible"
        )
    return Case(
        budget=setting.budget,
        sessions=(Session(prompt_tokens, (Turn(stops_after),)),),
        faults=tuple(_update(setting, policy, AfterTokens(0, tokens)) for tokens in thresholds),
        replicas=setting.replicas,
        server=setting.of_servers,
        router=Router(sticky=policy.sticky),
        partial_rollout=policy.partial_rollout,
        seed=setting.seed,
    )


def run_single(case: Case, policy: Policy) -> tuple[Trace, Waste]:
    trace = run_world(case, load_sut(policy.sut))
    _check_ended(trace)
    return trace, waste_of(case, trace)
