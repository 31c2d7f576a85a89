"""Classic worlds: each shows what it is there for, on a planted bug or on a client written for it here."""

import asyncio

import pytest

from sim.case import Case, Session, Turn
from sim.events import VersionChanged
from sim.invariants.harness import check_same_digest
from sim.invariants.judging import judge
from sim.invariants.kinds import KINDS
from sim.invariants.table import INVARIANTS
from sim.search import campaign as campaign_module
from sim.search.campaign import Bounds, run_campaign
from sim.search.classics import CLASSICS, classic_cases
from sim.search.compare import DIFFERS, against
from sim.search.strategies import STRATEGIES, response_cases
from sim.sut.planted import PLANTED
from sim.sut.reference.client import DeferredClient, PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.testing import search
from sim.world import run_world

BY_NAME = {classic.name: classic for classic in CLASSICS}


class ForgettingEpochsBalancer(LeastLoadedBalancer):
    """Takes any release for one of a replica's present stay."""

    def release_server(self, server_id, request_id=None):
        if self._loads.get(server_id):
            self._loads[server_id] -= 1


class ImpatientClient(PinnedClient):
    """Tries again after a minute, and leaves the slot of the attempt that it gave up."""

    async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
        try:
            return await self.one_try(60, request_id, prompt_ids, sampling_params)
        except TimeoutError:
            return await self.one_try(None, request_id, prompt_ids, sampling_params)

    async def one_try(self, patience_s, request_id, prompt_ids, sampling_params):
        server_id, server = await self.acquire(request_id)
        sent = server.generate.remote(request_id=request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)
        output = await asyncio.wait_for(sent, patience_s)
        self.balancer.release_server.remote(server_id=server_id, request_id=request_id)
        return output


class TwiceReleasingClient(PinnedClient):
    """Releases when it is cancelled, and once more as always."""

    async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
        server_id, server = await self.acquire(request_id)
        try:
            return await server.generate.remote(
                request_id=request_id, prompt_ids=prompt_ids, sampling_params=sampling_params
            )
        except asyncio.CancelledError:
            self.balancer.release_server.remote(server_id=server_id)
            raise
        finally:
            self.balancer.release_server.remote(server_id=server_id)


class SimplyAcquiringClient(PinnedClient):
    """Does not think of a slot that is granted to a call which was cancelled meanwhile (verl 0.9.1)."""

    async def acquire(self, request_id):
        return await self.balancer.acquire_server.remote(request_id=request_id)


def forgetting_epochs(context):
    return PinnedClient(context.config, context.make_balancer(ForgettingEpochsBalancer))


def needing_a_response_length(context):
    assert context.config.actor_rollout_ref.rollout.response_length
    return PinnedClient(context.config, context.balancer)


OWN = {
    "a prompt beyond prompt_length": lambda context: DeferredClient(context.config, context.balancer),
    "a config without response_length": needing_a_response_length,
    "cancelled while it acquires": lambda context: SimplyAcquiringClient(context.config, context.balancer),
    "one of two cancelled while it decodes": lambda context: TwiceReleasingClient(context.config, context.balancer),
    "an answer that takes longer than a client may wait": lambda c: ImpatientClient(c.config, c.balancer),
    "a release lost until its replica is back": forgetting_epochs,
}
"""What a classic is there for where no planted bug is."""


def broken_by(case, sut):
    trace = run_world(case, sut)
    numbers = {violation.invariant for violation in judge(case, trace, INVARIANTS)}
    return numbers | ({"D1"} if check_same_digest(trace, run_world(case, sut)) else set())


@pytest.mark.parametrize("name", BY_NAME)
def test_a_classic_shows_what_it_is_meant_for(name):
    classic = BY_NAME[name]
    suts = [load_sut(f"reference:{bug}") for bug, each in PLANTED.items() if each.invariant in classic.meant_for]
    if name in OWN:
        suts.append(sut_of(name, OWN[name]))
    shown = set().union(*(broken_by(classic.case, sut) for sut in suts))
    assert set(classic.meant_for) <= shown


@pytest.mark.parametrize("most_turns", [1, 3])
def test_the_known_good_client_is_clean_in_all_of_them(most_turns):
    for case in classic_cases(KINDS, most_turns=most_turns):
        assert judge(case, run_world(case, load_sut(CLEAN))) == []


