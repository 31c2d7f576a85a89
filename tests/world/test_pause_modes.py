"""What a weight update does to the requests of a replica: vLLM's pause modes, with the cache cleared or kept."""

import dataclasses

import pytest
from msgspec.structs import replace

from sim.case import Budget, Case, EngineSettings, ServerSettings, Session
from sim.events import Decoded, Ended, Paused, Prefilled, Resumed, Sent, VersionChanged
from sim.faults import AbortRequest, AfterTokens, AtTime, WeightUpdate
from sim.invariants.judging import judge
from sim.schema import CaseError
from sim.search.schedules import under_schedules
from sim.servers.port import Instead
from sim.servers.server import SimulatedServer
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world

BUDGET = Budget(prompt_length=40, response_length=40, max_model_len=128)


def updated(*sessions, server=ServerSettings(), **fault):  # noqa: B008 - frozen
    return Case(BUDGET, sessions or (Session(30),), (WeightUpdate(AfterTokens(0, 20), **fault),), server=server)


def run(case, sut=CLEAN):
    trace = run_world(case, load_sut(sut) if isinstance(sut, str) else sut)
    assert trace.is_done
    return trace


def events(trace, kind):
    return [event for event in trace.events if isinstance(event, kind)]


def prefills(trace):
    return [(e.computed_tokens, e.cached_tokens, e.recomputed_tokens, e.stale_tokens) for e in events(trace, Prefilled)]


def violated(case):
    return {each.invariant for each in judge(case, run(case))}


def warned_of(case):
    return {each.invariant for each in judge(case, run(case), ["S2"]) if each.severity == "warning"}


@pytest.mark.parametrize(
    ("mode", "reset", "attempts", "prefill", "stale", "warnings"),
    [
        ("abort", True, 2, [(30, 0, 0, 0), (50, 0, 0, 0)], (0, 0), set()),
        ("abort", False, 2, [(30, 0, 0, 0), (2, 48, 0, 48)], (0, 0), {"S2"}),
        ("keep", True, 1, [(30, 0, 50, 0)], (0, 0), set()),
        ("keep", False, 1, [(30, 0, 0, 0)], (1, 49), {"S2"}),
        ("wait", True, 1, [(30, 0, 0, 0)], (0, 0), set()),
        ("wait", False, 1, [(30, 0, 0, 0)], (0, 0), set()),
    ],
)
def test_a_mode_and_a_cache(mode, reset, attempts, prefill, stale, warnings):
    """Attempts, where the KV came from, what running requests hold of older weights: the last token is not in it."""
    case = updated(pause_mode=mode, reset_prefix_cache=reset)
    trace = run(case)
    assert len(events(trace, Sent)) == attempts
    assert prefills(trace) == prefill
    (changed,) = events(trace, VersionChanged)
    assert (changed.stale_requests, changed.stale_kv_tokens) == stale
    assert sum(event.tokens for event in events(trace, Decoded)) == 40
    assert violated(case) == set()
    assert warned_of(case) == warnings


def test_with_keep_the_tokens_after_the_update_are_of_the_new_weights():
    trace = run(updated(pause_mode="keep"))
    assert [(event.tokens, event.version) for event in events(trace, Decoded)] == [(20, 0), (20, 1)]
    (paused,), (resumed,) = events(trace, Paused), events(trace, Resumed)
    assert resumed.t_ns - paused.t_ns == 10**9, "frozen for pause_s, and not a step longer"


def test_with_wait_the_update_waits_for_what_runs_and_the_rest_waits_for_the_update():
    engine = EngineSettings(max_num_seqs=1)
    trace = run(updated(Session(30), Session(30), server=ServerSettings(engine=engine), pause_mode="wait"))
    (paused,) = events(trace, Paused)
    first, second = events(trace, Ended)
    assert (first.request, first.t_ns) == (0, paused.t_ns)
    assert [event.version for event in events(trace, Decoded) if event.request == 1] == [1]
    assert second.t_ns - paused.t_ns == 10**9 + 40 * 10**7


@pytest.mark.parametrize("mode", ["keep", "wait"])
def test_every_order_of_callbacks_comes_to_the_end(mode):
    sessions = [Session(30, arrival_s=arrival_s) for arrival_s in (0, 0.1, 0.15, 0.2, 0.25)]
    for case in under_schedules(updated(*sessions, pause_mode=mode)):
        trace = run(case)
        assert [event.outcome for event in events(trace, Ended)] == ["length"] * 5


def test_what_is_aborted_while_it_is_frozen_is_no_more_when_the_rest_goes_on():
    """Its KV was taken from it, and the next step would tell of that."""
    case = updated(Session(30), Session(30), pause_mode="keep")
    case = replace(case, faults=(*case.faults, AbortRequest(AtTime(0.7), 0)))
    for each in under_schedules(case):
        assert [event.outcome for event in events(run(each), Ended)] == ["abort", "length", "length"]
        assert violated(each) == set()


def test_a_fault_of_a_server_of_ours_is_no_violation_of_the_clients():
    """It is raised in the server's own time, when no call of anybody is under way in it."""

    def broken(parts):
        def advance(now_ns):
            raise RuntimeError("our own fault")

        return SimulatedServer(dataclasses.replace(parts, engine=Instead(parts.engine, advance=advance)))

    with pytest.raises(RuntimeError, match="our own fault"):
        run_world(updated(), dataclasses.replace(load_sut(CLEAN), make_server=broken))


@pytest.mark.parametrize("mode", ["keep", "wait"])
def test_an_update_of_an_idle_replica(mode):
    case = Case(BUDGET, (Session(30, arrival_s=5.0),), (WeightUpdate(AtTime(1.0), pause_mode=mode),))
    assert [event.version for event in events(run(case), Decoded)] == [1]


def forgets_to_freeze(parts):
    """Planted: takes new weights under requests that run on."""

    async def pause(mode, *, clear_cache=True):
        del mode, clear_cache

    return Instead(SimulatedServer(parts), pause=pause)


def test_a_server_that_does_not_freeze_is_seen():
    sut = load_sut(CLEAN)
    trace = run(updated(pause_mode="keep"), dataclasses.replace(sut, make_server=forgets_to_freeze))
    assert {event.version for event in events(trace, Decoded)} == {0}, "done before the new weights come"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"server": ServerSettings("sglang")}, "faults[0].pause_mode is keep: only vLLM has it, and server.dialect is"),
        ({"server": ServerSettings(engine=None)}, "faults[0].pause_mode is keep: it needs an engine"),
    ],
)
def test_where_a_mode_cannot_be(settings, says):
    with pytest.raises(CaseError) as error:
        updated(pause_mode="keep", **settings)
    assert says in str(error.value)


def test_replicas_that_leave_abort():
    with pytest.raises(CaseError, match="only abort is allowed with them"):
        Case(BUDGET, (Session(3),), (WeightUpdate(AtTime(1.0), leaving=(0,), pause_mode="wait"),), replicas=2)
