"""The same load under several variants and update intervals: what each of them wastes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from sim.case import Budget, Case, Router, ServerSettings, Session, Turn
from sim.clock import NS_PER_S, to_ns
from sim.faults import AfterTokens, AtTime, Every, Fault, WeightUpdate, When
from sim.sut.registry import load_sut
from sim.trace import Trace
from sim.waste.independent import Pace, waste_of_all
from sim.waste.ledger import Waste, mean_update_wait_s, waste_of
from sim.waste.lengths import NEVER, Lengths
from sim.waste.variants import Variant
from sim.world import run_world

ARRIVAL_TICK_TOKENS = 10
"""Responses arrive at whole multiples of so many token times, plus `_ARRIVAL_OFFSET_TOKENS`."""

_ARRIVAL_OFFSET_TOKENS = 3
"""So that no arrival falls on an update: what happens in one instant is a race, and not what is compared here."""

SAMPLE = 40
"""Responses of each computed row that are simulated as well."""

MOST_FAULTS = 100_000

How = Literal["computed", "simulated"]
Chosen = NDArray[np.int64]
"""Which responses of a load, by their index."""


class WhatIfError(ValueError):
    """Conditions that cannot be compared under: the message names the setting, its value and what is allowed."""


class Disagreement(AssertionError):
    """A computed result and the simulation of its sample differ: a defect of this tool."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the variants have in common. Times are seconds, lengths tokens."""

    budget: Budget
    server: ServerSettings = ServerSettings()
    replicas: int = 1
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


@dataclass(frozen=True)
class Row:
    """One variant under one update interval (None: no updates)."""

    variant: str
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


def compare(
    conditions: Conditions,
    load: Lengths,
    variants: list[Variant],
    intervals: list[int | None],
    progress: Callable[[int], None] = lambda _: None,
) -> Comparison:
    """A row for each variant and interval (in token times). An interrupt ends it with the rows that it has.

    `progress` is called with the rows that are done.
    """
    for interval in intervals:
        check_interval(conditions, interval)
    comparison = Comparison()
    try:
        for interval in intervals:
            for variant in variants:
                row, sampled = compared(conditions, load, variant, interval)
                comparison.rows.append(row)
                comparison.sampled += sampled
                progress(len(comparison.rows))
    except KeyboardInterrupt:
        comparison.interrupted = True
    return comparison


def pace_of(conditions: Conditions, interval: int | None) -> Pace:
    token_ns = to_ns(conditions.server.token_time_s)
    return Pace(token_ns, to_ns(conditions.server.prefill_s), (interval or 0) * token_ns, to_ns(conditions.pause_s))


