"""A request that no server could take is its client's doing: no server failed it, and A9 says so."""

import pytest

from sim.case import Budget, Case, Limit, Session
from sim.faults import AbortAll, AfterTokens
from sim.invariants.judging import judge
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.sut.verl.servers import TokenOutput
from sim.world import run_world

BUDGET = Budget(prompt_length=4, response_length=10, max_model_len=32)
CASE = Case(BUDGET, (Session(4),), (AbortAll(AfterTokens(0, 4), 0),))


def client(prompt=lambda ids, _: ids, limit=lambda tokens: tokens):
    class Odd(PinnedClient):
        async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
            params = sampling_params | {"max_tokens": limit(sampling_params["max_tokens"])}
            return await super().attempt(request_id, prompt(list(prompt_ids), 4), params, **kwargs)

    return sut_of("odd", lambda context: Odd(context.config, context.balancer))


@pytest.mark.parametrize(
    ("sut", "what"),
    [
        (client(limit=float), "max_tokens must be an integer, not 10.0"),
        (client(limit=lambda tokens: float(tokens) if tokens < 10 else tokens), "must be an integer, not 6.0"),
        (client(limit=str), "max_tokens must be an integer, not '10'"),
        (client(limit=lambda _: None), "max_tokens must be an integer, not None"),
        (client(prompt=lambda ids, _: [str(each) for each in ids]), "no sequence of token ids"),
        (client(prompt=lambda ids, _: [*ids[:-1], 1.5]), "no sequence of token ids"),
        (client(prompt=lambda ids, _: dict.fromkeys(ids)), "no sequence of token ids"),
        (client(prompt=lambda ids, first: ids if len(ids) == first else []), "the prompt is empty"),
    ],
    ids=["float", "float on a resume", "text", "none", "texts", "a float among them", "a dict", "empty on a resume"],
)
def test_a_call_that_fails_over_its_own_request_breaks_a9(sut, what):
    (found,) = judge(CASE, run_world(CASE, sut), ["A9"])
    assert "sent what is no request" in found.message
    assert what in found.message


def test_a_client_that_swallows_it_has_cut_its_response():
    class Swallowing(PinnedClient):
        async def attempt(self, request_id, prompt_ids, sampling_params, **kwargs):
            try:
                return await super().attempt(request_id, [], sampling_params, **kwargs)
            except ValueError:
                return self.empty

        async def generate(self, request_id, **kwargs):
            self.empty = TokenOutput([], [], "completed")
            return await super().generate(request_id, **kwargs)

    sut = sut_of("swallowing", lambda context: Swallowing(context.config, context.balancer))
    assert "B2" in {violation.invariant for violation in judge(CASE, run_world(CASE, sut))}


@pytest.mark.parametrize(
    "case",
    [
        Case(BUDGET, (Session(32),)),
        Case(BUDGET, (Session(4, limit=Limit("both", 3)),)),
    ],
    ids=["no room", "a spelling that is left over"],
)
def test_a_request_that_one_server_refuses_is_excused_as_before(case):
    class Forwarding(PinnedClient):
        def nothing_left(self, *_):
            return False

        async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
            return await self.attempt(request_id, prompt_ids, dict(sampling_params), **kwargs)

    sut = sut_of("forwarding", lambda context: Forwarding(context.config, context.balancer))
    trace = run_world(case, sut)
    assert [end.outcome for attempt in trace.ledger.attempts for end in attempt.ended] == ["error"]
    assert judge(case, trace, ["A9"]) == []


def test_the_known_good_client_sends_requests():
    assert judge(CASE, run_world(CASE, load_sut(CLEAN))) == []
