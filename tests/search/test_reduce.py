"""Whole parts are taken out of a world together with all that names them."""

from sim.case import AbortRequest, AfterTokens, AtTime, Budget, CancelClient, Case, Limit, Session, Turn, WeightUpdate
from sim.search.reduce import reduce_world, smaller

BUDGET = Budget(4, 8)


def test_a_session_goes_with_the_faults_that_name_it_and_the_others_are_renumbered():
    case = Case(
        BUDGET,
        (Session(1), Session(2), Session(3, shares_params_with=0), Session(4, shares_params_with=1)),
        (
            WeightUpdate(AfterTokens(1, 2)),
            AbortRequest(AfterTokens(3, 5), 2),
            CancelClient(AtTime(1.0), 3),
        ),
    )
    without_second = next(each for each in smaller(case) if [s.prompt_tokens for s in each.sessions] == [1, 3, 4])
    assert [s.shares_params_with for s in without_second.sessions] == [None, 0, None]
    assert without_second.faults == (AbortRequest(AfterTokens(2, 5), 1), CancelClient(AtTime(1.0), 2))


def test_what_a_failure_does_not_need_is_taken_away():
    needed = Session(3)
    case = Case(
        BUDGET,
        (Session(1, limit=Limit("max_tokens", 0)), Session(2, (Turn(3, 1), Turn(2))), needed),
        (AbortRequest(AfterTokens(0, 1), 1), WeightUpdate(AfterTokens(2, 5))),
        replicas=3,
        partial_rollout=False,
        seed=7,
    )

    def fails(candidate: Case) -> bool:
        return any(
            isinstance(fault, WeightUpdate) and candidate.sessions[fault.at.session] == needed
            for fault in candidate.faults
        )

    assert reduce_world(case, fails) == Case(BUDGET, (needed,), (WeightUpdate(AfterTokens(0, 5)),))


def test_nothing_is_taken_from_a_world_that_needs_all_of_it():
    case = Case(BUDGET, (Session(1),))
    assert reduce_world(case, lambda _: True) == case


def test_only_possible_cases_are_tried():
    case = Case(BUDGET, (Session(1), Session(1)), (WeightUpdate(AfterTokens(1, 1), 1.0, (1,)),), replicas=2)
    assert all(max(fault.leaving, default=0) < each.replicas for each in smaller(case) for fault in each.faults)
