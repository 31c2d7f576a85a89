"""Servers that fail: requests, answers, replicas, control calls; and updates of one replica after the other."""

import asyncio

import hypothesis
import pytest

from sim.case import Budget, Case, EngineSettings, Schedule, ServerSettings, Session, Transport, Turn, dumps, loads
from sim.clock import to_ns
from sim.events import Crashed, Lost, Parked, Paused, Restarted, Resumed, TurnEnded, VersionChanged
from sim.faults import (
    AbortAll,
    AfterTokens,
    AtTime,
    CancelClient,
    CrashReplica,
    DelayAnswer,
    FailControl,
    FailRequest,
    LoseAnswer,
    RollingUpdate,
    WeightUpdate,
)
from sim.invariants.judging import judge
from sim.search.strategies import STRATEGIES
from sim.servers.failures import CallFailed
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.testing import search
from sim.world import run_world
from tests.faults.worlds import BUDGET, ONE, decoded, events, notes, run

PAIR = (ONE, ONE)
TROUBLES = [
    (FailRequest(AfterTokens(0, 3), 0),),
    (DelayAnswer(AtTime(0.0), 0),),
    (LoseAnswer(AtTime(0.0), 0),),
    (CrashReplica(AfterTokens(0, 3), 0, version=2),),
    (FailControl(AtTime(0.0), 0, "set_version", 2, True), WeightUpdate(AfterTokens(0, 3))),
    (RollingUpdate(AfterTokens(0, 3)),),
]


class RetryingClient(PinnedClient):
    """Asks again where a call failed, a few times."""

    async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
        for _ in range(4):
            try:
                return await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)
            except CallFailed:
                await asyncio.sleep(1)
        return await super().attempt(request_id, prompt_ids, sampling_params, **kwargs)


def retrying(context):
    return RetryingClient(context.config, context.balancer)


RETRYING = sut_of("retrying", retrying)


def outcomes(trace):
    return [(event.session, event.outcome, event.error) for event in events(trace, TurnEnded)]


@pytest.mark.parametrize("faults", TROUBLES)
def test_they_survive_their_json(faults):
    case = Case(BUDGET, PAIR, faults, replicas=2)
    assert loads(dumps(case)) == case


@pytest.mark.parametrize("server", [ServerSettings(), ServerSettings(engine=None)])
@pytest.mark.parametrize("transport", [Transport(), Transport("shared", 0.25, 0.25)])
@pytest.mark.parametrize("sut", [load_sut(CLEAN), RETRYING])
@pytest.mark.parametrize("faults", TROUBLES)
def test_a_client_that_raises_and_one_that_tries_again_survive_them(faults, sut, transport, server):
    for seed in range(3):
        case = Case(
            BUDGET, PAIR, faults, replicas=2, transport=transport, server=server, schedule=Schedule("random", seed)
        )
        trace = run_world(case, sut)
        assert judge(case, trace) == []
        if sut is RETRYING:
            assert {outcome for _, outcome, _ in outcomes(trace)} == {"ok"}


@pytest.mark.parametrize("kind", ["lifecycle", "routing"])
def test_they_are_clean_in_drawn_worlds_too(kind):
    assert search(RETRYING, kind, worlds=120, seed=3, classics=False).finds == []


