"""A world that is judged while it runs: the same verdicts as over the whole trace, and no more kept than lives."""

import asyncio
import gc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sim.rolling import RollingTrace

from sim import corpus, rolling
from sim.case import (
    AddReplica,
    AfterTokens,
    AtTime,
    Budget,
    CancelClient,
    Case,
    CaseError,
    EngineSettings,
    Every,
    Limit,
    RemoveReplica,
    Schedule,
    ServerSettings,
    Session,
    Transport,
    Turn,
    WeightUpdate,
)
from sim.invariants.judging import judge
from sim.search.schedules import under_schedules
from sim.search.strategies import response_cases, routing_cases
from sim.sut.interface import Sut
from sim.sut.planted import PLANTED
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut
from sim.trace import Trace
from sim.world import World

CASES = {
    path.stem: corpus.read(path).case
    for path in sorted((Path(__file__).parents[1] / "properties" / "corpus").glob("*.json"))
}
MANY = Case(
    budget=Budget(16, 32, 128),
    sessions=(Session(5, (Turn(20),)), Session(9, (Turn(3, tool_tokens=2), Turn(7))), Session(5, (Turn(60),))),
    faults=(WeightUpdate(Every(0.15), pause_s=0.05),),
    replicas=2,
    server=ServerSettings(engine=EngineSettings(num_gpu_blocks=40)),
    repeat=60,
    max_concurrent_sessions=7,
)


@pytest.fixture(autouse=True)
def short_chapters(monkeypatch):
    monkeypatch.setattr(rolling, "_CHAPTER_EVENTS", 16)


def run(case, sut=CLEAN, trace=None):
    world = World(case, load_sut(sut) if isinstance(sut, str) else sut, trace=trace)
    world.run()
    return world.trace


def rolled(case, sut=CLEAN):
    return run(case, sut, RollingTrace(case)).findings


def verdicts(violations):
    """How often each invariant is broken; of V1 only whether."""
    counts = Counter(violation.invariant for violation in violations)
    return {number: min(count, 1) if number == "V1" else count for number, count in counts.items()}


def assert_same_verdicts(case, sut):
    whole, findings = judge(case, run(case, sut)), rolled(case, sut)
    assert dict(findings.counts) == verdicts(whole)
    spelled = {(each.invariant, each.message) for each in whole if each.invariant != "V1"}
    assert {(each.invariant, each.message) for each in findings.violations if each.invariant != "V1"} <= spelled


@pytest.mark.parametrize("name", CASES)
def test_the_corpus_is_judged_as_a_whole_trace_is(name):
    entry = CASES[name]
    for sut in (CLEAN, "reference:deferred", "reference:favourite", "reference:zeroes-count", "reference:keeps-cache"):
        assert_same_verdicts(entry, sut)


class ForgetsItsAnswer(PinnedClient):
    """As verl's client: cancelled while it acquires, it never hears which slot it was given."""

    async def acquire(self, request_id):
        return await self.balancer.acquire_server.remote(request_id=request_id)


FORGETS_ITS_ANSWER = Sut("forgets", "forgets", lambda context: ForgetsItsAnswer(context.config, context.balancer))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(response_cases(), routing_cases()),
    st.sampled_from([*(f"reference:{planted}" for planted in sorted(PLANTED)), FORGETS_ITS_ANSWER]),
    st.integers(1, 16),
)
def test_so_are_random_worlds(case, sut, chapter_events):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rolling, "_CHAPTER_EVENTS", chapter_events)
        assert_same_verdicts(case, sut)


@pytest.mark.parametrize("delay_s", [0.0, 0.25])
def test_a_slot_that_is_given_after_the_end_is_missed(monkeypatch, delay_s):
    """In a world that goes on: the session's end is judged long before the world's."""
    monkeypatch.setattr(rolling, "_CHAPTER_EVENTS", 1)
    case = Case(
        budget=Budget(16, 32, 128),
        sessions=(Session(5), Session(5), Session(5)),
        faults=(CancelClient(AtTime(delay_s / 2), 0),),
        replicas=2,
        transport=Transport(balancer_delay_s=delay_s),
    )
    for case_now in under_schedules(case):
        assert_same_verdicts(case_now, FORGETS_ITS_ANSWER)
    assert bool(delay_s) == ("R7" in rolled(case, FORGETS_ITS_ANSWER).counts)


@pytest.mark.parametrize("planted", ["deferred", "loses-tokens", "keeps-cache", "ends-twice"])
def test_a_planted_bug_is_found_in_each_repetition(planted):
    findings = rolled(MANY, f"reference:{planted}")
    assert findings.counts[PLANTED[planted].invariant] >= MANY.repeat / 2
    assert len(findings.violations) <= 20 * len(findings.counts)


def test_repeated_sessions_are_new_ones_and_no_more_are_kept_than_live():
    findings = rolled(MANY)
    assert (findings.sessions, findings.turns) == (180, 240)
    assert findings.decoded_tokens == 60 * (20 + 3 + 7 + 32)
    assert findings.attempts > 1.5 * findings.turns, "updates abort"
    assert findings.end.reason == "done"
    assert findings.most_live <= 7 + 16
    assert not findings.counts


