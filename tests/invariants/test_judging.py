"""The judge: the same verdicts however a run is handed to it, and no more kept than lives."""

import asyncio
import gc
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim import corpus
from sim.case import Budget, Case, EngineSettings, Limit, Schedule, ServerSettings, Session, Transport, Turn
from sim.events import SessionEnded, TurnStarted
from sim.faults import AddReplica, AfterTokens, AtTime, CancelClient, Every, RemoveReplica, WeightUpdate
from sim.invariants.judging import Judge, judge
from sim.ledger import SessionRecord
from sim.schema import CaseError
from sim.search.schedules import under_schedules
from sim.search.strategies import response_cases, routing_cases
from sim.sut.planted import PLANTED
from sim.sut.reference.client import PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.trace import EventsNotKept, Trace
from sim.world import World, run_world

CASES = {
    path.stem: corpus.read(path).case
    for path in sorted((Path(__file__).parents[2] / "properties" / "corpus").glob("*.json"))
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
AT_THE_END = sys.maxsize


def run(case, sut=CLEAN, *, sitting_events=16, read=None):
    """A run that is judged while it goes on, its trace and its findings."""
    judge = Judge(case, read=read, sitting_events=sitting_events)
    trace = World(case, load_sut(sut) if isinstance(sut, str) else sut, observers=[judge]).run()
    return trace, judge.findings


def findings_of(case, trace, sitting_events):
    """What a judge who sits so often finds in a run that is over."""
    judge = Judge(case, sitting_events=sitting_events)
    judge.take(trace, trace.events)
    return judge.findings


def told(trace, case, chapter_events):
    """The same run, told in chapters on a trace that keeps none; and what a judge made of it."""
    judge = Judge(case)
    other = Trace(case.num_sessions, trace.roles, [judge], chapter_events)
    other.factory_raised, other.declared = trace.factory_raised, trace.declared
    for event in trace.events[:-1]:
        other.add(event)
    other.seal(trace.end)
    return other, judge.findings


def shares_objects(case):
    return case.transport.objects == "shared" and any(each.shares_params_with is not None for each in case.sessions)


class ForgetsItsAnswer(PinnedClient):
    """As verl's client: cancelled while it acquires, it never hears which slot it was given."""

    async def acquire(self, request_id):
        return await self.balancer.acquire_server.remote(request_id=request_id)


FORGETS_ITS_ANSWER = sut_of("forgets", lambda context: ForgetsItsAnswer(context.config, context.balancer))
SUTS = [*(f"reference:{planted}" for planted in sorted(PLANTED)), FORGETS_ITS_ANSWER]


# One way of judging


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(response_cases(), routing_cases()), st.sampled_from(SUTS), st.integers(1, 3), st.data())
def test_verdicts_and_digest_do_not_go_by_the_way_that_was_taken(case, sut, repeat, data):
    assume(repeat == 1 or not shares_objects(case))
    case = replace(case, repeat=repeat)
    kept = run_world(case, load_sut(sut) if isinstance(sut, str) else sut)
    whole = judge(case, kept)
    for chapter_events in (1, 16, len(kept.events), data.draw(st.integers(2, 15))):
        trace, findings = told(kept, case, chapter_events)
        assert findings.violations == whole
        assert trace.digest() == kept.digest()


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(response_cases(), routing_cases()).filter(lambda case: not shares_objects(case)),
    st.sampled_from(SUTS),
    st.integers(1, 3),
    st.integers(1, 16),
)
def test_nor_by_how_many_sessions_are_judged_together(case, sut, repeat, sitting_events):
    case = replace(case, repeat=repeat)
    trace = run_world(case, load_sut(sut) if isinstance(sut, str) else sut)
    often, once = (findings_of(case, trace, each) for each in (sitting_events, AT_THE_END))
    for findings in (often, once):
        del findings.counts["B5"]  # it compares sessions, those that are judged together
    assert often.counts == once.counts
    if repeat == 1:  # and all of them are kept
        assert Counter(often.violations) <= Counter(once.violations)


