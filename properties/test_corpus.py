"""Every kept case gives the verdict that it expects of a SUT."""

from sim import corpus
from sim.sut.registry import builtin_names, load_sut


def test_each_waiver_is_needed(waivers, named_suts):
    """One whose case no longer shows its violation hides what comes next."""
    suts = {waiver: [sut for sut in named_suts if waiver.is_about(sut)] for waiver in waivers}
    idle = [f"{waiver.invariant} of {sut.key}" for waiver in waivers for sut in suts[waiver] if not waiver.shows(sut)]
    assert not idle, f"waived, and its case no longer fails: {', '.join(idle)}"


def test_a_kept_case_gives_the_verdicts_it_expects(corpus_file, named_suts, of_wanted_kind):
    """A SUT without a verdict may violate no more than the known-good client does: whatever else it does is news."""
    entry = corpus.read(corpus_file)
    of_wanted_kind(entry.invariant)
    for sut in named_suts or [load_sut(name) for name in builtin_names() if name in entry.expected]:
        replay = corpus.replay(corpus_file, entry, sut)
        shown = "\n".join(replay.messages) or "no violation"
        assert replay.ok is not False, "\n".join([f"{replay.sut}:", *replay.differences, shown])
        news = ", ".join(map(str, replay.news))
        assert not replay.news, f"{replay.sut} has no verdict in this case, and violates {news}:\n{shown}"
