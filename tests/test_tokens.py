"""Tokens in runs: they are to a client what lists would be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.case import Budget, Case, Session, Turn
from sim.faults import AbortAll, AfterTokens
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.tokens import LogProbs, TokenIds, ids_as_runs, plain_ids
from sim.world import run_world

ids = st.lists(st.integers(0, 6), max_size=12)
log_prob_runs = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5), st.integers(0, 3)), max_size=4).map(tuple)


@given(ids, ids, st.slices(12), st.integers(-13, 13))
def test_token_ids_are_to_a_client_what_a_list_is(one, other, part, index):
    runs = TokenIds(ids_as_runs(one))
    assert runs == one
    assert list(runs) == one
    assert len(runs) == len(one)
    assert list(runs[part]) == one[part]
    assert runs + other == one + other
    assert runs + TokenIds(ids_as_runs(other)) == one + other
    assert other + runs == other + one
    assert (runs != other) == (one != other)
    if -len(one) <= index < len(one):
        assert runs[index] == one[index]
    else:
        with pytest.raises(IndexError):
            runs[index]


@given(log_prob_runs, log_prob_runs, st.slices(20))
def test_so_are_log_probs(one, other, part):
    plain = [-position - version / 1024 - 1 / 2048 for first, n, version in one for position in range(first, first + n)]
    probs = LogProbs(one)
    assert list(probs) == plain
    assert list(probs[part]) == plain[part]
    assert list(probs + LogProbs(other)) == plain + list(LogProbs(other))
    assert [] + probs == plain  # noqa: RUF005 - the joining is what is tested
    assert probs + [] == plain  # noqa: RUF005
    assert [probs[index] for index in range(-len(plain), len(plain))] == plain * 2
    assert list(reversed(probs)) == plain[::-1]
    assert sum(probs) == sum(plain)


answers = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from(["+=", "or", "right"])), max_size=6)


@given(answers)
def test_answers_in_runs_gather_as_lists_do(parts):
    """As clients gather them: in a list that was empty, where an answer may have no tokens."""
    gathered, plain, position = [], [], 0
    for tokens, version, how in parts:
        answer = LogProbs(((position, tokens, version),) if tokens else ())
        position += tokens
        plain += list(answer)
        if how == "+=":
            gathered += answer
        elif how == "or":
            gathered += answer or []
        else:
            gathered = gathered + [] + answer  # noqa: RUF005
    assert list(gathered) == plain


def test_one_token_costs_no_more_in_a_long_run():
    probs = LogProbs(((0, 10**12, 3),))
    assert probs[10**12 - 1] == -(10**12 - 1) - 3 / 1024 - 1 / 2048


def test_log_probs_of_one_position_tell_weight_versions_apart():
    assert LogProbs(((4, 1, 0),))[0] != LogProbs(((4, 1, 1),))[0]


def test_joining_keeps_few_runs():
    whole = TokenIds.counting_from(10, 1000)
    assert (whole[:300] + whole[300:]).runs == ((10, 1000),)
    assert (whole[:300] + whole[301:]).runs == ((10, 300), (311, 699))
    assert plain_ids(whole[:300] + whole[300:]) == range(10, 1010)


def test_log_probs_join_with_nothing_foreign():
    with pytest.raises(TypeError, match="joined with such alone"):
        LogProbs(((0, 1, 0),)) + [-1.0]  # noqa: RUF005


class TakesLists(PinnedClient):
    takes_runs = False


def test_a_client_that_takes_lists_gets_lists_and_the_same_happens():
    seen = []

    class Spy(TakesLists):
        def merge(self, final, output):
            seen.extend([type(output.token_ids), type(output.log_probs)])
            super().merge(final, output)

    sut = sut_of("lists", lambda context: Spy(context.config, context.balancer))
    case = Case(
        budget=Budget(8, 16),
        sessions=(Session(4, (Turn(7, tool_tokens=2), Turn(5))),),
        faults=(AbortAll(AfterTokens(0, 3), replica=0),),
    )
    assert run_world(case, sut).events == run_world(case, load_sut(CLEAN)).events
    assert set(seen) == {list}


@pytest.mark.parametrize(
    ("ids", "runs"),
    [
        ([], ()),
        ([7], ((7, 1),)),
        ([7, 8, 9], ((7, 3),)),
        ([7, 7, 7], ((7, 1), (7, 1), (7, 1))),
        ([9, 8, 7], ((9, 1), (8, 1), (7, 1))),
        ([1, 2, 5, 6, 7], ((1, 2), (5, 3))),
        ([1, 3, 2, 4], ((1, 1), (3, 1), (2, 1), (4, 1))),  # first and last fit, the middle does not
        ([5, 6, 7, 3, 4, 5], ((5, 3), (3, 3))),
    ],
)
def test_ids_as_runs(ids, runs):
    assert ids_as_runs(ids) == runs
    assert [first + k for first, count in ids_as_runs(ids) for k in range(count)] == ids
