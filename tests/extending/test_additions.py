"""A framework, a dialect, a fault and an invariant, each of one file outside of sim/, from the hunt to the replay.

With each comes a system under test that is wrong, and found, and one that is not.
"""

import dataclasses
import json
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from sim import corpus
from sim.case import Budget, Case, Limit, Session, Transport, loads, to_builtins
from sim.cli.main import main
from sim.events import FaultFired, Message
from sim.expected import numbers_in
from sim.faults import (
    AbortAll,
    AbortRequest,
    AddReplica,
    AfterTokens,
    AtTime,
    CancelClient,
    ClearSticky,
    DelayReleases,
    RemoveReplica,
    WeightUpdate,
)
from sim.invariants.kinds import KINDS
from sim.invariants.table import INVARIANTS, numbers_of
from sim.schema import CaseError
from sim.search.campaign import Bounds, run_campaign
from sim.search.classics import classic_cases
from sim.search.strategies import STRATEGIES
from sim.servers.server import SimulatedServer
from sim.sut.bugs.servers import deaf_server
from sim.sut.interface import SutError
from sim.sut.registry import CLEAN, load_sut
from sim.verdicts import judged


class Addition(NamedTuple):
    """A plugin; SUTs that are wrong and right with it; what the wrong one breaks, found in so many worlds."""

    plugin: str
    bad: str
    good: str
    kind: str
    invariant: str
    worlds: int = 60
    most_faults: int = 0
    dialect: str = "vllm"


ADDITIONS = {
    "framework": Addition("toy_framework", "hive:greedy", "hive", "budget", "B1", most_faults=1),
    "balancer": Addition("toy_framework", "hive:lopsided", "hive", "routing", "R1"),
    "dialect": Addition("toy_dialect", "reference:deferred", CLEAN, "budget", "B1", dialect="double"),
    "fault": Addition("toy_fault", "toy_fault:impatient", CLEAN, "budget", "B2", worlds=400, most_faults=1),
    "invariant": Addition("toy_invariant", "toy_invariant:hedging", CLEAN, "lifecycle", "T1"),
}
EACH = pytest.mark.parametrize("addition", ADDITIONS.values(), ids=ADDITIONS)


def campaign(addition, sut, numbers, worlds):
    options = {"dialect": addition.dialect}
    return run_campaign(
        load_sut(sut),
        STRATEGIES[addition.kind](**options),
        numbers,
        seed=1,
        bounds=Bounds(worlds=worlds),
        classics=classic_cases([addition.kind], **options),
    )


@EACH
def test_what_it_brings_out_is_found_shrunk_kept_and_replayed(addition, plugin, tmp_path):
    plugin(addition.plugin)
    hunted = campaign(addition, addition.bad, [addition.invariant], addition.worlds)
    (find,) = hunted.finds
    assert (find.invariant, hunted.breakdown) == (addition.invariant, None)
    assert len(find.case.sessions) <= 2
    assert len(find.case.faults) <= addition.most_faults

    observed = corpus.observed_in(judged(find.case, hunted.sut))
    kept = corpus.Entry(origin="a toy", invariant=find.invariant, expected={hunted.sut.key: observed}, case=find.case)
    corpus.write(tmp_path / "find.json", kept)
    assert corpus.read(tmp_path / "find.json") == kept
    replayed = corpus.replay(tmp_path / "find.json", kept, hunted.sut)
    assert (replayed.ok, addition.invariant in numbers_in(replayed.observed)) == (True, True)
    assert corpus.replay(tmp_path / "find.json", kept, load_sut(addition.good)).observed == []


@EACH
def test_what_is_right_is_clean(addition, plugin):
    plugin(addition.plugin)
    hunted = campaign(addition, addition.good, numbers_of(KINDS), 150)
    assert (hunted.finds, hunted.breakdown, hunted.idle) == ([], None, "")


def rollcage(*arguments):
    """(exit code, standard output, standard error)"""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@EACH
