"""Budgets: how many tokens a response may use."""

KIND = "budget"


def test_nothing_but_known_violations_is_found(gate):
    gate()


def test_a_planted_bug_is_caught_and_shrinks_to_a_case_that_a_person_can_read(catch, planted_name):
    catch(planted_name)


def test_the_overrun_shrinks_to_one_abort_of_one_session(catch):
    find = catch("deferred")
    case = find.case
    assert (len(case.sessions), len(case.faults), case.replicas) == (1, 1, 1)
    assert max(case.budget.prompt_length, case.budget.response_length, case.sessions[0].prompt_tokens) < 20
    assert not find.is_race
