"""What is sent and returned, judged: on clients written here, each wrong or right in its own way, and on kept cases."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from docs.examples.client import Client, Response
from sim import corpus
from sim.case import Budget, Case, ServerSettings, Session, Turn
from sim.faults import (
    AbortAll,
    AbortRequest,
    AfterTokens,
    AtTime,
    CancelClient,
    DelayAnswer,
    DelayReleases,
    Every,
    WeightUpdate,
)
from sim.invariants.judging import Judge, judge
from sim.sut.planted import PLANTED
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.world import World, run_world

KEPT = Path(__file__).parents[1] / "data" / "content"
BUDGET = Budget(prompt_length=8, response_length=10, max_model_len=64)
ABORTED = Case(BUDGET, (Session(2),), (AbortAll(AfterTokens(0, 4), 0),))
UPDATED = Case(BUDGET, (Session(2),), (WeightUpdate(AfterTokens(0, 4)), WeightUpdate(AfterTokens(0, 7))))
NATURAL = Case(BUDGET, (Session(2, (Turn(3),)),))
DROPPED = replace(ABORTED, partial_rollout=False)
CANCELLED = Case(BUDGET, (Session(2),), (CancelClient(AfterTokens(0, 3), 0),))


def kept(name):
    return corpus.read(KEPT / f"{name}.json").case


def named(sut):
    """A SUT by its name, or of a class of client."""
    return (
        load_sut(sut) if isinstance(sut, str) else sut_of("own", lambda context: sut(context.config, context.balancer))
    )


def found(case, sut):
    return {violation.invariant: violation.message for violation in judge(case, run_world(case, named(sut)))}


@pytest.mark.parametrize(
    ("bug", "number", "case", "message"),
    [
        (
            "forgets-what-it-has",
            "L3",
            ABORTED,
            "session 0 turn 0 attempt 1 sent the prompt 0..1 (2 tokens); the turn's prompt and what was delivered by "
            "then are 0..5 (6 tokens)",
        ),
        (
            "repeats-token",
            "L1",
            ABORTED,
            "session 0 turn 0 returned the tokens 2..5, 5..5, 7..11 (10 tokens); behind a prompt of 2 tokens each "
            "position from 2 on is due, once",
        ),
        (
            "pads-log-probs",
            "L1",
            ABORTED,
            "session 0 turn 0 returned 0.0 as the log probability of positions 6..11",
        ),
        (
            "turns-log-probs-round",
            "L1",
            UPDATED,
            "session 0 turn 0 returned for position 2 the log probability of position 9 under weight version 2; the "
            "token was decoded under weight version 0",
        ),
        (
            "names-newest-version",
            "S1",
            UPDATED,
            "session 0 turn 0 returned 10 tokens and names 2 as the oldest weight version, and it is 0",
        ),
        (
            "says-length",
            "A10",
            NATURAL,
            "session 0 turn 0 returned 3 tokens with stop reason 'length'; what the server ended it with is stop",
        ),
        (
            "hides-abort",
            "A10",
            DROPPED,
            "session 0 turn 0 returned 4 tokens with stop reason 'completed'; what the server ended it with is abort",
        ),
    ],
)
def test_each_catches_its_planted_bugs_and_passes_the_known_good(bug, number, case, message):
    assert PLANTED[bug].invariant == number
    assert found(case, f"reference:{bug}")[number] == message
    assert found(case, CLEAN) == {}
    assert found(case, Client) == {}


class Forgetting(Client):
    """Resumes with the prompt alone."""

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        parts = Response()
        while True:
            output = await self.attempt(request_id, prompt_ids, self.params(sampling_params, 8, parts), **kwargs)
            parts.add(output)
            if output.stop_reason != "aborted":
                return parts


def test_a_resume_that_forgets_what_it_has():
    assert set(found(kept("probe-forgets"), Forgetting)) == {"L1", "L3"}


class Spoilt(Client):
    """Spoils the log probabilities of a whole response."""

    async def generate(self, request_id, **kwargs):
        response = await super().generate(request_id, **kwargs)
        response.log_probs = self.spoilt(response.log_probs)
        return response


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        (lambda values: values[:4] + values, "returned 10 tokens and 14 log probabilities"),
        (lambda values: [], "returned 10 tokens and 0 log probabilities"),
        (lambda values: values[1:], "returned 10 tokens and 9 log probabilities"),
        (lambda values: [*values[1:], values[0]], "returned for position 2 the log probability of position 3 under"),
        (lambda values: [None, *values[1:]], "returned None as the log probability of position 2"),
        (
            lambda values: [values[0] - 1 / 1024, *values[1:]],
            "position 2 under weight version 1; the token was decoded",
        ),
    ],
)
def test_log_probs_that_are_not_those_of_the_tokens(spoilt, message):
    class Own(Spoilt):
        def spoilt(self, values):
            return spoilt(values)

    assert message in found(ABORTED, Own)["L1"]


class Marking(PinnedClient):
    """Has no log probabilities for resumes, and says so with a mark."""

    takes_runs = False
    mark = None

    async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
        resumes = len(prompt_ids) > 2
        params = {**sampling_params, "logprobs": not resumes}
        output = await super().attempt(request_id, prompt_ids, params, **kwargs)
        if resumes:
            assert output.log_probs is None
            output.log_probs = [self.mark] * len(output.token_ids)
        return output


@pytest.mark.parametrize("mark", [None, float("nan")])
def test_log_probs_that_no_server_gave_may_be_marked(mark):
    assert found(ABORTED, type("Own", (Marking,), {"mark": mark})) == {}
    assert (
        "0.0 as the log probability of positions 6..11" in found(ABORTED, type("Own", (Marking,), {"mark": 0.0}))["L1"]
    )


class Unlogged(PinnedClient):
    """Asks for no log probabilities, and returns none: as an empty list, as verl's does, or as None."""

    none = None

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        params = {key: value for key, value in sampling_params.items() if key != "logprobs"}
        final = await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=params, **kwargs)
        final.log_probs = self.none
        return final


