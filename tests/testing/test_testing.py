"""The pytest plugin: `--sut`, `--worlds`, `--kind`, what turns a run red, and what it imports."""

from importlib.metadata import entry_points
from pathlib import Path

import numpy  # noqa: F401  # loads once a process, and pytester forgets what its runs import first
import pytest

from sim import corpus
from sim.case import Budget, Case, Limit, Session
from sim.expected import Shown
from sim.search.campaign import Campaign
from sim.search.find import Find
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.testing import assert_nothing_found, known_violations, search
from sim.testing.waiver_file import WaiverError, read_waivers

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
NO_FAILURE = "beyond what the framework's own callers do, or only warned of: no failure"
FEW = ("overrun-64-256-16", "added-while-live", "ties-in-a-row", "tool-turn-trajectory")


@pytest.fixture
def properties(pytester, monkeypatch):
    """A copy of properties/ with a few cases, beside a module with a known-bad and a clean factory.

    It has a name of its own, or pytest takes the conftest that this process has imported already for the copy's.
    """
    for path in (ROOT / "properties").glob("*.py"):
        if path.stem in ("conftest", "test_corpus", "test_budget", "test_routing"):
            pytester.makefile(".py", **{f"copy/{path.stem}": ""})
            (pytester.path / "copy" / path.name).write_text(path.read_text())
    (pytester.path / "copy" / "corpus").mkdir()
    for name in FEW:
        (pytester.path / "copy" / "corpus" / f"{name}.json").write_text(
            (ROOT / "properties" / "corpus" / f"{name}.json").read_text()
        )
    pytester.makepyfile(
        plugged="from sim.sut.reference.client import DeferredClient, PinnedClient\n"
        "def bad(context):\n    return DeferredClient(context.config, context.balancer)\n"
        "def clean(context):\n    return PinnedClient(context.config, context.balancer)\n"
        "clean.rollcage_policies = {'budget': 'turn'}\n"
        "def plain(context):\n    return clean(context)\n"
        "def broken(context):\n    return None\n"
    )
    pytester.makeini("[pytest]\naddopts = --import-mode=importlib\n")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{pytester.path}")

    # Installed, the plugin loads by itself, and twice would be an error.
    plugin = () if entry_points(group="pytest11", name="rollcage") else ("-p", "sim.testing")

    def run(*arguments, process_of_its_own=False):
        """A process of its own takes a second to start: one is enough to show that nothing here hides."""
        start = pytester.runpytest_subprocess if process_of_its_own else pytester.runpytest_inprocess
        return start(*plugin, "copy", "-rs", "-v", *arguments)

    return run


def test_a_clean_factory_passes_and_nothing_of_its_own_is_skipped(properties):
    """Without a verdict of its own it may violate what the known-good client violates (a trajectory's budget)."""
    result = properties("--sut", "plugged:clean", "--worlds", "20", process_of_its_own=True)
    assert result.ret == 0
    result.assert_outcomes(passed=len(FEW) + 3, skipped=result.parseoutcomes()["skipped"])
    skips = [line for line in result.outlines if line.startswith("SKIPPED")]
    assert all("planted bugs are searched when no --sut is named" in line for line in skips)


