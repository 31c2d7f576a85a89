"""The built-in known-good client, balancer and agent loop, and what the deferred client does differently."""

import pytest

from sim.case import Budget, Case, ClientView, Limit, ServerSettings, Session, Turn
from sim.events import Logged, Sent, TurnEnded
from sim.faults import AbortAll, AbortRequest, AfterSent, AfterTokens, AtTime, WeightUpdate
from sim.sut.reference import routing
from sim.sut.reference.client import DeferredClient, PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.registry import CLEAN, load_sut
from sim.sut.verl.config import Config
from sim.world import run_world

BUDGET = Budget(prompt_length=4, response_length=10, max_model_len=64)


def run(*faults, sut=CLEAN, session=None, budget=BUDGET, **settings):
    return run_world(Case(budget, (session or Session(4),), tuple(faults), **settings), load_sut(sut))


def limits(trace):
    return [event.limits for event in trace.events if isinstance(event, Sent)]


def decoded(trace):
    return [attempt.decoded_tokens for attempt in trace.ledger.attempts]


def ended(trace):
    return [event for event in trace.events if isinstance(event, TurnEnded)]


# The clients


def client(cls, response_length=10):
    rollout = Config(response_length=response_length, max_model_len=64)
    return cls(Config(actor_rollout_ref=Config(rollout=rollout)), balancer=None)


@pytest.mark.parametrize(
    ("params", "pinned", "deferred"),
    [
        ({}, 10, None),
        ({"max_tokens": 3}, 3, 3),
        ({"max_new_tokens": 3}, 3, 3),
        ({"max_tokens": 3, "max_new_tokens": 5}, 3, 3),
        ({"max_tokens": 0}, 0, 0),
        ({"max_tokens": None}, 10, None),
        ({"max_tokens": None, "max_new_tokens": 5}, 5, 5),
    ],
)
def test_who_sets_the_budget(params, pinned, deferred):
    assert client(PinnedClient).response_tokens(params) == pinned
    assert client(DeferredClient).response_tokens(params) == deferred


def test_the_pinned_client_sends_what_is_left_and_the_deferred_one_nothing():
    faults = [AbortAll(AfterTokens(0, tokens), 0) for tokens in (3, 7)]
    assert limits(run(*faults)) == [{"max_tokens": 10}, {"max_tokens": 7}, {"max_tokens": 3}]
    assert limits(run(*faults, sut="reference:deferred")) == [{}, {}, {}]


@pytest.mark.parametrize("sut", [CLEAN, "reference:deferred"])
@pytest.mark.parametrize("spelling", ["max_tokens", "max_new_tokens"])
def test_an_explicit_limit_is_kept_to_in_its_own_spelling(sut, spelling):
    trace = run(AbortAll(AfterTokens(0, 2), 0), sut=sut, session=Session(4, limit=Limit(spelling, 5)))
    assert limits(trace) == [{spelling: 5}, {spelling: 3}]
    assert ended(trace)[0].params_changed is None


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_of_both_spellings_the_client_sends_one_since_servers_refuse_two(dialect):
    trace = run(session=Session(4, limit=Limit("both", 5)), server=ServerSettings(dialect))
    assert limits(trace) == [{"max_tokens": 5}]
    assert decoded(trace) == [5]


def test_nothing_left_means_no_request():
    assert limits(run(session=Session(4, limit=Limit("max_tokens", 0)))) == []
    assert limits(run(session=Session(64))) == [], "the context is full"
    assert decoded(run(AbortAll(AfterTokens(0, 2), 0), session=Session(4, limit=Limit("max_tokens", 2)))) == [2]


@pytest.mark.parametrize("shown", [None, 0, -1, "10", 10.0, True], ids=repr)
def test_a_config_without_a_usable_budget_falls_back_to_the_server_and_says_so(shown):
    trace = run(budget=Budget(4, 10, 64, client_view=ClientView(shown)))
    assert limits(trace) == [{}]
    assert decoded(trace) == [10]
    (logged,) = [event for event in trace.events if isinstance(event, Logged)]
    assert f"response_length is {shown!r}, not a positive integer" in logged.text


def test_an_answer_of_0_tokens_is_resumed_like_any_other():
    settings = ServerSettings(submission_gate=False, prefill_s=1.0)
    trace = run(AbortRequest(AtTime(0.5), 0), AbortRequest(AfterSent(0, 2), 0), server=settings)
    assert decoded(trace) == [0, 0, 10]
    assert ended(trace)[0].outcome == "ok"