@pytest.mark.parametrize("none", [None, []])
def test_no_log_probs_at_all_are_no_offence_where_none_were_given(none):
    assert found(ABORTED, type("Own", (Unlogged,), {"none": none})) == {}


class Numbered(Client):
    """Sends ids that are no integers, or nothing, on a resume."""

    spoil = staticmethod(list)

    async def attempt(self, request_id, prompt_ids, params, **kwargs):
        if len(prompt_ids) > 2:
            prompt_ids = self.spoil(prompt_ids)
        return await super().attempt(request_id, prompt_ids, params, **kwargs)


@pytest.mark.parametrize(
    ("spoil", "sent"),
    [
        (lambda ids: [str(each) for each in ids], "a prompt of 6 ids that are no integers"),
        (lambda ids: [], "an empty prompt"),
    ],
)
def test_a_clients_own_bad_prompts_are_told(spoil, sent):
    assert f"attempt 1 sent {sent};" in found(ABORTED, type("Own", (Numbered,), {"spoil": staticmethod(spoil)}))["L3"]


def test_tags_are_judged_where_they_are_named():
    class Untagged(Client):
        async def generate(self, request_id, **kwargs):
            response = await super().generate(request_id, **kwargs)
            response.extra_fields.clear()
            return response

    assert found(UPDATED, Untagged) == {}


def test_what_a_client_cannot_know_of_an_update_without_an_abort_is_not_asked_of_it():
    frozen = Case(BUDGET, (Session(2),), (WeightUpdate(AfterTokens(0, 4), pause_mode="keep"),))
    assert "S1" not in found(frozen, CLEAN)


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "trtllm", "plain-vllm", "plain-sglang"])
@pytest.mark.parametrize("case", [ABORTED, NATURAL, DROPPED, UPDATED, Case(BUDGET, (Session(2, (Turn(10),)),))])
def test_stop_reasons_are_what_each_dialect_calls_them(dialect, case):
    assert "A10" not in found(replace(case, server=ServerSettings(dialect=dialect)), CLEAN)


# Nothing left

FULL = kept("single-full-prompt")


class Unchecking(Client):
    """Asks for what is left of the context, be that what it may."""

    def is_room(self, prompt_ids, response, budget):
        return budget is None or len(response.token_ids) < budget


@pytest.mark.parametrize("name", ["single-full-prompt", "second-prompt-fills-context"])
def test_a_request_for_nothing_that_is_refused_is_one_for_nothing(name):
    assert "fills the context of 8, and the request is sent, and refused" in found(kept(name), Unchecking)["B6"]
    assert found(kept(name), Client) == {}


# What is lost to a cancel


class Telling(Client):
    """Tells the server of a call that was cancelled."""

    async def attempt(self, request_id, prompt_ids, params, **kwargs):
        server_id, server = await self.acquire(request_id)
        own_id = f"{request_id}-{next(self.numbers)}"
        try:
            return await server.generate.remote(
                request_id=own_id, prompt_ids=prompt_ids, sampling_params=params, **kwargs
            )
        except asyncio.CancelledError:
            server.abort_request.remote(own_id)
            raise
        finally:
            self.release(server_id)


def warned(case, sut):
    world = World(case, sut)
    world.run()
    one = Judge(case)
    one.take(world.trace, world.trace.events)
    assert one.findings.violations == []
    return [(warning.invariant, warning.message) for warning in one.findings.warnings]


