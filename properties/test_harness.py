"""The harness: the same case gives the same digest."""

KIND = "harness"


def test_nothing_but_known_violations_is_found(gate):
    gate()


def test_a_planted_bug_is_caught(catch, planted_name):
    assert catch(planted_name).case is not None
