"""Shrinking a schedule: no deviation left means no race, and a race keeps the few that it needs."""

import asyncio

import pytest
from msgspec.structs import replace

from sim.case import (
    Budget,
    Case,
    EngineSettings,
    FittedLatency,
    Limit,
    Router,
    Schedule,
    ServerSettings,
    Session,
    Transport,
    Turn,
    explicit_limit,
)
from sim.faults import (
    FAULTS,
    AbortAll,
    AbortRequest,
    AddReplica,
    AfterSent,
    AfterTokens,
    AtTime,
    CancelClient,
    FailControl,
    Fault,
    RemoveReplica,
    WeightUpdate,
    register_fault,
)
from sim.invariants.judging import judge
from sim.reach import FEATURES, reach_of
from sim.report.spelled import schedule_line
from sim.search.shrink import MOST_RUNS, shrink_schedule, shrink_world, with_schedule
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.world import World, run_world

CASE = Case(Budget(4, 10, 64), (Session(4), Session(4), Session(4)), replicas=2)
RANDOM = Case(CASE.budget, CASE.sessions, replicas=2, schedule=Schedule("random", 5))


class RacingClient(PinnedClient):
    """Starts two tasks and trusts that they end in the order in which they were started."""

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        ended = []

        async def note(name):
            ended.append(name)

        await asyncio.gather(note("first"), note("second"))
        if ended == ["second", "first"]:
            sampling_params["top_p"] = 0.5
        return await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs)


RACE = sut_of("race", lambda context: RacingClient(context.config, context.balancer))


def breaks(number, sut):
    return lambda case: bool(judge(case, run_world(case, sut), [number]))


def racing_case():
    fails = breaks("B4", RACE)
    cases = (Case(CASE.budget, CASE.sessions, replicas=2, schedule=Schedule("random", seed)) for seed in range(20))
    return next(case for case in cases if fails(case))


def test_what_fails_in_fifo_order_too_is_no_race():
    shrunk = shrink_schedule(RANDOM, load_sut(CLEAN), lambda case: True)
    assert shrunk.schedule == Schedule()
    assert schedule_line(shrunk) == "schedule: FIFO, no deviations: not a race"


def test_the_dialect_that_was_asked_for_stays():
    case = Case(CASE.budget, CASE.sessions, server=ServerSettings("sglang", prefill_s=2.0))
    assert shrink_world(case, lambda _: True).server == ServerSettings("sglang")


def test_a_case_that_is_fifo_already_costs_no_run():
    runs = []
    assert shrink_schedule(CASE, load_sut(CLEAN), lambda case: bool(runs.append(case))) == CASE
    assert runs == []


def test_a_true_race_keeps_one_deviation_and_still_fails():
    fails = breaks("B4", RACE)
    shrunk = shrink_schedule(racing_case(), RACE, fails)
    assert shrunk.schedule.policy == "explicit"
    ((step, pick),) = shrunk.schedule.deviations
    assert fails(shrunk)
    assert not fails(Case(CASE.budget, CASE.sessions, replicas=2))
    assert schedule_line(shrunk) == f"schedule: FIFO but for 1 deviation (step {step} takes callback {pick}): a race"


def test_few_deviations_are_found_where_leaving_some_out_one_by_one_gets_stuck():
    """Here no recorded deviation can be left out, but another one, alone, does it as well."""
    recorded = []

    def fails(case):
        deviations = case.schedule.deviations
        if case.schedule.policy == "fifo":
            return False
        if not recorded:
            recorded.append(deviations)
        return deviations == recorded[0] or (len(deviations) == 1 and deviations[0][0] == 3)

    shrunk = shrink_schedule(RANDOM, load_sut(CLEAN), fails)
    assert len(recorded[0]) > 3
    assert shrunk.schedule.deviations == ((3, 1),)


def test_what_cannot_be_reproduced_keeps_the_schedule_that_it_had():
    assert shrink_schedule(RANDOM, load_sut(CLEAN), lambda case: False) == RANDOM


def test_shrinking_is_bounded():
    runs = []

    def fails(case):
        runs.append(case)
        return case.schedule.policy == "explicit" and len(runs) < 3

    shrink_schedule(RANDOM, load_sut(CLEAN), fails)
    assert len(runs) < 3 * MOST_RUNS


