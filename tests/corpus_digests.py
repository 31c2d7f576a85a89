"""What each kept case of an earlier format shows on the built-in SUTs that it has a verdict for: digest and verdicts.

    python -m tests.corpus_digests

writes them down for the folder of today's format. Digests of earlier formats change only with the trace itself, which
the CHANGELOG then says; a case's verdicts never do.
"""

import json
from pathlib import Path

from sim import corpus
from sim.invariants.judging import judge
from sim.migrations import FORMAT
from sim.sut.registry import builtin_names, load_sut
from sim.verdicts import judged

DATA = Path(__file__).parent / "data"


LATER = {"B5", "B7", "L1", "L3", "A3", "A4", "A8", "A10", "S1", "W1"}
"""Invariants that there were not when the cases were kept."""


def folder(number):
    """The kept cases as a version of that format wrote them, which nobody changes."""
    return DATA / f"corpus-format-{number}"


def digests_file(number):
    return DATA / f"corpus-format-{number}-digests.json"


def shown(path):
    """By SUT: the digest of the run of a case, and the invariants that it breaks; no digest where that is not the same
    each time (D1)."""
    entry = corpus.read(path)
    found = {}
    for name in builtin_names():
        if name in entry.expected:
            # A case said by itself what a budget is then; today a client's own word comes first.
            run = judged(entry.case, load_sut(name, {"budget": entry.case.budget.policy}))
            alone = judge(entry.case, run.trace, ("R1",))  # which is told with R3 today
            violated = sorted({violation.invariant for violation in [*run.violations, *alone]} - LATER)
            found[name] = {"digest": None if "D1" in violated else run.trace.digest(), "violated": violated}
    return found


def main():
    cases = {path.name: shown(path) for path in corpus.files([folder(FORMAT)])}
    digests_file(FORMAT).write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
