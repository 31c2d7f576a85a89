"""The table of invariants: in their order, open for a project's own, and its kinds light to read."""

import subprocess
import sys
from pathlib import Path

import pytest

from sim import corpus
from sim.case import Budget, Case, Session
from sim.expected import Shown
from sim.invariants.interface import Evidence, Invariant
from sim.invariants.judging import judge
from sim.invariants.kinds import KINDS
from sim.invariants.table import INVARIANTS, numbers_of, register_invariant
from sim.invariants.violation import Violation
from sim.schema import CaseError
from sim.sut.registry import CLEAN, load_sut
from sim.verdicts import judged
from sim.world import run_world

ROOT = Path(__file__).parents[2]
CASE = Case(Budget(8, 10, 64), (Session(2), Session(3)))


def check_odd_prompts(evidence: Evidence) -> list[Violation]:
    return [
        Violation("X1", f"the prompt of session {session} has {turn.started.prompt_tokens} tokens", session)
        for session, turn in evidence.ledger.turns()
        if turn.started.prompt_tokens % 2
    ]


TOY = Invariant("X1", "budget", "Prompts are even.", check_odd_prompts)


@pytest.fixture
def registered():
    with INVARIANTS.forgetting():
        register_invariant(TOY)
        yield


def test_all_have_a_number_of_their_own_a_known_kind_and_a_sentence():
    numbers = "B1 B2 B4 B6 B7 B8 B10 B5 L1 L3 A1 A2 A3 A4 A5 A8 A9 A10 R1 R2 R3 R4 R5 R7 S1 S2 V1 W1 W2 D1"
    assert list(INVARIANTS) == numbers.split()
    for number, invariant in INVARIANTS.items():
        assert invariant.number == number
        assert invariant.statement.endswith(".")
    assert {invariant.kind for invariant in INVARIANTS.values()} == set(KINDS)


def test_one_that_a_project_adds_is_judged_with_the_others_and_known_to_the_corpus(registered):
    assert numbers_of(["budget"])[-1] == "X1"
    (found,) = judge(CASE, run_world(CASE, load_sut(CLEAN)))
    assert found == Violation("X1", "the prompt of session 1 has 3 tokens", 1)
    assert judged(CASE, load_sut(CLEAN), ["B1"]).violations == []
    entry = corpus.Entry(invariant="X1", expected={CLEAN: [Shown("X1")]}, case=CASE)
    assert corpus.replay("p", entry, load_sut(CLEAN)).ok


def test_the_corpus_does_not_know_it_before():
    with pytest.raises(CaseError, match="unknown invariant 'X1'"):
        corpus.Entry(invariant="X1", case=CASE)


def test_a_number_stands_for_one_invariant():
    with pytest.raises(ValueError, match="the invariant 'B1' is registered already"):
        register_invariant(Invariant("B1", "budget", "Another.", check_odd_prompts))


def test_a_kind_must_be_known():
    with pytest.raises(ValueError, match="invariant X1: kind is 'colour'; 'budget' or 'alignment' or 'lifecycle'"):
        register_invariant(Invariant("X1", "colour", "Prompts are blue.", check_odd_prompts))
    assert "X1" not in INVARIANTS


def test_the_kinds_are_listed_without_loading_anything_heavy():
    program = "import sys; from sim.invariants.kinds import KINDS; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=ROOT)
    assert not {"msgspec", "numpy", "hypothesis", "sim.case"} & set(done.stdout.decode().split())