def test_a_known_bad_factory_fails_on_the_corpus_first_with_the_world_explained(properties):
    result = properties("--sut", "plugged:bad", "--worlds", "20", "--kind", "budget")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*plugged:bad has no verdict in this case, and violates B1 (beyond*"])
    ran = [line.split("::")[0] for line in result.outlines if "::test_" in line and "%]" in line]
    assert ran.index("copy/test_corpus.py") == 0
    assert ran == sorted(ran, key=lambda path: path != "copy/test_corpus.py")


def test_kind_leaves_the_other_kinds_out_and_says_so(properties):
    result = properties("--sut", "plugged:clean", "--worlds", "20", "--kind", "routing")
    assert result.ret == 0
    assert any("kind budget is not among --kind routing" in line for line in result.outlines)


def test_a_verdict_that_is_taken_away_turns_the_run_red(properties, pytester):
    kept = pytester.path / "copy" / "corpus" / "overrun-64-256-16.json"
    arguments = ("--sut", "reference:deferred", "--worlds", "1", "copy/test_corpus.py")
    entry = corpus.read(kept)
    assert properties(*arguments, "-k", "overrun").ret == 0
    del entry.expected["reference:deferred"]
    corpus.write(kept, entry)
    assert properties(*arguments, "-k", "overrun").ret == 1


@pytest.mark.parametrize(("reach", "code"), [("stock", 0), ("all", 1)])
def test_what_no_caller_of_the_framework_meets_is_listed_and_fails_only_where_all_is_asked_for(properties, reach, code):
    arguments = ("--only", "B8", "--worlds", "60", "copy/test_budget.py", "-k", "nothing")
    result = properties("--sut", "reference:silent-fallback", "--reach", reach, *arguments)
    assert result.ret == code
    shown = result.stdout.str()
    assert "without a word" in shown
    assert (NO_FAILURE in shown) == (reach == "stock")


def test_what_only_warns_is_listed_and_fails_nothing(properties, pytester):
    (pytester.path / "copy" / "test_waste.py").write_text((ROOT / "properties" / "test_waste.py").read_text())
    arguments = ("--only", "W1", "--worlds", "100", "--reach", "all", "copy/test_waste.py", "-k", "nothing")
    result = properties("--sut", "reference:leaves-request", *arguments)
    assert result.ret == 0
    shown = result.stdout.str()
    assert NO_FAILURE in shown
    assert "W1" in shown.split(NO_FAILURE)[1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--sut", "reference:nonsense"), 2, "unknown SUT 'reference:nonsense'"),
        (("--sut", "no_such_module:f"), 2, "cannot be imported"),
        (("--worlds", "0"), 4, "--worlds"),
        (("--kind", "weather"), 4, "--kind"),
        (("--sut", "plugged:broken", "--kind", "routing", "--worlds", "1"), 1, "which has no generate"),
    ],
)
def test_what_cannot_be_used_ends_the_run_with_a_reason(properties, arguments, code, message):
    result = properties(*arguments)
    assert result.ret == code
    assert message in result.stdout.str() + result.stderr.str()


# For other projects' test suites


def test_search_reports_what_the_known_ones_leave(short_shrinks):
    campaign = search(load_sut("reference:deferred"), "budget", worlds=60, seed=1)
    assert campaign.finds
    everything = {find.invariant for find in campaign.finds}
    again = search(load_sut("reference:deferred"), "budget", worlds=60, seed=1, known=everything)
    assert everything <= again.seen
    assert_nothing_found(again)
    with pytest.raises(pytest.fail.Exception, match="violated: "):
        assert_nothing_found(campaign)


def test_a_search_in_which_nothing_happens_says_so():
    class Mute(PinnedClient):
        async def generate(self, request_id, **kwargs):
            raise RuntimeError("no")

    sut = sut_of("mute", lambda context: Mute(context.config, context.balancer))
    with pytest.warns(UserWarning, match="mute: in 5 worlds no token was decoded, and calls failed"):
        search(sut, "budget", worlds=5)


def test_the_gate_is_told_of_worlds_of_any_kind_that_never_end(properties, pytester):
    pytester.makepyfile(
        hanging="import asyncio\nfrom sim.sut.reference.client import PinnedClient\n"
        "class Client(PinnedClient):\n    async def generate(self, *_, **__):\n        await asyncio.Event().wait()\n"
        "def build(context):\n    return Client(context.config, context.balancer)\n"
    )
    gate = ("--sut", "hanging:build", "--worlds", "3", "--kind", "routing", "copy/test_routing.py")
    assert "V1 violated" in properties(*gate).stdout.str()
    assert "V1 violated" not in properties(*gate, "--skip", "V1").stdout.str()


def test_a_fault_of_the_harness_is_raised_with_its_case(monkeypatch):
    from sim.search import campaign

    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(campaign, "judged", broken)
    with pytest.raises(ZeroDivisionError) as caught:
        search(load_sut(CLEAN), "budget", worlds=5)
    assert '"prompt_length"' in caught.value.__notes__[0]