# The world, part by part


def test_a_world_keeps_only_what_the_violation_needs():
    """Six sessions, four faults; needed are one session, and a fault that names it by an index that moves."""
    sessions = tuple(Session(index + 1, (Turn(9, 3, 1.5), Turn()), float(index)) for index in range(6))
    faults = (
        WeightUpdate(AtTime(7.75), 3.0, (1,)),
        AbortRequest(AfterTokens(4, 5), 4),
        AbortAll(AfterSent(2, 2), 1),
        CancelClient(AtTime(30), 1),
    )
    case = Case(Budget(40, 50, 200), sessions, faults, 3, seed=77, transport=Transport("shared", 0.25, 0.25))

    def fails(case):
        return any(isinstance(f, AbortRequest) and case.sessions[f.session].prompt_tokens >= 4 for f in case.faults)

    shrunk = shrink_world(case, fails)
    assert shrunk == Case(Budget(1, 1), (Session(4),), (AbortRequest(AfterTokens(0, 1), 0),))


def test_the_replica_that_a_violation_needs_becomes_the_only_one():
    faults = (RemoveReplica(AtTime(1.0), 0), RemoveReplica(AtTime(2.0), 2))

    def fails(case):
        return any(isinstance(fault, RemoveReplica) and fault.replica == case.replicas - 1 for fault in case.faults)

    shrunk = shrink_world(Case(Budget(4, 4), (Session(1),), faults, 3), fails)
    assert (shrunk.replicas, shrunk.faults) == (1, (RemoveReplica(AtTime(0.0), 0),))


def test_a_shared_params_object_stays_with_its_owner():
    sessions = (Session(1), Session(1, limit=Limit("both", 7)), Session(1, shares_params_with=1))
    last_is_limited = lambda case: explicit_limit(case, len(case.sessions) - 1) is not None  # noqa: E731
    shrunk = shrink_world(Case(Budget(4, 4), sessions), last_is_limited)
    assert shrunk.sessions == (Session(1, limit=Limit("max_tokens", 0)),)


def test_what_cannot_be_spared_stays_and_costs_a_bounded_number_of_worlds():
    runs = []
    case = Case(Budget(40, 50, 200), tuple(Session(4) for _ in range(60)))
    assert shrink_world(case, lambda _: bool(runs.append(0))) == case
    assert len(runs) <= MOST_RUNS


def everywhere_odd():
    """A case whose every optional setting is another than by default."""
    engine = EngineSettings(10, 4, 2, 64, scheduling_policy="priority")
    update = WeightUpdate(AtTime(2.0), 3.0, reset_prefix_cache=False, pause_mode="keep")
    return Case(
        Budget(4, 4, 16),
        tuple(Session(4, shares_prompt_with=0 if index else None, priority=-index) for index in range(5)),
        (update, update),
        2,
        ServerSettings(engine=engine, token_time_s=0.25, latency=FittedLatency(0.1), routed_experts="list"),
        Router("first", sticky=False),
        Transport("shared", 0.25, 0.25),
        repeat=3,
        max_concurrent_sessions=2,
    )


def test_what_may_be_left_out_goes_first_from_all_sessions_and_faults_at_once():
    tried = []

    def fails(case):
        tried.append(case)
        return len(case.sessions) == 5 and len(case.faults) == 2

    shrunk = shrink_world(everywhere_odd(), fails)
    assert shrunk == Case(Budget(1, 1), (Session(1),) * 5, (WeightUpdate(AtTime(0.0)),) * 2)
    usual = next(index for index, case in enumerate(tried) if case.server == ServerSettings() and case.repeat == 1)
    assert all(len(case.sessions) == 5 for case in tried[: usual + 1])


@pytest.mark.parametrize(
    ("fails", "left"),
    [
        (lambda case: case.sessions[-1].priority < 0, (Session(1, priority=-1),)),
        (lambda case: case.sessions[-1].priority <= -3, (Session(1, priority=-3),)),
        (lambda case: case.sessions[-1].priority != 0, (Session(1, priority=-1),)),
    ],
)
def test_negative_numbers_come_nearer_to_zero(fails, left):
    assert shrink_world(everywhere_odd(), fails).sessions == left