def test_so_it_is_from_the_command_line(addition, forgetful, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    also = ("--plugin", addition.plugin)
    hunt = ("hunt", *also, "--dialect", addition.dialect, "--seed", 1, "--save", "finds", "--json")
    code, out, _ = rollcage(*hunt, "--sut", addition.bad, "--kind", addition.kind, "--worlds", addition.worlds)
    (found,) = json.loads(out)["suts"].values()
    assert code == 1
    (path,) = [each["case"] for each in found["violations"] if each["invariant"] == addition.invariant]

    code, out, _ = rollcage("replay", *also, path, "--sut", addition.bad, "--json")
    assert (code, [row["ok"] for row in json.loads(out)["cases"]]) == (0, [True])
    code, out, _ = rollcage("replay", *also, path, "--sut", addition.good, "--json")
    assert (code, [row["observed"] for row in json.loads(out)["cases"]]) == (0, [[]])
    code, out, _ = rollcage("show", *also, path, "--sut", addition.bad)
    assert code == 0
    assert f"{addition.invariant} violated: {INVARIANTS[addition.invariant].statement}" in out
    code, out, _ = rollcage(*hunt, "--sut", addition.good, "--kind", addition.kind, "--worlds", 60)
    assert code == 0, out


# Where it is not known


KEPT = {
    "toy_dialect": (
        {"server": {"dialect": "double"}},
        r"server\.dialect: unknown dialect 'double'; known are vllm, sglang, trtllm, plain-vllm, plain-sglang",
    ),
    "toy_fault": (
        {"faults": [{"fault": "abort_storm", "at": {"on": "time", "time_s": 1.0}, "session": 0}]},
        r"Invalid value 'abort_storm' - at `\$\.faults\[0\]\.fault` \(allowed are 'weight_update', 'abort_all', 'ab",
    ),
}


@pytest.mark.parametrize(("name", "changes", "message"), [(name, *kept) for name, kept in KEPT.items()], ids=KEPT)
def test_a_case_that_needs_it_says_what_is_not_known_and_what_is(name, changes, message, plugin):
    case = json.dumps({**to_builtins(Case(Budget(4, 10), (Session(2),))), **changes})
    with pytest.raises(CaseError, match=message):
        loads(case, "found/one.json")
    plugin(name)
    assert to_builtins(loads(case)).items() >= changes.items()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"session": 7}, "faults[0].session is 7: there is no such session, allowed are 0 to 0"),
        ({"times": 1}, "Expected `int` >= 5 - at `$.faults[0].times` (it is 1)"),
        ({"whom": "few"}, "Invalid enum value 'few' - at `$.faults[0].whom` (allowed are 'all', 'one')"),
        ({"why": 1}, "unknown field `why` - at `$.faults[0]` (allowed are at, session, times, calm_s, whom)"),
    ],
)
def test_its_fields_are_read_as_strictly_as_ours(changes, message, plugin):
    plugin("toy_fault")
    fault = KEPT["toy_fault"][0]["faults"][0] | changes
    with pytest.raises(CaseError) as caught:
        loads(json.dumps({**to_builtins(Case(Budget(4, 10), (Session(2),))), "faults": [fault]}))
    assert message in str(caught.value)


def test_a_kept_verdict_of_an_invariant_says_what_is_not_known(tmp_path, plugin):
    path = tmp_path / "kept.json"
    path.write_text(corpus.dumps(corpus.Entry(case=Case(Budget(4, 10), (Session(2),)))).replace("null", '"T1"'))
    with pytest.raises(CaseError, match=r"kept\.json: unknown invariant 'T1'.*; known are B1, B2"):
        corpus.read(path)
    plugin("toy_invariant")
    assert corpus.read(path).invariant == "T1"


def test_a_framework_that_is_not_known_is_refused_with_those_that_are(plugin):
    for name in ("hive", "hive:greedy"):
        with pytest.raises(SutError):
            load_sut(name)
    plugin("toy_framework")
    assert load_sut("toy_framework:build").framework.name == "hive"
    with pytest.raises(SutError, match=r"unknown SUT 'hive:gredy'; did you mean hive:greedy\?"):
        load_sut("hive:gredy")


# More of the framework


@pytest.fixture
def hive(plugin):
    plugin("toy_framework")
    return load_sut


CALM = Case(Budget(8, 10, 64), tuple(Session(4, arrival_s=0.01 * number) for number in range(4)), replicas=2)


def test_a_trainer_reaches_its_servers_and_its_balancer(hive):
    """Every fault, through calls of its names and shapes."""
    faults = (
        WeightUpdate(AtTime(0.02), pause_s=0.5, leaving=(1,)),
        WeightUpdate(AtTime(2.0), pause_mode="keep"),
        AbortAll(AfterTokens(1, 2), 0),
        AbortRequest(AfterTokens(2, 3), 2),
        CancelClient(AfterTokens(3, 2), 3),
        RemoveReplica(AtTime(1.0), 0),
        AddReplica(AtTime(1.2), 0),
        ClearSticky(AtTime(1.3)),
        DelayReleases(AtTime(0.0), 0.2),
    )
    run = judged(replace(CALM, faults=faults), hive("hive"))
    notes = {event.note for event in run.trace.events if isinstance(event, FaultFired)}
    assert (run.violations, run.trace.is_done, notes) == ([], True, {""})
    kinds = {event.kind for event in run.trace.events if isinstance(event, Message)}
    assert kinds == {"lease", "give_back", "hatch", "lose", "forget", "rest"}


@pytest.mark.parametrize("objects", ["copies", "shared"])
def test_a_server_that_does_not_heed_its_limit_is_found_by_whatever_name_it_goes(objects, hive):
    case = Case(Budget(8, 10, 64), (Session(4, limit=Limit("max_tokens", 3)),), transport=Transport(objects))
    sut = hive("hive")
    for make_server, found in ((SimulatedServer, set()), (deaf_server, {"B1", "B10"})):
        run = judged(case, dataclasses.replace(sut, make_server=make_server))
        assert {violation.invariant for violation in run.violations} == found