@pytest.mark.parametrize("name", CASES)
def test_nor_do_those_of_the_corpus(name):
    for sut in (CLEAN, "reference:deferred", "reference:favourite", "reference:zeroes-count", "reference:keeps-cache"):
        trace = run_world(CASES[name], load_sut(sut))
        assert Counter(findings_of(CASES[name], trace, 16).violations) == Counter(judge(CASES[name], trace))


def test_a_run_of_which_the_events_are_gone_is_refused():
    trace, _ = run(MANY)
    with pytest.raises(EventsNotKept):
        judge(MANY, trace)


def test_a_run_that_is_not_over_is_refused():
    with pytest.raises(ValueError, match="the run is not over"):
        judge(MANY, Trace(0))


def test_an_unknown_number_is_refused():
    with pytest.raises(ValueError, match="unknown invariant 'B99'; known are B1, B2"):
        Judge(MANY, ["B99"])


def test_a_trace_can_be_judged_under_two_cases():
    case = Case(Budget(8, 10, 64), (Session(2),))
    trace = run_world(case, load_sut(CLEAN))
    smaller = replace(case, budget=Budget(8, 5, 64))
    assert judge(case, trace, ["B1"]) == []
    assert len(judge(smaller, trace, ["B1"])) == 1
    assert judge(case, trace, ["B1"]) == []


# Sessions are let go of


@pytest.mark.parametrize("delay_s", [0.0, 0.25])
def test_a_slot_that_is_given_after_the_end_is_missed(delay_s):
    """In a world that goes on: the session's end is judged long before the world's."""
    case = Case(
        budget=Budget(16, 32, 128),
        sessions=(Session(5), Session(5), Session(5)),
        faults=(CancelClient(AtTime(delay_s / 2), 0),),
        replicas=2,
        transport=Transport(balancer_delay_s=delay_s),
    )
    for case_now in under_schedules(case):
        trace = run_world(case_now, FORGETS_ITS_ANSWER)
        findings = findings_of(case_now, trace, 1)
        assert Counter(findings.violations) == Counter(judge(case_now, trace))
    assert bool(delay_s) == ("R7" in run(case, FORGETS_ITS_ANSWER, sitting_events=1)[1].counts)


@pytest.mark.parametrize("planted", ["deferred", "loses-tokens", "keeps-cache", "ends-twice"])
def test_a_planted_bug_is_found_in_each_repetition(planted):
    _, findings = run(MANY, f"reference:{planted}")
    assert findings.counts[PLANTED[planted].invariant] >= MANY.repeat / 2
    assert len(findings.violations) <= 20 * len(findings.counts)


def test_requests_that_run_on_over_an_update_are_found_in_each_repetition():
    """Their KV is no request's own: the weight update itself is the evidence, and it belongs to no session."""
    update = WeightUpdate(Every(0.15), pause_mode="keep", pause_s=0.05, reset_prefix_cache=False)
    case = replace(MANY, faults=(update,), repeat=5)
    trace = run_world(case, load_sut(CLEAN))
    updates = [each for each in trace.events if getattr(each, "stale_requests", 0)]
    assert len(updates) > 5
    for sitting_events in (1, 16, AT_THE_END):
        messages = [each.message for each in findings_of(case, trace, sitting_events).warnings]
        kept_on = [message for message in messages if "requests keep KV of older weights" in message]
        assert len(kept_on) == min(len(updates), 20)


def test_repeated_sessions_are_new_ones_and_no_more_are_kept_than_live():
    _, findings = run(MANY)
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
        run(case, sut)
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
    small, large = (replace(MANY, repeat=repeat, **changes) for repeat in (15, 55))
    left_over(small, sut)
    assert left_over(large, sut) < left_over(small, sut) + 100, "40 times 3 sessions more"


def test_the_sessions_that_live_are_as_many_as_allowed():
    live, most = set(), 0
    for event in run_world(MANY, load_sut(CLEAN)).events:
        if isinstance(event, TurnStarted):
            live.add(event.session)
            most = max(most, len(live))
        elif isinstance(event, SessionEnded):
            live.remove(event.session)
    assert most == 7


