"""Event-order replay: a case on real vLLM, then simulated again at the observed points, and both compared."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import msgspec

from gpu_checks.cases import FULL_SIZE_TOKENS
from gpu_checks.compare import Figures, figures, first_difference, verdicts
from gpu_checks.engines import RealEngines
from gpu_checks.led_world import LedWorld, roomy_engine
from gpu_checks.points import Points
from gpu_checks.real_world import RealLoop, RealWorld
from sim.case import Case
from sim.engine.port import DecodeEngine
from sim.faults import AfterTokens, AtTime, CrashReplica, Every, FailRequest, WeightUpdate
from sim.servers.server import SimulatedServer
from sim.sut.framework import Sut
from sim.trace import Trace
from sim.world import run_world

Verdict = Literal["reproduced", "missed", "not expressible", "left out"]

RAN = ("reproduced", "missed")

RUNS_MAX = 3
"""How often a case is run when the engine, on a busy machine, goes so far past a trigger that the case does not come
about."""


@dataclass(frozen=True)
class RealReplay:
    """What became of one case with one SUT. `detail`: the first difference, or why it cannot be expressed."""

    case: str
    sut: str
    verdict: Verdict
    detail: str = ""
    violated: tuple[str, ...] = ()
    """Invariants that the real run violates."""
    decoded_tokens: int = 0
    attempts: int = 0
    overshoot_tokens: int = 0
    """How far the requests were past their triggers when the engine cut them off, at most."""
    seconds: float = 0.0

    def to_builtins(self) -> dict[str, Any]:
        return asdict(self)


def why_not_expressible(case: Case, sut: Sut, engines: RealEngines) -> str | None:
    """Why a real vLLM engine cannot be brought to do this case; None where it can."""
    if case.server.dialect != "vllm":
        return f"it is about {case.server.dialect}'s server"
    if sut.make_server is not SimulatedServer:
        return f"the bug of {sut.name} is in the simulated server"
    for index, fault in enumerate(case.faults):
        if isinstance(fault.at, AtTime | Every):
            return f"fault {index} waits for a time ({fault.at.time_s:g} s), not for an event"
        if isinstance(fault, FailRequest | CrashReplica):
            return f"fault {index} is a failure that a real engine cannot be told to have"
        if isinstance(fault, WeightUpdate) and fault.pause_mode != "abort":
            return f"fault {index} pauses with mode {fault.pause_mode}, and verl's servers abort"
    if any(session.shares_prompt_with is not None for session in case.sessions):
        return "its sessions share a prompt, and real prompts are made up one by one"
    if any(session.priority for session in case.sessions):
        return "its sessions have priorities, which nobody tells a real engine"
    if case.schedule.policy != "fifo":
        return f"it needs its own order of callbacks (schedule {case.schedule.policy})"
    if case.replicas > engines.settings.replicas_max:
        return f"it needs {case.replicas} replicas, {engines.settings.replicas_max} are allowed (--replicas)"
    if case.budget.context_tokens > engines.max_model_len:
        return f"its context of {case.budget.context_tokens} tokens exceeds the model's {engines.max_model_len}"
    return None


@dataclass(frozen=True)
class RealRun:
    """What a real run left. `case`: as it was aimed."""

    case: Case
    sut: Sut
    trace: Trace
    points: Points
    figures: Figures


def aimed(case: Case) -> Case:
    """The case with its triggers by tokens one token early: what is being computed when an abort arrives still counts.

    So the engine is cut off at the very token that the case says, and one past it where that is the first.
    """
    faults = []
    for fault in case.faults:
        if isinstance(fault.at, AfterTokens) and fault.at.tokens > 1:
            at = msgspec.structs.replace(fault.at, tokens=fault.at.tokens - 1)
            fault = msgspec.structs.replace(fault, at=at)
        faults.append(fault)
    return msgspec.structs.replace(case, faults=tuple(faults))


def run_on_vllm(case: Case, sut: Sut, engines: RealEngines) -> RealRun:
    """The case on real engines."""
    assert isinstance(engines.loop, RealLoop), "worlds run on a RealLoop"
    case = aimed(case)
    world = RealWorld(case, sut, engines.take(case.replicas), engines.loop, engines.vocabulary_size)
    trace = world.run()
    return RealRun(case, sut, trace, world.points, figures(case, trace, world.answers))


def simulate_again(
    real: RealRun, sut: Sut | None = None, make_engine: Callable[[], DecodeEngine] = roomy_engine
) -> str | None:
    """The first difference between a real run and its simulation at the observed points; None where there is none.

    `sut` and `make_engine` are there to plant a wrong fake.
    """
    world = LedWorld(real.case, sut or real.sut, real.points, make_engine)
    difference = first_difference(real.figures, figures(real.case, world.run(), world.answers))
    if world.leader.missed is None:
        return difference
    never = f"the simulation never came to point {world.leader.position} of {len(real.points.order)}: "
    return f"{difference or 'all figures are equal'}; {never}{world.leader.missed}"


def replay(
    name: str,
    case: Case,
    sut: Sut,
    engines: RealEngines,
    kept: Iterable[str] | None = None,
    *,
    full_size: bool = True,
) -> RealReplay:
    """One case with one SUT. `kept`: the verdicts that the case keeps for this SUT, where it has any."""
    kept = None if kept is None else sorted(kept)
    reason = why_not_expressible(case, sut, engines)
    if kept and "D1" in kept:
        reason = f"kept as violating D1: {sut.name} never does the same twice"
    if reason is not None:
        return RealReplay(name, sut.key, "not expressible", reason)
    tokens = 0 if full_size else _decoded_tokens(run_world(case, sut))
    if tokens > FULL_SIZE_TOKENS:
        return RealReplay(name, sut.key, "left out", f"decodes {tokens} tokens: --full-size")
    started_s = time.monotonic()
    for _ in range(RUNS_MAX):
        real = run_on_vllm(case, sut, engines)
        violated = verdicts(case, real.trace)
        verdict, detail = _judged(case, sut, real, violated, kept)
        if verdict in RAN:
            break
    return RealReplay(
        name,
        sut.key,
        verdict,
        detail,
        tuple(violated),
        _decoded_tokens(real.trace),
        len(real.trace.ledger.attempts),
        overshoot_tokens(case, real.trace),
        round(time.monotonic() - started_s, 2),
    )


def _judged(case: Case, sut: Sut, real: RealRun, violated: list[str], kept: list[str] | None) -> tuple[Verdict, str]:
    """The verdict on one run, and what there is to say of it."""
    difference = simulate_again(real)
    if difference is not None:
        return "missed", difference
    if kept is None or kept == sorted(violated):
        return "reproduced", ""
    kept_text, real_text = (", ".join(each) or "nothing" for each in (kept, sorted(violated)))
    verdicts_differ = f"kept as violating {kept_text}, and on vLLM it is {real_text}"
    # The simulation agrees with what happened. Was it what the case is about, or did the engine run past a trigger?
    course = first_difference(figures(case, real.trace, {}), figures(case, run_world(case, sut), {}))
    if course is None:
        return "missed", verdicts_differ
    return "not expressible", f"{verdicts_differ}: {RUNS_MAX} runs never took its course ({course})"


def _decoded_tokens(trace: Trace) -> int:
    return sum(attempt.decoded_tokens for attempt in trace.ledger.attempts)


def overshoot_tokens(case: Case, trace: Trace) -> int:
    """How many tokens past its trigger a session was when it was cut off; the most over all triggers by tokens."""
    most = 0
    for session in range(case.num_sessions):
        wanted = sorted({f.at.tokens for f in case.faults if isinstance(f.at, AfterTokens) and f.at.session == session})
        total = 0
        for attempt in trace.ledger.attempts:
            if attempt.sent.session != session:
                continue
            total += attempt.decoded_tokens
            passed = [tokens for tokens in wanted if tokens <= total]
            wanted = wanted[len(passed) :]
            if passed and any(ended.outcome == "abort" for ended in attempt.ended):
                most = max(most, total - passed[-1])
    return most


def summary(replays: list[RealReplay]) -> dict[str, Any]:
    """The counts and the cases, ready for JSON."""
    tried = [each for each in replays if each.verdict in RAN]
    return {
        "reproduced": sum(each.verdict == "reproduced" for each in tried),
        "of": len(tried),
        "not_expressible": sum(each.verdict == "not expressible" for each in replays),
        "left_out": sum(each.verdict == "left out" for each in replays),
        "cases": [each.to_builtins() for each in replays],
    }


def table(replays: list[RealReplay]) -> str:
    """One line a case, for people."""
    rows = [("case", "SUT", "result", "violated", "decoded", "attempts", "past trigger", "s", "")]
    for each in replays:
        ran = each.verdict in RAN or each.attempts > 0
        rows.append(
            (
                each.case,
                each.sut,
                each.verdict,
                (" ".join(each.violated) or "-") if ran else "",
                str(each.decoded_tokens) if ran else "",
                str(each.attempts) if ran else "",
                str(each.overshoot_tokens) if ran else "",
                f"{each.seconds:.1f}" if ran else "",
                each.detail,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )
