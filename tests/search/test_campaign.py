"""Campaigns: what breaks is found, shrunk and kept; bounds hold; nothing that was seen or raised is lost."""

import itertools

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.case import dumps
from sim.invariants.interface import Invariant
from sim.invariants.judging import judge
from sim.invariants.table import INVARIANTS, numbers_of, register_invariant
from sim.registry import PluginError
from sim.search import campaign as campaign_module
from sim.search import shrink as shrink_module
from sim.search.campaign import Bounds, run_campaign
from sim.search.classics import CLASSICS
from sim.search.strategies import response_cases, routing_cases
from sim.sut.interface import SutError
from sim.sut.reference.client import DeferredClient, PinnedClient
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.world import run_world

BUDGET = numbers_of(["budget"])
DEFERRED = load_sut("reference:deferred")


def sut(client, name="under test"):
    return sut_of(name, lambda context: client(context.config, context.balancer))


RESPONSES = response_cases()

EARLY = 3
"""A seed whose 17th world shows B1, so that no time goes into drawing."""


def hunt(subject, numbers=BUDGET, worlds=150, seed=EARLY, strategy=RESPONSES, **more):
    return run_campaign(subject, strategy, numbers, seed, Bounds(worlds=worlds), **more)


def numbers(campaign):
    return [find.invariant for find in campaign.finds]


@pytest.fixture
def short_shrinks(monkeypatch):
    """Where it does not matter how small a find becomes."""
    monkeypatch.setattr(campaign_module, "MOST_SHRINK_WORLDS", 40)
    monkeypatch.setattr(shrink_module, "MOST_RUNS", 30)


def test_a_clean_client_is_clean_and_gets_the_worlds_that_were_asked_for():
    campaign = hunt(load_sut(CLEAN), worlds=30)
    assert (campaign.finds, campaign.worlds, campaign.shrink_worlds) == ([], 30, 0)


def test_the_overrun_shrinks_to_one_session_one_abort_and_single_digits():
    (find,) = hunt(DEFERRED, ("B1",), worlds=3000).finds
    case = find.case
    assert (len(case.sessions), len(case.faults), case.replicas, find.is_race) == (1, 1, 1, False)
    assert max(case.budget.prompt_length, case.budget.response_length, case.sessions[0].prompt_tokens) < 10
    assert find.message in [v.message for v in judge(case, run_world(case, DEFERRED), ["B1"])]


def test_the_same_seed_gives_the_same_finds(short_shrinks):
    first, again = (hunt(DEFERRED, ("B1", "B8"), worlds=60) for _ in range(2))
    assert [(f.invariant, f.message, dumps(f.case)) for f in first.finds] == [
        (f.invariant, f.message, dumps(f.case)) for f in again.finds
    ]
    assert (first.worlds, first.shrink_worlds) == (again.worlds, again.shrink_worlds)


def test_shrinking_one_violation_does_not_use_up_the_worlds_for_the_others(short_shrinks):
    campaign = hunt(DEFERRED, worlds=100)
    assert {"B1", "B8"} <= set(numbers(campaign))
    assert campaign.worlds == 100
    assert campaign.shrink_worlds > campaign.worlds


def test_known_violations_are_noted_and_neither_shrunk_nor_reported():
    campaign = hunt(DEFERRED, ("B8",), worlds=300, known={"B8"})
    assert (campaign.seen, campaign.finds, campaign.shrink_worlds) == ({"B8"}, [], 0)
    assert campaign.worlds == 300


def test_what_was_seen_and_could_not_be_shrunk_is_reported_as_it_was(monkeypatch):
    monkeypatch.setattr(campaign_module, "MOST_SHRINK_WORLDS", 0)
    for find in hunt(DEFERRED, worlds=60).finds:
        assert judge(find.case, run_world(find.case, DEFERRED), [find.invariant])


# Bounds


class Clock:
    """Every look at it takes a hundredth of a second."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 0.01
        return self.now


def test_a_campaign_bounded_by_seconds_ends_in_time_even_in_the_middle_of_shrinking(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(campaign_module, "time", clock)
    campaign = run_campaign(DEFERRED, response_cases(), BUDGET, 2, Bounds(seconds=2.0))
    assert campaign.finds
    assert clock.now < (1 + campaign_module.GRACE) * 2.0 + 0.2


def test_a_campaign_bounded_by_worlds_asks_no_clock_when_to_stop(monkeypatch, short_shrinks):
    expected = [dumps(find.case) for find in hunt(DEFERRED, ("B1",), worlds=80).finds]
    clock = Clock()
    clock.monotonic = lambda: next(ticks)
    ticks = itertools.count(0, 1e6)
    monkeypatch.setattr(campaign_module, "time", clock)
    assert [dumps(find.case) for find in hunt(DEFERRED, ("B1",), worlds=80).finds] == expected


def test_a_client_that_polls_for_ever_does_not_take_shrinking_with_it(monkeypatch):
    monkeypatch.setattr(campaign_module, "MOST_SHRINK_STEPS", 150_000)

    class Polling(PinnedClient):
        async def generate(self, request_id, **kwargs):
            import asyncio

            while True:
                await asyncio.sleep(0)

    campaign = hunt(sut(Polling), ("V1",), worlds=1)
    assert numbers(campaign) == ["V1"]
    assert campaign.shrink_worlds <= 4


def test_a_request_to_stop_ends_it_with_what_it_has(short_shrinks):
    asked = []

    def stop():
        asked.append(0)
        return len(asked) > 200

    campaign = hunt(DEFERRED, worlds=10_000, stop=stop)
    assert campaign.interrupted
    assert campaign.finds
    assert campaign.worlds < 200


def test_an_interrupt_in_the_middle_of_shrinking_loses_nothing():
    found = []

    class Interrupted(DeferredClient):
        def __init__(self, *args):
            super().__init__(*args)
            if found and found[0].shrink_worlds == 20:
                raise KeyboardInterrupt

    campaign = hunt(sut(Interrupted), ("B1",), worlds=3000, progress=lambda now: found.__setitem__(slice(1), [now]))
    assert campaign.interrupted
    assert campaign.shrink_worlds == 20
    assert numbers(campaign) == ["B1"]


# Subjects that are not the same twice, and failures that are nobody's find


def flaky(wrong_every):
    calls = itertools.count()

    class Flaky(PinnedClient):
        async def generate(self, request_id, **kwargs):
            kind = DeferredClient if next(calls) % wrong_every == 0 else PinnedClient
            return await kind.generate(kind(self.config, self.balancer), request_id, **kwargs)

    return sut(Flaky)


@pytest.mark.parametrize("wrong_every", [2, 3, 7, 50])
def test_a_flaky_subject_is_reported_and_does_not_crash_the_campaign(wrong_every, short_shrinks):
    campaign = hunt(flaky(wrong_every), ("B1", "B2", "D1"), worlds=100)
    assert campaign.breakdown is None
    assert "D1" in numbers(campaign) or "B1" in numbers(campaign)


def test_a_fault_of_the_harness_is_no_find_and_keeps_its_case():
    def broken(evidence):
        assert len(evidence.case.sessions) < 3, "an invariant fell over"
        return []

    with INVARIANTS.forgetting():
        register_invariant(Invariant("X2", "budget", "Broken.", broken))
        campaign = hunt(load_sut(CLEAN), ("X2",), worlds=400)
    assert campaign.finds == []
    assert isinstance(campaign.breakdown.error, PluginError)
    assert isinstance(campaign.breakdown.error.__cause__, AssertionError)
    assert len(campaign.breakdown.case.sessions) >= 3
    assert campaign.worlds < 400


def test_a_fault_of_the_harness_while_shrinking_does_not_lose_the_find(monkeypatch, short_shrinks):
    runs = itertools.count()
    real = campaign_module.judged

    def judged_for_a_while(*args, **named):
        if next(runs) == 150:
            raise ZeroDivisionError
        return real(*args, **named)

    monkeypatch.setattr(campaign_module, "judged", judged_for_a_while)
    campaign = hunt(DEFERRED, worlds=1000)
    assert isinstance(campaign.breakdown.error, ZeroDivisionError)
    assert campaign.finds


def test_a_factory_that_fails_in_some_worlds_ends_it_with_what_it_found():
    def factory(context):
        if len(context.servers) == 3:
            raise RuntimeError("only two servers")
        return DeferredClient(context.config, context.balancer)

    campaign = hunt(sut_of("picky", factory), worlds=1000)
    assert isinstance(campaign.breakdown.error, SutError)
    assert campaign.breakdown.case.replicas == 3


def test_a_race_shrinks_with_its_world_and_says_how_few_deviations_it_needs():
    import asyncio

    class Racing(PinnedClient):
        """Trusts that two tasks end in the order in which they were started."""

        async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
            ended = []

            async def note(name):
                ended.append(name)

            await asyncio.gather(note("first"), note("second"))
            if ended == ["second", "first"]:
                sampling_params["top_p"] = 0.5
            return await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs)

    (find,) = hunt(sut(Racing), ("B4",), worlds=100).finds
    assert find.is_race
    assert (len(find.case.sessions), len(find.case.schedule.deviations)) == (1, 1)


def test_routing_bugs_shrink_to_few_sessions():
    (find,) = hunt(load_sut("reference:zeroes-count"), ("R3",), worlds=3000, seed=8, strategy=routing_cases()).finds
    assert (len(find.case.sessions), len(find.case.faults), find.case.replicas) == (1, 1, 1)


def test_a_world_that_repeats_its_sessions_is_searched_like_any_other():
    """Its trace keeps no events, so that nobody asks it what the calls came to."""
    again = replace(CLASSICS[0].case, repeat=3)
    campaign = hunt(DEFERRED, ("B1", "D1"), worlds=8, strategy=st.just(again))
    assert (campaign.breakdown, numbers(campaign)) == (None, ["B1"])