def check_interval(conditions: Conditions, interval: int | None) -> None:
    """Raises `WhatIfError` where an update comes before the resume after the last one has decoded anything."""
    pace = pace_of(conditions, interval)
    if not pace.makes_progress:
        least = -(-(pace.idle_ns + pace.prefill_ns) // pace.token_ns) + 1
        raise WhatIfError(
            f"an update every {interval} tokens ({pace.update_ns / NS_PER_S:g} s) leaves no time to decode: a resume "
            f"begins {pace.idle_ns / NS_PER_S:g} s after an abort; at least {least} tokens are needed"
        )


def compared(conditions: Conditions, load: Lengths, variant: Variant, interval: int | None) -> tuple[Row, int]:
    """One row, and how many responses were simulated beside those computed. Raises `Disagreement`."""
    whole = np.arange(len(load))
    found = computed(conditions, load, variant, interval, whole)
    if found is None:
        case, trace = simulated(conditions, load, variant, interval, whole)
        return Row(variant.name, interval, waste_of(case, trace), "simulated", mean_update_wait_s(case, trace)), 0
    sample = np.unique(np.linspace(0, len(load) - 1, SAMPLE).astype(np.int64))
    expected = computed(conditions, load, variant, interval, sample)
    happened = waste_of(*simulated(conditions, load, variant, interval, sample))
    if expected != happened:
        raise Disagreement(f"{variant.name}, update every {interval} tokens: computed {expected}, simulated {happened}")
    return Row(variant.name, interval, found, "computed"), len(sample)


def computed(
    conditions: Conditions, load: Lengths, variant: Variant, interval: int | None, chosen: Chosen
) -> Waste | None:
    """The waste without a simulation; None where only a simulation can tell.

    It is exact where no response's fate depends on another's: the servers decode at a constant rate, however many
    there are. One that queues, batches or preempts must end here.
    """
    client = variant.builtin_client
    depends = load.turns > 1 or conditions.server.admission_s or conditions.with_engine
    if client is None or conditions.simulate or depends:
        return None
    return waste_of_all(
        load.prompts[chosen],
        load.responses[chosen, 0],
        arrivals_ns(conditions, load, interval)[chosen],
        budget=conditions.budget,
        dialect=conditions.server.dialect,
        client=client,
        partial_rollout=variant.partial_rollout,
        pace=pace_of(conditions, interval),
    )


def simulated(
    conditions: Conditions, load: Lengths, variant: Variant, interval: int | None, chosen: Chosen
) -> tuple[Case, Trace]:
    """The world of some responses of a load, and what happened in it."""
    case = case_of(conditions, load, variant, interval, chosen)
    return case, trace_of(case, variant)


def trace_of(case: Case, variant: Variant) -> Trace:
    """What happens in a case. Raises `WhatIfError` where it does not come to its end."""
    trace = run_world(case, load_sut(variant.sut))
    if not trace.is_done:
        reason = "unknown" if trace.end is None else trace.end.reason
        raise WhatIfError(f"the world did not come to its end ({reason}): its waste says nothing")
    return trace


# Cases


def arrivals_ns(conditions: Conditions, load: Lengths, interval: int | None) -> NDArray[np.int64]:
    """When each response arrives: evenly over the spread, in the order of the load, on the tick; a group at once."""
    token_ns = to_ns(conditions.server.token_time_s)
    if conditions.spread_s is not None:
        spread_ns = to_ns(conditions.spread_s)
    else:
        usual = np.minimum(load.responses, conditions.budget.response_length).sum(axis=1)
        mean_tokens = round(float(usual.mean()))
        spread_ns = token_ns * (mean_tokens if interval is None else interval * -(-mean_tokens // interval))
    tick_ns = ARRIVAL_TICK_TOKENS * token_ns
    first = np.arange(len(load)) // load.group * load.group
    ticks = first * (spread_ns // len(load)) // tick_ns
    return ticks * tick_ns + _ARRIVAL_OFFSET_TOKENS * token_ns


def case_of(conditions: Conditions, load: Lengths, variant: Variant, interval: int | None, chosen: Chosen) -> Case:
    """The world of some responses of a load, with weight updates to its end."""
    arrivals = arrivals_ns(conditions, load, interval)
    owners: dict[int, int] = {}
    sessions = []
    for number, index in enumerate(chosen.tolist()):
        owner = owners.setdefault(index // load.group, number)
        session = _session(load, index, int(arrivals[index]) / NS_PER_S)
        if owner != number:
            session = msgspec.structs.replace(session, shares_prompt_with=owner)
        sessions.append(session)
    updates = _updates(conditions, load, variant, interval, int(arrivals[chosen].max()))
    return _case(conditions, variant, sessions, updates)


def single_case(conditions: Conditions, variant: Variant, prompt_tokens: int, every_tokens: int) -> Case:
    """One response without an end of its own, aborted by a weight update each time it has decoded another
    `every_tokens`."""
    thresholds = range(every_tokens, conditions.budget.context_tokens - prompt_tokens + 1, every_tokens)
    if len(thresholds) > MOST_FAULTS:
        raise WhatIfError(
            f"an abort every {every_tokens} tokens makes too many aborts; at most {MOST_FAULTS} are possible"
        )
    updates = (_update(conditions, variant, AfterTokens(0, tokens)) for tokens in thresholds)
    return _case(conditions, variant, [Session(prompt_tokens, (Turn(None),))], updates)


def _case(conditions: Conditions, variant: Variant, sessions: list[Session], updates: Iterable[Fault]) -> Case:
    return Case(
        budget=conditions.budget,
        sessions=tuple(sessions),
        faults=tuple(updates),
        replicas=conditions.replicas,
        server=conditions.of_servers,
        router=Router(sticky=variant.sticky),
        partial_rollout=variant.partial_rollout,
        seed=conditions.seed,
    )


def _session(load: Lengths, index: int, arrival_s: float) -> Session:
    lengths = [None if tokens >= NEVER else int(tokens) for tokens in load.responses[index]]
    turns = [Turn(tokens, load.tool_tokens, load.tool_time_s) for tokens in lengths[:-1]]
    return Session(int(load.prompts[index]), (*turns, Turn(lengths[-1])), arrival_s)


def _updates(
    conditions: Conditions, load: Lengths, variant: Variant, interval: int | None, last_arrival_ns: int
) -> Iterator[Fault]:
    """Updates until nothing can be left to decode, however many of them there are.

    At a constant rate it is known how many that are, and when. On engines requests queue, and an update may have to
    wait: there the next one is due an interval after the last one's pause began.
    """
    if interval is None:
        return
    pace = pace_of(conditions, interval)
    if conditions.with_engine:
        yield _update(conditions, variant, Every((pace.update_ns - pace.pause_ns) / NS_PER_S))
        return
    tokens = conditions.budget.context_tokens + load.turns
    idle_ns = load.turns * to_ns(load.tool_time_s) + last_arrival_ns
    decoded_per_update = (pace.update_ns - pace.idle_ns - pace.prefill_ns) // pace.token_ns
    count = idle_ns // pace.update_ns + -(-tokens // decoded_per_update) + 2
    if count > MOST_FAULTS:
        raise WhatIfError(
            f"an update every {interval} tokens makes {count} updates; at most {MOST_FAULTS} are possible"
        )
    for number in range(1, count + 1):
        yield _update(conditions, variant, AtTime(number * pace.update_ns / NS_PER_S))


def _update(conditions: Conditions, variant: Variant, at: When) -> WeightUpdate:
    return WeightUpdate(
        at, conditions.pause_s, reset_prefix_cache=variant.reset_prefix_cache, pause_mode=variant.pause_mode
    )
