"""The client in docs/examples is clean, and does what its users would hold it to."""

import asyncio
import importlib
import re
import sys
from pathlib import Path

import pytest

from sim import corpus
from sim.case import Budget, Case, ClientView, Limit, Session
from sim.events import Logged
from sim.invariants.judging import judge
from sim.invariants.kinds import KINDS
from sim.search import campaign as campaign_module
from sim.search.classics import classic_cases
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import load_sut, sut_of
from sim.sut.verl.servers import TokenOutput
from sim.testing import search
from sim.world import run_world

ROOT = Path(__file__).parent.parent
NAME = "docs.examples.client:build"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    return load_sut(NAME)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hunt_finds_nothing(example, kind):
    assert search(example, kind, worlds=160).finds == []


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_it_is_clean_in_the_classics(example, dialect):
    for case in classic_cases(KINDS, dialect=dialect):
        assert judge(case, run_world(case, example)) == []


def test_it_passes_the_gate_of_the_corpus(example):
    for path in sorted((ROOT / "properties" / "corpus").glob("*.json")):
        assert corpus.replay(path, corpus.read(path), example).news == [], path.name


@pytest.mark.parametrize(
    ("budget", "limit", "decoded"),
    [
        (Budget(4, 10), None, [10]),
        (Budget(4, 10), Limit("max_tokens", 3), [3]),
        (Budget(4, 10), Limit("max_new_tokens", 25), [25]),
        (Budget(4, 10), Limit("both", 0), []),
        (Budget(4, 10, client_view=ClientView("9")), None, [10]),
    ],
)
def test_whose_limit_holds(example, budget, limit, decoded):
    trace = run_world(Case(budget, (Session(2, limit=limit),)), example)
    assert [attempt.decoded_tokens for attempt in trace.ledger.attempts] == decoded
    warned = [event.text for event in trace.events if isinstance(event, Logged)]
    assert len(warned) == (budget.client_view is not None)
    assert all("response_length" in text for text in warned)


def test_the_client_in_the_readme_breaks_what_the_readme_says(monkeypatch):
    text = (ROOT / "README.md").read_text()
    told = re.search(r"a hunt reports (B1) \(.*?\), (B2), (B6), (B8) and (R7)\.", " ".join(text.split()))
    namespace = {}
    exec(re.search(r"```python\n(# mine\.py.*?)```", text, re.DOTALL)[1], namespace)
    monkeypatch.setattr(campaign_module, "MOST_SHRINK_WORLDS", 0)
    mine = sut_of("mine", namespace["build"])
    finds = [find for kind in KINDS for find in search(mine, kind, worlds=60).finds]
    assert tuple(find.invariant for find in finds) == told.groups()


def test_it_needs_nothing_of_rollcage(example):
    source = Path(importlib.import_module("docs.examples.client").__file__).read_text()
    assert "import sim" not in source
    assert "from sim" not in source
    assert asyncio.iscoroutinefunction(importlib.import_module("docs.examples.client").Client.generate)


@pytest.mark.parametrize(
    ("versions", "named"), [((None, None), {}), ((1, 0), {"min": 0, "max": 1}), ((0, 1), {"min": 0, "max": 1})]
)
def test_it_names_the_oldest_and_the_newest_version_whichever_came_first(example, versions, named):
    """A server that has not been told a version names none; the reference does the same."""
    answers = [
        TokenOutput([number], None, "aborted", extra_fields={"global_steps": version})
        for number, version in enumerate(versions)
    ]
    response = importlib.import_module("docs.examples.client").Response()
    final, reference = TokenOutput([], [], "length"), PinnedClient(None, None)
    for answer in answers:
        response.add(answer)
        reference.merge(final, answer)
    expected = {f"{end}_global_steps": version for end, version in named.items()}
    assert response.extra_fields == expected
    assert final.extra_fields == {**expected, "global_steps": versions[-1]}