def left_over(case, sut):
    """Objects that only a collector gets rid of when the world is over: cycles, and what the world held in them."""
    gc.collect()
    gc.disable()
    try:
        run(case, sut, RollingTrace(case))
        return gc.collect()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("sut", "changes"),
    [
        (CLEAN, {}),
        (CLEAN, {"schedule": Schedule("random", 1)}),
        (CLEAN, {"faults": (WeightUpdate(Every(0.15), leaving=(0,), pause_s=0.05),)}),
        (CLEAN, {"faults": (WeightUpdate(Every(0.15), pause_mode="keep", pause_s=0.05),)}),
        (CLEAN, {"faults": (RemoveReplica(Every(0.2), 0), AddReplica(Every(0.15), 0), CancelClient(AtTime(0.1), 2))}),
        *(
            (f"reference:{planted}", {})
            for planted in ("deferred", "routes-anywhere", "forgets-session", "keeps-cache")
        ),
    ],
)
def test_nothing_gathers_while_a_world_goes_on(sut, changes):
    """No cycles, as nobody collects them while it runs; no list of what came by."""
    small, large = (replace(MANY, repeat=repeat, **changes) for repeat in (20, 100))
    left_over(small, sut)
    assert left_over(large, sut) < left_over(small, sut) + 200, "80 times 3 sessions more"


def test_the_sessions_that_live_are_as_many_as_allowed():
    live, most = set(), []

    def read(chapter: Trace) -> None:
        del chapter

    trace = RollingTrace(MANY, read=read)
    world = World(MANY, load_sut(CLEAN), trace=trace)
    add = trace.add

    def watched(event):
        if type(event).__name__ == "TurnStarted":
            live.add(event.session)
            most.append(len(live))
        if type(event).__name__ == "SessionEnded":
            live.remove(event.session)
        add(event)

    trace.add = watched
    world.run()
    assert max(most) == 7


def test_the_digest_tells_runs_apart():
    assert run(MANY, trace=RollingTrace(MANY)).digest() == run(MANY, trace=RollingTrace(MANY)).digest()
    other = Case(**{**{name: getattr(MANY, name) for name in MANY.__struct_fields__}, "repeat": 61})
    assert run(MANY, trace=RollingTrace(MANY)).digest() != run(other, trace=RollingTrace(other)).digest()


def test_a_reader_gets_every_session_once():
    seen = []
    run(MANY, trace=RollingTrace(MANY, read=lambda chapter: seen.extend(chapter.ledger.sessions)))
    assert sorted(seen) == list(range(180))


def test_a_late_answer_keeps_its_session_until_it_has_come(monkeypatch):
    case = Case(
        budget=Budget(16, 32, 128),
        sessions=(Session(5, (Turn(20),)), *[Session(5, (Turn(2),)) for _ in range(40)]),
        faults=(CancelClient(AfterTokens(0, 3), 0),),
        max_concurrent_sessions=2,
    )

    def zombies():
        found = []

        def read(chapter: Trace) -> None:
            if 0 in chapter.ledger.sessions:
                found.extend(attempt.discarded.tokens for attempt in chapter.ledger.attempts if attempt.discarded)

        run(case, trace=RollingTrace(case, read=read))
        return found

    assert zombies() == [20], "what it decodes after the cancel is in its record"
    monkeypatch.setattr(rolling, "_is_settled", lambda _: True)
    assert zombies() == [], "forgotten too soon"


def test_a_request_of_a_forgotten_session_is_counted_and_breaks_nothing():
    class Ghost(PinnedClient):
        async def generate(self, request_id, **kwargs):
            output = await super().generate(request_id, **kwargs)
            if request_id == "session-0":
                self.late = asyncio.ensure_future(self._late(request_id, kwargs))
            return output

        async def _late(self, request_id, kwargs):
            await asyncio.sleep(3.0)
            await super().attempt(request_id, kwargs["prompt_ids"], dict(kwargs["sampling_params"]))

    sut = Sut("ghost", "ghost", lambda context: Ghost(context.config, context.balancer))
    findings = rolled(MANY, sut)
    assert findings.strays == 1
    assert findings.sessions == 180


def test_shared_params_are_not_judged_session_by_session():
    sessions = (Session(4), Session(4, shares_params_with=0))
    with pytest.raises(CaseError, match=r"repeat is 2: it excludes sessions\[1\].shares_params_with"):
        Case(Budget(8, 8), sessions, transport=Transport("shared"), repeat=2)


class PassesOn(PinnedClient):
    """Sends its caller's params as they are: where objects are shared, the server takes keys out of these."""

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        return await self.attempt(request_id, prompt_ids, sampling_params, **kwargs)


@pytest.mark.parametrize("chapter_events", [1, 4])
def test_those_that_share_params_are_judged_together(monkeypatch, chapter_events):
    """TensorRT-LLM's server ignores a limit; whether that is so, no one can tell of params that another has changed."""
    monkeypatch.setattr(rolling, "_CHAPTER_EVENTS", chapter_events)
    sessions = (Session(4, limit=Limit("max_tokens", 40)), Session(4, arrival_s=3.0, shares_params_with=0))
    case = Case(Budget(8, 8), sessions, server=ServerSettings("trtllm"), transport=Transport("shared"))
    assert_same_verdicts(case, Sut("passes", "passes", lambda context: PassesOn(context.config, context.balancer)))


def test_a_fault_that_comes_again_and_again_stops_with_the_sessions():
    case = Case(Budget(16, 32, 128), (Session(4, (Turn(25),)),), (WeightUpdate(Every(0.1), pause_s=0.2),))
    trace = run(case)
    assert trace.is_done
    assert [attempt.decoded_tokens for attempt in trace.ledger.attempts] == [10, 10, 5]