@pytest.mark.parametrize("kind", ["lifecycle", "routing"])
def test_every_kind_is_drawn(kind):
    tags = {"fail_request", "delay_answer", "lose_answer", "crash_replica", "fail_control", "rolling_update"}
    seen = set()
    strategy = STRATEGIES[kind]()

    @hypothesis.settings(
        max_examples=250, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.seed(1)
    @hypothesis.given(strategy)
    def look(case):
        seen.update(fault.__struct_config__.tag for fault in case.faults)

    look()
    assert tags <= seen


# Requests and answers


def test_a_request_fails_with_what_it_has_and_its_caller_is_told():
    trace = run(FailRequest(AfterTokens(0, 3), 0), sessions=PAIR)
    assert outcomes(trace)[0] == (0, "error", "ServerError: replica 0 failed at the request")
    assert outcomes(trace)[1][:2] == (1, "ok")
    assert decoded(trace, 0) == [3]
    assert [event.request for event in events(trace, Lost)] == [0]


def test_what_was_lost_is_decoded_once_more_and_counted_once():
    case = Case(BUDGET, (ONE,), (LoseAnswer(AtTime(0.0), 0, 2.0),))
    trace = run_world(case, RETRYING)
    assert decoded(trace) == [10, 10]
    assert judge(case, trace) == []
    (lost,) = events(trace, Lost)
    assert lost.t_ns == to_ns(2.1)
    (turn,) = events(trace, TurnEnded)
    assert sum(count for _, count in turn.ids) == 10


def test_a_late_answer_comes_whole():
    trace = run(DelayAnswer(AtTime(0.0), 0, 7.0))
    (turn,) = events(trace, TurnEnded)
    assert (turn.outcome, turn.t_ns) == ("ok", to_ns(7.1))


def test_disturbances_are_taken_one_an_answer():
    trace = run(
        DelayAnswer(AtTime(0.0), 0, 7.0), DelayAnswer(AtTime(0.0), 0, 5.0), sessions=[Session(4, (Turn(3),) * 2)]
    )
    assert [event.t_ns for event in events(trace, TurnEnded)] == [to_ns(7.03), to_ns(12.06)]


def test_a_caller_that_is_gone_is_told_nothing():
    trace = run(LoseAnswer(AtTime(0.0), 0, 5.0), CancelClient(AtTime(2.0), 0))
    assert [outcome for _, outcome, _ in outcomes(trace)] == ["cancelled"]
    assert trace.is_done


# Replicas


def test_a_replica_dies_with_its_requests_and_comes_back_empty():
    trace = run(CrashReplica(AfterTokens(0, 3), 0, down_s=2.0, version=4), sessions=PAIR, sut=CLEAN)
    assert [(event.t_ns, event.replica) for event in events(trace, Crashed)] == [(to_ns(0.03), 0)]
    assert [(event.t_ns, event.version) for event in events(trace, Restarted)] == [(to_ns(2.03), 4)]
    assert [outcome for _, outcome, _ in outcomes(trace)] == ["error", "error"]
    assert trace.is_done


def test_while_it_is_dead_each_call_fails_and_then_it_serves_with_its_own_version():
    late = Session(4, arrival_s=1.0), Session(4, arrival_s=3.0)
    case = Case(BUDGET, (ONE, *late), (CrashReplica(AfterTokens(0, 3), 0, down_s=2.0, version=4),))
    trace = run_world(case, load_sut(CLEAN))
    assert [(session, outcome) for session, outcome, _ in outcomes(trace)] == [(0, "error"), (1, "error"), (2, "ok")]
    (turn,) = trace.ledger.sessions[2].turns
    assert {run.version for run in turn.attempts[0].runs} == {4}
    assert judge(case, trace) == []


def test_its_prefix_cache_and_its_gate_are_gone():
    """The second session parks at the closed gate and fails with the replica; the third finds the gate open, and its
    prompt, which the first one's begins with, not in the cache."""
    sessions = Session(40), Session(40, arrival_s=0.5), Session(40, arrival_s=5.0, shares_prompt_with=0)
    budget = Budget(64, 10, 128)
    faults = AbortAll(AfterTokens(0, 3), 0, 100.0, reset_prefix_cache=False), CrashReplica(AtTime(1.5), 0, down_s=1.0)
    case = Case(budget, sessions, faults, server=ServerSettings(engine=EngineSettings(block_size=4)))
    trace = run_world(case, load_sut(CLEAN))
    assert {event.request for event in events(trace, Parked)} >= {1}
    assert [outcome for session, outcome, _ in outcomes(trace) if session == 1] == ["error"]
    assert judge(case, trace, ["A3", "A4", "V1"]) == []


def test_it_dies_once():
    crashes = CrashReplica(AtTime(0.01), 0), CrashReplica(AtTime(0.02), 0)
    assert notes(run(*crashes, sessions=[ONE, Session(4, arrival_s=2.0)])) == ["", "skipped: the replica is dead"]


def test_an_update_that_meets_a_dead_replica_ends_there_and_the_others_go_on():
    trace = run(CrashReplica(AtTime(0.01), 1, down_s=9.0), WeightUpdate(AtTime(0.02), 1.0), sessions=PAIR, replicas=2)
    assert notes(trace)[1] == "ActorDiedError: replica 1 is dead"
    assert events(trace, VersionChanged) == []
    assert {event.replica for event in events(trace, Paused)} == {event.replica for event in events(trace, Resumed)}


@pytest.mark.parametrize("at_s", [0.0, 0.005, 0.5, 1.0, 1.03, 1.5])
@pytest.mark.parametrize("gate", [True, False])
def test_a_replica_that_dies_at_any_point_of_an_update_leaves_nothing_hanging(at_s, gate):
    server = ServerSettings(submission_gate=gate, admission_s=0.25, prefill_s=0.25)
    faults = WeightUpdate(AtTime(0.3), 1.0), CrashReplica(AtTime(0.3 + at_s), 0)
    for sut in (load_sut(CLEAN), RETRYING):
        case = Case(BUDGET, PAIR, faults, server=server)
        assert judge(case, run_world(case, sut)) == []


# Control calls


def test_an_abort_that_fails_stops_the_update():
    trace = run(FailControl(AtTime(0.0), 0), WeightUpdate(AfterTokens(0, 3)), sessions=PAIR, replicas=2)
    assert notes(trace) == ["", "ServerError: replica 0 failed at abort"]
    assert events(trace, VersionChanged) == []
    assert {event.replica for event in events(trace, Resumed)} == {0, 1}


def test_one_that_is_done_and_not_acknowledged_stops_it_too():
    trace = run(FailControl(AtTime(0.0), 0, done=True), WeightUpdate(AfterTokens(0, 3)))
    assert notes(trace)[1] == "ActorUnavailableError: replica 0 was lost after abort"
    assert len(events(trace, Paused)) == len(events(trace, Resumed)) == 1
    assert events(trace, VersionChanged) == []


def test_a_version_that_comes_to_some_replicas_only():
    trace = run(FailControl(AtTime(0.0), 1, "set_version"), WeightUpdate(AfterTokens(0, 3)), sessions=PAIR, replicas=2)
    assert [(event.replica, event.version) for event in events(trace, VersionChanged)] == [(0, 1)]
    assert {event.replica for event in events(trace, Resumed)} == {0, 1}


@pytest.mark.parametrize("times", [1, 3])
def test_a_resume_that_fails_is_made_again(times):
    trace = run(FailControl(AtTime(0.0), 0, "resume", times), AbortAll(AfterTokens(0, 3), 0))
    assert len(events(trace, Resumed)) == 1
    assert trace.is_done


# One after the other


def test_a_rolling_update_comes_to_one_replica_after_the_other():
    trace = run(RollingUpdate(AtTime(0.5), 1.0, 2.0), sessions=[Session(4, arrival_s=20.0)], replicas=2)
    assert [(event.replica, event.version, event.t_ns) for event in events(trace, VersionChanged)] == [
        (0, 1, to_ns(1.5)),
        (1, 1, to_ns(4.5)),
    ]
    assert trace.is_done