def test_what_a_server_decodes_for_nobody_is_warned_of():
    lost = "request 0 (session 0) decoded 7 tokens after its caller had been cancelled; 2 were scheduled, or on the way"
    ((number, message),) = warned(CANCELLED, load_sut(CLEAN))
    assert (number, message.startswith(lost)) == ("W1", True)
    telling = sut_of("telling", lambda context: Telling(context.config, context.balancer))
    assert warned(CANCELLED, telling) == []


def test_a_warning_is_a_violation_where_it_is_asked_for_by_its_number():
    trace = run_world(CANCELLED, load_sut("reference:leaves-request"))
    assert [each.severity for each in judge(CANCELLED, trace, ["W1"])] == ["warning"]
    assert judge(CANCELLED, trace) == []


LATE = Case(Budget(4, 10), (Session(2),), (DelayAnswer(AtTime(0.0), 0, 90.0),))


def test_two_requests_of_a_turn_at_work_are_told():
    assert found(LATE, "reference:asks-twice")["W2"] == (
        "session 0 turn 0 attempt 1 (replica 0) decoded 10 tokens beside attempt 0 (replica 0, 10 tokens), which had "
        "not been answered"
    )
    assert found(LATE, CLEAN) == {}


@pytest.mark.parametrize("policy", [{"hedged": "yes"}, {"sticky": "fail-over"}])
def test_they_are_not_where_they_are_meant(policy):
    sut = load_sut("reference:asks-twice", policy)
    assert "W2" not in {each.invariant for each in judge(LATE, run_world(LATE, sut))}


# Parking, and worlds that take long


def test_a_request_that_waits_at_a_replica_that_is_away_is_told_with_what_it_waits_for():
    assert found(kept("park-300s"), CLEAN) == {
        "V1": "request 1 (session 1) was parked at replica 0 for 300.15 s, of which it was out of the balancer for "
        "300.05 s; it waited for abort_all (faults[1], pause_s 300)"
    }


def test_a_pause_that_the_case_asks_for_is_waited_for():
    assert found(Case(BUDGET, (Session(2, arrival_s=1.0),), (AbortAll(AtTime(0.0), 0, pause_s=300.0),)), CLEAN) == {}


class Beating(Client):
    """Has a task of its own that never ends."""

    beats = None

    async def generate(self, request_id, **kwargs):
        if self.beats is None:
            self.beats = asyncio.ensure_future(self.beat())
        return await super().generate(request_id, **kwargs)

    async def beat(self):
        while True:
            await asyncio.sleep(0.5)


class Greedy(PinnedClient):
    """Asks for all of the context where its caller sets no limit."""

    def response_tokens(self, sampling_params):
        return None

    async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
        room = self.config.actor_rollout_ref.rollout.max_model_len - len(prompt_ids)
        return await super().attempt(request_id, prompt_ids, {**sampling_params, "max_tokens": room}, **kwargs)


@pytest.mark.parametrize("sut", [Beating, Client])
@pytest.mark.parametrize(
    "case",
    [
        ABORTED,
        Case(BUDGET, (Session(2, arrival_s=1e7),)),
        Case(BUDGET, (Session(2),), (DelayReleases(Every(0.03), 5.0),)),
        Case(BUDGET, (Session(2),), (AbortRequest(Every(0.5), 0),), server=ServerSettings(token_time_s=0.0), repeat=30),
    ],
)
def test_nobody_is_accused_of_not_ending_who_ends(case, sut):
    if sut is Beating and case.sessions[0].arrival_s:
        pytest.skip("some 40 million beats")
    assert "V1" not in found(case, sut)


def test_who_asks_for_all_of_the_context_may_take_it():
    case = Case(Budget(4, 4, 4096), (Session(2),), server=ServerSettings(token_time_s=1.0, engine=None))
    assert set(found(case, Greedy)) == {"B1"}


class Redispatching(Client):
    """Gives a server up that is slow, and asks for the same once more, for ever."""

    async def attempt(self, request_id, prompt_ids, params, **kwargs):
        while True:
            server_id, server = await self.acquire(request_id)
            call = server.generate.remote(
                request_id=f"{request_id}-{next(self.numbers)}", prompt_ids=prompt_ids, sampling_params=params, **kwargs
            )
            try:
                return await asyncio.wait_for(asyncio.shield(call), 300.0)
            except TimeoutError:
                continue
            finally:
                self.release(server_id)


def test_an_endless_retry_ends_at_the_horizon_and_is_told_with_its_open_sessions():
    verdicts = found(kept("long-prefill"), Redispatching)
    assert {"B1", "V1"} <= set(verdicts)
    assert "with 2 sessions open (0, 1)" in verdicts["V1"]
