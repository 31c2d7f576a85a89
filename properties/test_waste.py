"""Waste: what is decoded although nobody will get it. Of W1 is only warned, and no search looks for it unasked."""

KIND = "waste"


def test_nothing_but_known_violations_is_found(gate):
    gate()


def test_a_planted_bug_is_caught_and_shrinks_to_a_case_that_a_person_can_read(catch, planted_name):
    catch(planted_name)