def test_the_weight_versions_of_a_response_are_those_of_its_tokens():
    updates = [WeightUpdate(AfterTokens(0, tokens), pause_s=0.1) for tokens in (3, 6)]
    (turn,) = ended(run(*updates))
    assert (turn.min_version, turn.max_version) == (0, 2)


def test_versions_skip_answers_without_tokens():
    settings = ServerSettings(submission_gate=False)
    (turn,) = ended(run(WeightUpdate(AfterSent(0, 1), pause_s=0.0), server=settings))
    assert (turn.min_version, turn.max_version) == (1, 1)


# The balancer


def balancer(count=3, **settings):
    return LeastLoadedBalancer({f"s{index}": f"handle {index}" for index in range(count)}, **settings)


def test_acquire_takes_the_least_loaded():
    lb = balancer(tie_break="first")
    assert [lb.acquire_server(session)[0] for session in "abcd"] == ["s0", "s1", "s2", "s0"]
    lb.release_server("s1", "b")
    assert lb.acquire_server("e") == ("s1", "handle 1")
    assert lb.get_status() == {"servers": {"s0": 2, "s1": 1, "s2": 1}, "total_inflight": 4, "active_servers": 3}


def test_the_balancer_forgets_the_longest_unused_session_unless_it_has_a_request_in_flight(monkeypatch):
    monkeypatch.setattr(routing, "MOST_STICKY_SESSIONS", 2)
    lb = balancer(2, tie_break="first")
    lb.acquire_server("a")
    for session in "bcd":
        server, _ = lb.acquire_server(session)
        lb.release_server(server, session)
    assert lb.acquire_server("a")[0] == "s0", "in flight all the time"
    assert lb.clear_sticky_cache()["cleared_entries"] == 2


def test_a_session_sticks_until_its_replica_goes_or_the_cache_is_cleared():
    lb = balancer(2, tie_break="first")
    assert [lb.acquire_server("a")[0] for _ in range(3)] == ["s0"] * 3
    assert lb.clear_sticky_cache() == {"cleared_entries": 1, "server_loads": {"s0": 3, "s1": 0}}
    assert lb.acquire_server("a")[0] == "s1"
    lb.remove_servers(["s1"])
    assert lb.acquire_server("a")[0] == "s0"


def test_without_stickiness_every_request_chooses():
    lb = balancer(2, tie_break="first", sticky=False)
    assert [lb.acquire_server("a")[0] for _ in range(4)] == ["s0", "s1", "s0", "s1"]


def test_a_late_release_counts_for_the_replica_as_it_was_before_it_left():
    lb = balancer(1)
    lb.acquire_server("a")
    lb.remove_servers(["s0"])
    lb.add_servers({"s0": "handle 0"})
    lb.acquire_server("b")
    lb.release_server("s0", "a")
    assert lb.get_status()["servers"] == {"s0": 1}
    lb.release_server("s0", "b")
    assert lb.get_total_inflight() == 0


def test_a_release_too_many_changes_nothing():
    lb = balancer(1)
    lb.release_server("s0", "a")
    lb.release_server("nobody", "a")
    assert lb.get_total_inflight() == 0


def test_adding_a_replica_that_is_there_keeps_its_count():
    lb = balancer(2)
    for session in "abcd":
        lb.acquire_server(session)
    lb.add_servers({"s0": "handle 0"})
    assert lb.get_status()["servers"] == {"s0": 2, "s1": 2}


def test_no_replica_is_an_error():
    lb = balancer(1)
    lb.remove_servers(["s0"])
    with pytest.raises(RuntimeError, match="No available servers"):
        lb.acquire_server("a")


def test_random_ties_reach_every_replica():
    lb = balancer(4)
    chosen = set()
    for number in range(200):
        name, _ = lb.acquire_server(str(number))
        lb.release_server(name, str(number))
        chosen.add(name)
    assert chosen == {"s0", "s1", "s2", "s3"}


# The agent loop


def test_a_turn_gets_a_budget_of_its_own_and_the_slice_bounds_the_trajectory():
    trace = run(session=Session(4, (Turn(8, 1), Turn())))
    assert limits(trace) == [{"max_tokens": 10}, {"max_tokens": 10}]
    (session,) = [record.ended for record in trace.ledger.sessions.values()]
    assert (session.response_tokens, session.kept_tokens) == (19, 10)