@pytest.mark.parametrize("bug", PLANTED)
def test_every_planted_bug_is_caught_before_a_world_is_drawn(bug, monkeypatch):
    monkeypatch.setattr(campaign_module, "MOST_SHRINK_WORLDS", 0)
    number = PLANTED[bug].invariant
    kind = INVARIANTS[number].kind
    worlds = 4 * len(classic_cases([kind]))
    (find,) = search(load_sut(f"reference:{bug}"), kind, worlds=worlds, numbers=(number,)).finds
    assert not find.is_race
    assert judge(find.case, run_world(find.case, load_sut(CLEAN))) == []


def test_a_double_release_on_cancel_is_found_in_the_classics(monkeypatch):
    monkeypatch.setattr(campaign_module, "MOST_SHRINK_WORLDS", 0)
    twice = sut_of("twice", OWN["one of two cancelled while it decodes"])
    (find,) = search(twice, "routing", worlds=4 * len(classic_cases(["routing"])), numbers=("R3",)).finds
    assert len(find.case.sessions) == 2
    assert "counts 0 requests on replica 0; 1 are acquired and not released" in find.message


def test_only_those_of_the_kinds_asked_for_are_run():
    assert classic_cases(["staleness"]) == (BY_NAME["two replicas and a weight update"].case,)
    assert set(classic_cases(["budget", "routing"])) < set(classic_cases(KINDS))
    assert {kind for kind in STRATEGIES if not classic_cases([kind])} == set()


def test_they_are_fitted_to_what_a_search_varies():
    for case in classic_cases(KINDS, dialect="sglang", policy="trajectory", most_turns=1, max_parked_s=5.0):
        assert (case.server.dialect, case.server.max_parked_s) == ("sglang", 5.0)
        assert case.budget.policy == "trajectory"
        assert all(len(session.turns) == 1 for session in case.sessions)


def test_they_count_as_worlds_and_come_first():
    seen = []

    class Watching(PinnedClient):
        def __init__(self, config, balancer):
            super().__init__(config, balancer)
            seen.append(config.actor_rollout_ref.rollout.prompt_length)

    first = Case(BY_NAME["one session, one abort"].case.budget, (Session(1, (Turn(1),)),))
    sut = sut_of("watching", lambda context: Watching(context.config, context.balancer))
    campaign = run_campaign(sut, response_cases(), ("B1",), 1, Bounds(worlds=20), classics=[first])
    assert (campaign.worlds, len(seen)) == (20, 20)
    assert seen[:4] == [4] * 4


def test_what_is_known_is_not_reported_from_them_either():
    classics = classic_cases(["budget"])
    deferred = load_sut("reference:deferred")
    campaign = run_campaign(deferred, response_cases(), ("B1",), 1, Bounds(worlds=40), known={"B1"}, classics=classics)
    assert (campaign.seen, campaign.finds, campaign.worlds) == ({"B1"}, [], 40)


def test_two_clients_are_compared_on_them_too():
    (find,) = run_campaign(
        load_sut("reference:deferred"),
        response_cases(),
        (DIFFERS,),
        1,
        Bounds(worlds=8),
        compare=against(load_sut(CLEAN)),
        classics=classic_cases(["budget"]),
    ).finds
    assert find.invariant == DIFFERS
    assert len(find.case.sessions) == 1


def test_the_abort_while_preempted_meets_a_request_that_is_preempted():
    """Both decode a token a step; the second stood still from the moment when the pool was short."""
    trace = run_world(BY_NAME["an abort while preempted"].case, load_sut(CLEAN))
    first, second = trace.ledger.attempts[:2]
    assert first.decoded_tokens == 30
    assert second.decoded_tokens < 24
    assert [ended.outcome for ended in second.ended] == ["abort"]


def test_the_weight_update_reaches_both_replicas_at_work():
    trace = run_world(BY_NAME["two replicas and a weight update"].case, load_sut(CLEAN))
    assert [event.replica for event in trace.events if isinstance(event, VersionChanged)] == [0, 1]
    assert {attempt.sent.replica for attempt in trace.ledger.attempts[:2]} == {0, 1}


def test_they_end_once_all_that_is_looked_for_has_come_up(monkeypatch):
    monkeypatch.setattr(campaign_module, "MOST_SHRINK_WORLDS", 0)
    classics = classic_cases(["budget"])
    campaign = run_campaign(
        load_sut("reference:deferred"), response_cases(), ("B1",), 1, Bounds(worlds=900), classics=classics
    )
    assert ([find.invariant for find in campaign.finds], campaign.worlds) == (["B1"], 1)
