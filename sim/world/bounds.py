"""What a world may take before it counts as one that does not end."""

from typing import NamedTuple

from sim.case import Case, explicit_limit
from sim.clock import NS_PER_S
from sim.engine import StepTotals
from sim.faults import Every
from sim.schema import MAX_TIME_S, MAX_TOKENS

LEAST_TIMES = 1000
"""How often a fault that comes again and again may do so in any world."""

MOST_TIMES_IDLE = 5000
"""How often one that comes too soon to let a call through may do so while nobody decodes."""

CLIENT_WAIT_S = 2.0
"""What a client may wait of itself at a call, as verl's do before they resume (a second)."""

SLACK_S = 60.0


class WorldBounds(NamedTuple):
    """`virtual_s`: by then every session has ended; what faults that come again add to it is bounded by `MAX_TIME_S`.
    `times`: how often each fault acts at most, more often than once only those that come again and again."""

    virtual_s: float
    times: tuple[int, ...]


class _Work(NamedTuple):
    """What all sessions have to do."""

    total_s: float
    """One after the other."""
    budget_tokens: int
    """Tokens of all responses, if nothing is decoded in vain."""


def bounds_of(case: Case) -> WorldBounds:
    """Twice the time that all of the work takes one by one, and for each fault the times that it may act.

    A fault that comes again sooner than a call is through may keep the work from getting on for ever. So it stops after
    as many times as would do if each let one token through, and as many more as there is time in which nobody decodes.
    """
    token_s, prefill_s = _slowest_step_s(case)
    call_s = _call_s(case, token_s, prefill_s)
    work = _work(case, token_s, call_s)

    # Each fault once, with what it costs everybody: its time, its pause, and a call that it makes necessary.
    total_s = own_s = work.total_s
    for fault in case.faults:
        cost_s = fault.lasts_s(case.replicas) + fault.late_s + getattr(fault.at, "time_s", 0.0) + call_s
        total_s += cost_s
        own_s += 0.0 if isinstance(fault.at, Every) else cost_s

    # Those that come again: a token for each time, or the time that is there without any.
    times = []
    for fault in case.faults:
        if not isinstance(fault.at, Every):
            times.append(1)
            continue
        times_idle = round(total_s / fault.at.time_s)
        if _useful_s(case, fault.at, call_s) <= 0:
            times_idle = min(times_idle, MOST_TIMES_IDLE)
        times.append(LEAST_TIMES + work.budget_tokens + times_idle)

    # They stretch the work: of the time between two of them, only what calls and pauses leave is of use.
    idle_s = max([fault.lasts_s(case.replicas) for fault in case.faults], default=0.0)
    for fault, most in zip(case.faults, times, strict=True):
        if isinstance(fault.at, Every):
            useful_s = _useful_s(case, fault.at, call_s)
            lost_s = call_s + idle_s
            if useful_s > 0:
                total_s *= (fault.at.time_s + lost_s) / useful_s
            else:
                total_s += most * (fault.at.time_s + lost_s)
    return WorldBounds(min(max(MAX_TIME_S, 2 * own_s + SLACK_S), 2 * total_s + SLACK_S), tuple(times))


def _useful_s(case: Case, every: Every, call_s: float) -> float:
    """Of the time between two of them, what is left when each session has made its call."""
    return every.time_s - call_s * case.most_live_sessions


def _call_s(case: Case, token_s: float, prefill_s: float) -> float:
    """What an attempt takes beside its tokens: there and back, the balancer's messages, and the first token's wait."""
    transport = case.transport
    return (
        prefill_s
        + case.server.admission_s
        + 2 * transport.server_delay_s
        + (3 * transport.balancer_delay_s + token_s + CLIENT_WAIT_S)
    )


def _work(case: Case, token_s: float, call_s: float) -> _Work:
    """The sessions' own times, their tokens, and their calls: once more for each abort that may cost one."""
    comes_again = any(isinstance(fault.at, Every) for fault in case.faults)
    aborts = MAX_TOKENS if comes_again else 1 + len(case.faults)
    total_s, budget_tokens = 0.0, 0
    for index, session in enumerate(case.sessions):
        limit = explicit_limit(case, index)
        default_tokens = case.server.rules.default_tokens(case.budget, session.prompt_tokens)
        grant_tokens = max(case.budget.response_length, default_tokens, 0 if limit is None else limit.tokens)
        # A client may ask for all of the context, and a wrong one is granted everything anew at each abort.
        most_tokens = case.budget.context_tokens
        if not comes_again:
            most_tokens = max(most_tokens, aborts * grant_tokens)
        tokens = 0
        for turn in session.turns:
            total_s += turn.tool_time_s
            own_tokens = MAX_TOKENS if turn.response_tokens is None else turn.response_tokens
            tokens += min(most_tokens, own_tokens)
            budget_tokens += min(grant_tokens, own_tokens)
        calls = len(session.turns) * (1 if comes_again else aborts)
        total_s += session.arrival_s + tokens * token_s + calls * call_s
    return _Work(total_s * case.repeat, budget_tokens * case.repeat)


def _slowest_step_s(case: Case) -> tuple[float, float]:
    """What a step may take, and what the prefill of a request may add to that.

    In each step the first of the running requests gets on, so a pool that never runs short takes a step a token and
    one for each chunk of a prompt. In a smaller one every token may come with a prompt computed again.
    """
    server = case.server
    if server.engine is None:
        return server.token_time_s, server.prefill_s
    config = server.engine.config(case.budget.context_tokens)
    chunk_tokens = min(config.max_num_batched_tokens, server.engine.long_prefill_token_threshold or MAX_TOKENS)
    chunks = -(-case.budget.context_tokens // chunk_tokens)
    if server.latency is None:
        token_s, prefill_s = server.token_time_s, server.prefill_s
    else:
        budget_tokens = config.max_num_batched_tokens
        latency = server.make_latency()
        kv_tokens = config.max_num_seqs * config.max_model_len
        token_s = latency.stretch(StepTotals(budget_tokens, budget_tokens, 0, kv_tokens)).step_ns / NS_PER_S
        prefill_s = token_s
    if server.engine.num_gpu_blocks is not None:
        return token_s + chunks * (token_s + prefill_s), chunks * (token_s + prefill_s)
    return token_s, (chunks - 1) * token_s + chunks * prefill_s
