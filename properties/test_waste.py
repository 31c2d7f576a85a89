"""Waste: what is decoded although nobody will get it. It is warned of, and no search by kind looks for it."""

KIND = "waste"


def test_a_planted_bug_is_caught_and_shrinks_to_a_case_that_a_person_can_read(catch, planted_name):
    catch(planted_name)
