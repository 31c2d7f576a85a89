"""Every kept case gives the verdict that it expects of a SUT."""

import pytest

from sim import corpus
from sim.sut.registry import builtin_names, load_sut


def test_a_kept_case_gives_the_verdicts_it_expects(corpus_file, named_suts):
    entry = corpus.read(corpus_file)
    suts = named_suts or [load_sut(name) for name in builtin_names() if name in entry.expected]
    replays = [corpus.replay(corpus_file, entry, sut) for sut in suts]
    for replay in replays:
        assert replay.ok is not False, f"{replay.sut}: expected {replay.expected}, observed {replay.messages}"
    if not any(replay.ok for replay in replays):
        pytest.skip(f"{corpus_file.name} expects nothing of {', '.join(sut.key for sut in suts)}")