def test_what_is_null_becomes_what_is_usual():
    case = Case(Budget(4, 4, None), (Session(4),), server=ServerSettings(engine=None))
    assert shrink_world(case, lambda _: True) == Case(Budget(1, 1), (Session(1),))


def test_of_a_few_names_the_first_that_does_stays():
    sessions = (Session(4, limit=Limit("both", 2)),)
    faults = (FailControl(AtTime(0.0), 0, "set_version"),)

    def fails(case):
        return case.sessions[0].limit is not None and bool(case.faults) and case.faults[0].call != "abort"

    shrunk = shrink_world(Case(Budget(4, 4), sessions, faults), fails)
    assert shrunk.sessions[0].limit == Limit("max_tokens", 0)
    assert shrunk.faults == (FailControl(AtTime(0.0), 0, "resume"),)


def test_text_becomes_shorter():
    class Noting(Fault, frozen=True, tag="noting"):
        note: str

        async def act(self, stage):
            return self.note

    with FAULTS.forgetting():
        case = Case(Budget(4, 4), (Session(4),), (register_fault(Noting)(AtTime(0.0), "a long note"),))
        shrunk = shrink_world(case, lambda case: bool(case.faults) and "lo" in case.faults[0].note)
    assert shrunk.faults[0].note == "lo"


def test_what_an_adapter_has_fixed_stays():
    case = Case(CASE.budget, CASE.sessions, server=ServerSettings(prefill_s=2.0, max_parked_s=5.0))
    assert shrink_world(case, lambda _: True).server == ServerSettings(max_parked_s=5.0)


# Which callback a deviation takes


CROWD = Case(CASE.budget, (Session(4),) * 8, replicas=2)


def first_deviation_beyond(pick):
    """A schedule whose first deviation takes a callback after this one, and the step in which it does."""
    for seed in range(100):
        world = World(with_schedule(CROWD, Schedule("random", seed)), load_sut(CLEAN))
        world.run()
        if world.deviations[0].pick > pick:
            return world.case, world.deviations[0].step
    raise AssertionError("there is none")


@pytest.mark.parametrize("least", [1, 2])
def test_a_deviation_takes_the_next_in_line_that_does(least):
    case, where = first_deviation_beyond(least)

    def fails(case):
        deviations = case.schedule.deviations
        return case.schedule.policy == "explicit" and any(step == where and pick >= least for step, pick in deviations)

    shrunk = shrink_schedule(case, load_sut(CLEAN), fails)
    assert shrunk.schedule.deviations == ((where, least),)


# Toward what is near


CALLERS = dict.fromkeys([feature.name for feature in FEATURES], False)
FAR = replace(
    CASE,
    sessions=(Session(4, limit=Limit("max_tokens", 3)), Session(4)),
    transport=Transport("shared"),
    faults=(AbortAll(AtTime(0.03), 0),),
)


def test_who_can_meet_it_comes_before_how_small_it_is():
    """A limit of the caller's own would make the case no larger than a whole session does."""
    shrunk = shrink_world(FAR, lambda case: len(case.sessions) == 2 or case.sessions[0].limit is not None, CALLERS)
    assert reach_of(shrunk, CALLERS).reach == "stock"
    assert len(shrunk.sessions) == 2


def test_what_needs_one_far_feature_keeps_no_other():
    shrunk = shrink_world(FAR, lambda case: case.sessions[0].limit is not None, CALLERS)
    assert reach_of(shrunk, CALLERS).reach == "custom callers"
    assert shrunk.transport.objects == "copies"


def test_no_step_leads_farther():
    """To leave out that it left before would make it a replica that is added while it is there."""
    case = replace(CASE, faults=(RemoveReplica(AtTime(1.0), 0), AddReplica(AtTime(2.0), 0)))

    def fails(case):
        return any(isinstance(fault, AddReplica) for fault in case.faults)

    assert len(shrink_world(case, fails, CALLERS).faults) == 2
    assert len(shrink_world(case, fails).faults) == 1