def test_a_reader_gets_every_session_once():
    seen = []
    run(MANY, read=lambda evidence: seen.extend(evidence.ledger.sessions))
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

        def read(evidence):
            if 0 in evidence.ledger.sessions:
                found.extend(attempt.discarded.tokens for attempt in evidence.ledger.attempts if attempt.discarded)

        run(case, read=read)
        return found

    assert zombies() == [20], "what it decodes after the cancel is in its record"
    monkeypatch.setattr(SessionRecord, "is_settled", True)
    assert zombies() == [], "forgotten too soon"


class Ghost(PinnedClient):
    """Sends once more for a session that has long ended."""

    async def generate(self, request_id, **kwargs):
        output = await super().generate(request_id, **kwargs)
        if request_id == "session-0":
            self.late = asyncio.ensure_future(self._late(request_id, kwargs))
        return output

    async def _late(self, request_id, kwargs):
        await asyncio.sleep(3.0)
        await super().attempt(request_id, kwargs["prompt_ids"], dict(kwargs["sampling_params"]))


GHOST = sut_of("ghost", lambda context: Ghost(context.config, context.balancer))


def test_a_request_of_a_forgotten_session_is_counted_and_breaks_nothing():
    _, findings = run(MANY, GHOST)
    assert findings.strays == 1
    assert findings.sessions == 180


def test_where_no_session_is_forgotten_such_a_request_is_judged():
    case = replace(MANY, sessions=MANY.sessions * 10, repeat=1, faults=())
    trace = run_world(case, GHOST)
    (overrun,) = judge(case, trace, ["B1"])
    assert overrun.session == 0


def test_shared_params_are_not_judged_session_by_session():
    sessions = (Session(4), Session(4, shares_params_with=0))
    with pytest.raises(CaseError, match=r"repeat is 2: it excludes sessions\[1\].shares_params_with"):
        Case(Budget(8, 8), sessions, transport=Transport("shared"), repeat=2)


class PassesOn(PinnedClient):
    """Sends its caller's params as they are: where objects are shared, the server takes keys out of these."""

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        return await self.attempt(request_id, prompt_ids, sampling_params, **kwargs)


def test_those_that_share_params_are_judged_together():
    """TensorRT-LLM's server ignores a limit; whether that is so, no one can tell of params that another has changed."""
    sessions = (Session(4, limit=Limit("max_tokens", 40)), Session(4, arrival_s=3.0, shares_params_with=0))
    case = Case(Budget(8, 8), sessions, server=ServerSettings("trtllm"), transport=Transport("shared"))
    trace = run_world(case, sut_of("passes", lambda context: PassesOn(context.config, context.balancer)))
    assert "B10" in findings_of(case, trace, 1).counts
    assert judge(case, trace, ["B10"]) == []


# Faults in a world that keeps no events


class RefusesReturn(LeastLoadedBalancer):
    """Takes no replica back."""

    def add_servers(self, servers):
        raise RuntimeError("no room")


def refusing(context):
    balancer = context.make_balancer(RefusesReturn)
    return PinnedClient(context.config, balancer), balancer


def test_a_trainers_failure_is_found_in_a_world_that_keeps_no_events():
    case = replace(MANY, faults=(WeightUpdate(Every(0.15), leaving=(0,), pause_s=0.05), CancelClient(AtTime(9e5), 0)))
    trace, findings = run(case, sut_of("refuses", refusing))
    updates = findings.faults[0]
    assert updates.times == updates.notes["RuntimeError: no room"] > 10
    assert trace.digest() == run_world(case, sut_of("refuses", refusing)).digest()
    assert 1 not in findings.faults, "it never came to that"


def test_a_fault_that_comes_again_and_again_stops_with_the_sessions():
    case = Case(Budget(16, 32, 128), (Session(4, (Turn(25),)),), (WeightUpdate(Every(0.1), pause_s=0.2),))
    trace = run_world(case, load_sut(CLEAN))
    assert trace.is_done
    assert [attempt.decoded_tokens for attempt in trace.ledger.attempts] == [10, 10, 5]
