"""Staleness: which weights computed what a token rests on."""

KIND = "staleness"


def test_nothing_but_known_violations_is_found(gate):
    gate()


def test_a_planted_bug_is_caught(catch, planted_name):
    assert catch(planted_name).case is not None