def test_a_find_of_d1_is_explained_by_what_was_seen():
    find = Find("D1", "two runs differ", Case(Budget(4, 10, 64), (Session(4),)))
    with pytest.raises(pytest.fail.Exception, match="two runs differ"):
        assert_nothing_found(Campaign(load_sut(CLEAN), 0, finds=[find]))


LIMIT_0 = Case(Budget(4, 10, 64), (Session(4, limit=Limit("max_tokens", 0)),))


@pytest.mark.parametrize("kept", [Shown("B6"), Shown("B6", "asks for nothing", "violation", "custom callers")])
def test_known_is_what_a_kept_case_expects(tmp_path, kept):
    """Of a number alone what it is about is what the case shows."""
    asking = load_sut("reference:asks-for-nothing")
    corpus.write(tmp_path / "a.json", corpus.Entry(expected={asking.key: [kept], "other": [Shown("R1")]}, case=LIMIT_0))
    corpus.write(tmp_path / "b.json", corpus.Entry(expected={asking.key: []}, case=LIMIT_0))
    known = known_violations(tmp_path, asking)
    assert known == {("B6", "asks for nothing")}
    assert known_violations(tmp_path, load_sut(CLEAN)) == set()


def test_what_is_known_hides_nothing_else_of_its_number():
    asking = load_sut("reference:asks-for-nothing")
    assert search(asking, "budget", worlds=60, numbers=("B6",), known={("B6", "budget used up")}).finds
    assert not search(asking, "budget", worlds=60, numbers=("B6",), known={"B6"}).finds


def test_a_waived_violation_is_known_and_a_waiver_that_is_not_needed_turns_the_run_red(properties, pytester):
    corpus.write(pytester.path / "found.json", corpus.Entry(case=LIMIT_0))
    waiver = '[[waiver]]\ninvariant = "B6"\nsut = "{}"\ncase = "found.json"\nreason = "old"\n'
    arguments = ("--worlds", "5", "--only", "B6", "--waivers", "waivers.toml", "-k", "waiver or found")
    (pytester.path / "waivers.toml").write_text(waiver.format("reference:asks-for-nothing"))
    assert properties("--sut", "reference:asks-for-nothing", *arguments).ret == 0
    (pytester.path / "waivers.toml").write_text(waiver.format("plugged:clean"))
    red = properties("--sut", "plugged:clean", *arguments)
    assert red.ret == 1
    red.stdout.fnmatch_lines(["*its case no longer fails: B6 of plugged:clean*"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[waiver]]\ninvariant = 'B6'\n", "case, invariant, reason, sut are needed"),
        ("[[waiver]]\ninvariant = 'B66'\nsut = 'x'\ncase = 'c'\nreason = 'r'\n", "B66"),
        ("[[waiver]]\ninvariant = 'B6'\nsut = 'x'\ncase = 'c'\nreason = ''\n", "reason is ''"),
        ("[[waiver]]\ninvariant = 'B6'\nsut = 'x'\ncase = 'c'\nreason = 'r'\n", "there is no case"),
        ("[waivers]\n", "[[waiver]] are needed"),
        ("nonsense", "cannot be read"),
    ],
)
def test_waivers_that_cannot_be_used_say_why(tmp_path, text, message):
    (tmp_path / "waivers.toml").write_text(text)
    with pytest.raises(WaiverError) as caught:
        read_waivers(tmp_path / "waivers.toml")
    assert message in str(caught.value)


def test_only_and_skip_and_policy_choose_what_the_gate_judges(properties):
    gate = ("--sut", "plugged:plain", "--worlds", "30", "-k", "found")
    assert properties(*gate).ret == 1  # B7: no cap is declared
    for arguments in (("--skip", "B7"), ("--only", "B1,B6"), ("--policy", "turn")):
        assert properties(*gate, *arguments).ret == 0
    wrong = properties("--sut", "plugged:clean", "--policy", "routing=best")
    assert wrong.ret == 2
    assert "policy routing is 'best' (allowed are least-loaded" in wrong.stdout.str() + wrong.stderr.str()


@pytest.fixture
def short_shrinks(monkeypatch):
    from sim.search import campaign

    monkeypatch.setattr(campaign, "MOST_SHRINK_WORLDS", 160)
