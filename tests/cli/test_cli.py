"""The command line: exit codes, one JSON object, errors a person can act on, and Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sim import corpus
from sim.case import Budget, Case, Session
from sim.cli import hunt
from sim.cli.main import main
from sim.clock import watchdog
from sim.expected import Shown
from sim.invariants.kinds import KINDS
from sim.invariants.table import numbers_of
from sim.search import campaign as campaign_module
from sim.sut.registry import CLEAN, builtin_names

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "properties" / "corpus"
OVERRUN = str(CORPUS / "overrun-64-256-16.json")


def rollcage(*arguments):
    """(exit code, standard output, standard error), in this process."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def command(*arguments, **environment):
    """A process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "sim.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Finds of an interrupted search are kept in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(campaign_module, "MOST_SHRINK_WORLDS", 400)


HANGS = "await asyncio.Event().wait()"


@pytest.fixture
def client(tmp_path, request):
    """Writes a module with a factory and a client whose generate has this body; returns its SUT name."""

    def write(body, factory="return Client(context.config, context.balancer)"):
        name = f"client_{abs(hash(request.node.nodeid))}"
        lines = [
            "import asyncio, itertools, sys, time",
            "from sim.sut.reference.client import DeferredClient, PinnedClient",
            "calls = itertools.count()",
            "class Client(PinnedClient):",
            "    async def generate(self, request_id, **kwargs):",
            *(f"        {line}" for line in body.splitlines()),
            "def build(context):",
            *(f"    {line}" for line in factory.splitlines()),
        ]
        (tmp_path / f"{name}.py").write_text("\n".join(lines) + "\n")
        return f"{name}:build"

    return write


GOOD = "return await super().generate(request_id, **kwargs)"


# hunt


def test_nothing_found_is_0_and_one_json_object():
    code, out, err = rollcage("hunt", "--sut", CLEAN, "--worlds", 20, "--seed", 3, "--json")
    data = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert (data["worlds"], data["seed"]) == (20, 3)
    assert data["worlds_per_s"] > 0
    assert data["suts"][CLEAN]["violations"] == []


def test_violations_are_1_and_each_has_number_message_and_a_case_that_replays(tmp_path):
    code, out, _ = rollcage(
        *("hunt", "--sut", "reference:deferred", "--kind", "budget", "--worlds", 60, "--seed", 1),
        *("--save", tmp_path / "new" / "finds", "--json"),
    )
    found = json.loads(out)["suts"]["reference:deferred"]["violations"]
    assert code == 1
    assert found
    for violation in found:
        assert violation.keys() == {"invariant", "message", "reach", "feature", "met_by", "case"}
        entry = corpus.read(Path(violation["case"]))
        assert violation["invariant"] in entry.numbers("reference:deferred")
    code, out, _ = rollcage("replay", tmp_path / "new" / "finds", "--sut", "reference:deferred", "--json")
    assert code == 0
    assert all(row["ok"] for row in json.loads(out)["cases"])
    assert not [name for name in os.listdir(tmp_path / "new" / "finds") if not name.endswith(".json")]


def test_unsaved_cases_are_in_the_json_and_can_be_shown(tmp_path):
    _, out, _ = rollcage(
        *("hunt", "--sut", "reference:deferred", "--kind", "budget", "--worlds", 60, "--seed", 1, "--json")
    )
    found = json.loads(out)["suts"]["reference:deferred"]["violations"][0]
    (tmp_path / "find.json").write_text(json.dumps(found["case"]))
    assert rollcage("show", tmp_path / "find.json", "--sut", "reference:deferred")[0] == 0


def test_the_same_seed_finds_the_same_in_processes_with_other_hash_seeds():
    arguments = ["hunt", "--sut", "reference:deferred", "--worlds", "64", "--seed", "1", "--json"]
    code = (
        f"from sim.search import campaign as c\nc.MOST_SHRINK_WORLDS = 40\n"
        f"from sim.cli.main import main\nmain({arguments})"
    )
    outputs = []
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        outputs.append(json.loads(done.stdout))
        del outputs[-1]["worlds_per_s"]
    assert outputs[0] == outputs[1]
    assert outputs[0]["suts"]["reference:deferred"]["worlds"] == 64
    assert outputs[0]["suts"]["reference:deferred"]["violations"]


def test_the_demonstration_catches_the_bad_one_clears_the_good_one_and_succeeds(monkeypatch):
    monkeypatch.setattr(hunt, "DEMONSTRATION_WORLDS", 400)
    code, out, _ = rollcage("hunt")
    assert code == 0
    assert "reference:deferred: B1" in out
    assert "reference:pinned: clean" in out
    assert "overrun" in out


def test_against_names_where_two_clients_differ_and_stops_there():
    code, out, _ = rollcage(
        *("hunt", "--sut", "reference:deferred", "--against", CLEAN),
        *("--kind", "budget", "--worlds", 300, "--seed", 1, "--json"),
    )
    (found,) = json.loads(out)["suts"]["reference:deferred"]["violations"]
    assert code == 1
    assert found["invariant"] == "differs"
    assert "on reference:pinned" in found["message"]
    text = rollcage("hunt", "--sut", "reference:deferred", "--against", CLEAN, "--worlds", 40, "--seed", 1)[1]
    assert text.startswith("reference:deferred: differs from reference:pinned  (1 world, ")
    assert "The two clients do not do the same in this world" in text
    same = rollcage("hunt", "--sut", CLEAN, "--against", CLEAN, "--worlds", 8, "--seed", 1)
    assert (same[0], same[1].split("  (")[0]) == (0, f"{CLEAN}: does the same as {CLEAN}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("hunt", "--sut", "reference:nonsense"),
            "unknown SUT 'reference:nonsense'\n  the known-good client: reference:pinned\n",
        ),
        (("hunt", "--sut", "reference:pined"), "unknown SUT 'reference:pined'; did you mean reference:pinned?\n"),
        (("hunt", "--sut", "stuck-gate"), "did you mean reference:stuck-gate?\n"),
        (("hunt", "--seconds", "60s"), "'60s' is not a number of seconds; did you mean 60?"),
        (("hunt", "--seconds", "2 min"), "did you mean 120?"),
        (("hunt", "--kind", "B1"), "'B1' is an invariant, of kind budget; --only B1 looks for it"),
        (("hunt", "--dialect", "wide"), "what a plugin adds is known with --plugin MODULE"),
        (("hunt", "--only", "Z1"), "what a plugin adds is known with --plugin MODULE"),
        (("hunt", "--kind", "config"), "C1, C2 and C3 are about start-up"),
        (("hunt", "--sut", "no_such_module:build"), "'no_such_module' cannot be imported"),
        (("hunt", "--sut", "json:nothing"), "'nothing' in 'json' does not exist"),
        (("hunt", "--sut", CLEAN, "--against", "reference:nonsense"), "unknown SUT"),
        (("hunt", "--against", CLEAN), "--against needs --sut"),
        (("hunt", "--worlds", 0), "--worlds"),
        (("hunt", "--seconds", 0), "--seconds"),
        (("hunt", "--seconds", "nan"), "--seconds"),
        (("hunt", "--seconds", "inf"), "--seconds"),
        (("hunt", "--seconds", 1, "--worlds", 1), "exclude each other"),
        (("hunt", "--kind", "weather"), "--kind"),
        (("hunt", "--save", "/dev/null/finds"), "cannot be written"),
        (("hunt", "--save", OVERRUN), "--save"),
        (("replay",), "name case files"),
        (("replay", OVERRUN, "--accept", "--on", "vllm"), "exclude each other"),
        (("replay", "missing.json"), "missing.json: cannot be read: No such file"),
        (("replay", "--corpus", "."), "no .json files"),
        (("show", "."), "is a directory"),
        (("show", OVERRUN, "--sut", "reference:nonsense"), "unknown SUT"),
    ],
)
def test_unusable_arguments_are_2_with_a_line_that_says_why(arguments, message):
    code, out, err = rollcage(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"format": 1',
        bytes(range(256)),
        b"[" * 100_000,
        b'{"case": ' * 100_000,
        b'{"budget": -1}',
    ],
    ids=["empty", "truncated", "binary", "deep", "deep-objects", "negative"],
)
@pytest.mark.parametrize("verb", ["show", "replay"])
def test_a_bad_case_is_2_and_names_the_file(tmp_path, verb, content):
    (tmp_path / "bad.json").write_bytes(content)
    code, out, err = rollcage(verb, tmp_path / "bad.json", "--json")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {tmp_path / 'bad.json'}: ")
    assert err.count("\n") == 1


# What clients do


@pytest.mark.parametrize(
    ("body", "number", "message"),
    [
        ("raise KeyError('boom')", "A9", "failed on its own: KeyError: 'boom'"),
        ("raise BaseException", "A9", "without a result or an exception"),
        ("raise asyncio.CancelledError", "A9", "nobody cancelled it"),
        ("return None", "A9", "generate returned None: it has no token_ids"),
        ("time.sleep(1)", "A9", "time.sleep(1) in a world"),
        ("await asyncio.get_running_loop().create_future()", "V1", "deadlock"),
        ("while True: await asyncio.sleep(0)", "V1", "livelock"),
        ("while True: await asyncio.sleep(1)", "V1", "horizon"),
        (
            "kwargs['sampling_params'] = {'max_tokens': '9'}\nreturn await super().generate(request_id, **kwargs)",
            "A9",
            "str",
        ),
    ],
)
def test_a_client_that_misbehaves_is_a_finding(client, monkeypatch, body, number, message):
    monkeypatch.setattr(campaign_module, "MOST_SHRINK_STEPS", 1)
    kind = "lifecycle" if number == "A9" else "liveness"
    code, out, err = rollcage("hunt", "--sut", client(body), "--kind", kind, "--worlds", 1, "--seed", 1, "--json")
    ((_, result),) = json.loads(out)["suts"].items()
    assert code == 1
    assert "Traceback" not in err
    assert [message in found["message"] for found in result["violations"] if found["invariant"] == number] == [True]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            "self.balancer.acquire.remote(request_id=request_id)",
            "AttributeError: balancer.acquire: the balancer has no such method; it has acquire_server, ",
        ),
        (
            "self.balancer.acquire_server.remote(req_id=request_id)",
            "TypeError: balancer.acquire_server.remote(req_id='session-0'): "
            "missing a required argument: 'request_id'; it takes (request_id)",
        ),
        (
            "(await self.balancer.acquire_server.remote(request_id))[1].generate.remote(prompt=kwargs['prompt_ids'])",
            "missing a required argument: 'prompt_ids'; it takes (prompt_ids, sampling_params, request_id, **",
        ),
        (
            "(await self.balancer.acquire_server.remote(request_id))[1].chat.remote()",
            "AttributeError: server.chat: the server has no such method; it has abort_all_requests, ",
        ),
    ],
)
def test_a_call_that_the_callee_cannot_take_is_the_callers_fault(client, call, told):
    """It never sends a request, and must not pass for clean."""
    code, out, _ = rollcage("hunt", "--sut", client(f"return await {call}"), "--worlds", 60, "--seed", 1, "--json")
    ((_, result),) = json.loads(out)["suts"].items()
    assert code == 1
    (message,) = [found["message"] for found in result["violations"] if found["invariant"] == "A9"]
    assert "failed on its own: " in message
    assert told in message
    assert result["warning"].startswith("in 60 worlds no token was decoded, and calls failed, as with ")


IDLE = {
    "its balancer always fails": (
        GOOD,
        "class Never:\n    def __init__(self, servers): pass\n"
        "    def acquire_server(self, request_id): raise RuntimeError('never')\n"
        "return Client(context.config, context.make_balancer(Never))",
        0,
        "no token was decoded, and calls failed, as with RuntimeError: never",
    ),
    "it asks for what the server refuses": (
        "kwargs['sampling_params'] = {'max_tokens': 1.5}\n"
        "return await self.attempt(request_id, kwargs['prompt_ids'], kwargs['sampling_params'])",
        "return Client(context.config, context.balancer)",
        1,
        "no token was decoded, and calls failed, as with IllFormed: max_tokens must be an integer",
    ),
    "it is always cancelled": (
        "out = await super().generate(request_id, **kwargs)\nraise asyncio.CancelledError",
        "return Client(context.config, context.balancer)",
        1,
        "no call of the client ended well",
    ),
    "it says nothing": (
        "from sim.sut.verl.servers import TokenOutput\nreturn TokenOutput([], [], 'stop')",
        "return Client(context.config, context.balancer)",
        0,
        "no token was decoded: the client was hardly tested",
    ),
}


@pytest.mark.parametrize("how", IDLE)
def test_a_client_that_does_nothing_does_not_look_clean(client, how):
    body, factory, code, told = IDLE[how]
    arguments = ("hunt", "--sut", client(body, factory), "--kind", "lifecycle", "--worlds", 20, "--seed", 1)
    result = json.loads(rollcage(*arguments, "--json")[1])["suts"].popitem()[1]
    assert told in result["warning"]
    shown = rollcage(*arguments)
    assert shown[0] == code
    assert shown[1].splitlines()[1] == f"warning: {result['warning']}"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if numbers_of([kind])])
def test_a_world_that_never_ends_is_a_find_whatever_it_was_drawn_for(client, kind):
    hunt = ("hunt", "--sut", client(HANGS), "--kind", kind, "--worlds", 8, "--seed", 1)
    code, out, _ = rollcage(*hunt)
    assert code == 1
    assert re.search(r"deadlock at .* with \d+ sessions open", out)
    if kind != "liveness":  # of which it would leave nothing
        assert "V1 violated" not in rollcage(*hunt, "--skip", "V1")[1]


def test_a_world_that_never_ends_is_found_once(client):
    found = json.loads(rollcage("hunt", "--sut", client(HANGS), "--worlds", 16, "--seed", 1, "--json")[1])["suts"]
    numbers = [each["invariant"] for sut in found.values() for each in sut["violations"]]
    assert numbers.count("V1") == 1


def test_a_client_that_does_something_is_not_warned_of():
    assert "warning" not in rollcage("hunt", "--sut", CLEAN, "--worlds", 5, "--seed", 1)[1]


PICKY = "context.config.actor_rollout_ref.rollout.response_length + 1\nreturn Client(context.config, context.balancer)"


def test_a_factory_that_raises_over_a_config_that_is_odd_on_purpose_is_a_finding(client, tmp_path):
    name = client(GOOD, PICKY)
    code, out, err = rollcage(
        "hunt", "--sut", name, "--worlds", 60, "--seed", 1, "--skip", "B7", "--save", tmp_path / "finds"
    )
    assert (code, err) == (1, "")
    head, told = out.split("\n\n", 1)
    assert head.startswith(f"{name}: A9  (60 worlds")
    assert told.lstrip().startswith(
        "the factory raised AttributeError: 'Config' object has no attribute 'response_length', and so each call "
        "fails; this world's config lacks response_length, on purpose\n    File"
    )
    assert "context.config.actor_rollout_ref.rollout.response_length + 1" in told
    assert "sim/world.py" not in told
    assert "failed on its own: the factory raised AttributeError" in told
    (kept,) = (tmp_path / "finds").iterdir()
    assert rollcage("replay", kept, "--sut", name)[0] == 0


def test_what_a_factory_cannot_use_is_named_where_it_is_junk(client):
    name = client(GOOD, PICKY)
    _, out, _ = rollcage("show", CORPUS / "fallback-string.json", "--sut", name)
    assert "this world's config has response_length '8192', on purpose" in out


@pytest.mark.parametrize("case", ["fallback-missing.json", "overrun-64-256-16.json"])
def test_a_factory_that_always_raises_is_an_error_of_use(client, case):
    code, out, err = rollcage("replay", CORPUS / case, "--sut", client(GOOD, "raise RuntimeError('no')"))
    assert (code, out) == (2, "")
    assert "the factory of SUT" in err


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("return None", "returned NoneType, which has no generate()"),
        ("return 1, 2, 3", "returned tuple, which has no generate()"),
        ("raise RuntimeError('no')", "raised RuntimeError: no"),
        ("sys.exit(0)", "raised SystemExit: 0"),
    ],
)
def test_a_factory_that_returns_junk_or_raises_is_2(client, factory, message):
    code, out, err = rollcage("hunt", "--sut", client(GOOD, factory), "--worlds", 5, "--json")
    assert (code, out) == (2, "")
    assert message in err


def test_a_client_that_leaves_the_program_does_not_pass_for_clean(client):
    code, out, err = rollcage("hunt", "--sut", client("sys.exit(0)"), "--worlds", 5, "--json")
    assert (code, out) == (2, "")
    assert "called sys.exit(0)" in err


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timer signals")
def test_a_client_that_blocks_is_ended_and_its_place_named(client, monkeypatch):
    monkeypatch.setattr(watchdog, "MOST_REAL_S", 0.5)
    code, out, err = rollcage("hunt", "--sut", client("while True: pass"), "--worlds", 5, "--json")
    assert (code, out) == (2, "")
    assert "did not let go for 0.5 s of real time in Client.generate" in err


def test_what_a_client_prints_is_not_in_the_json(client):
    name = client("print('hello')\n" + GOOD)
    for arguments in (("hunt", "--worlds", 4, "--seed", 1), ("replay", OVERRUN), ("show", OVERRUN)):
        _, out, err = rollcage(*arguments, "--sut", name, "--json")
        json.loads(out)
        assert "hello" in err


def test_junk_that_a_client_puts_where_numbers_are_due_crashes_nothing(client):
    body = "out = await super().generate(request_id, **kwargs)\n{}\nreturn out"
    fields = ("extra_fields['min_global_steps'] = object()", "stop_reason = object()", "token_ids = [2**70]")
    for junk in (f"out.{field}" for field in fields):
        code, out, _ = rollcage("show", OVERRUN, "--sut", client(body.format(junk)), "--json")
        assert code == 0
        assert json.loads(out)["digest"]
        sys.modules.pop(next(name for name in list(sys.modules) if name.startswith("client_")))


# A fault of ours


@pytest.fixture
def _broken_judge(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("the judge fell over")

    for where in ("sim.search.campaign", "sim.corpus", "sim.cli.show"):
        monkeypatch.setattr(f"{where}.judged", broken)


@pytest.mark.usefixtures("_broken_judge")
def test_a_fault_of_the_harness_is_3_with_its_case_kept(tmp_path):
    code, out, err = rollcage("hunt", "--sut", CLEAN, "--kind", "lifecycle", "--worlds", 5, "--json")
    assert (code, out) == (3, "")
    assert "This is a fault of rollcage, not of reference:pinned\nits case is kept as found" in err
    (kept,) = (tmp_path / "found").iterdir()
    assert "the judge fell over" in corpus.read(kept).origin


@pytest.mark.usefixtures("_broken_judge")
@pytest.mark.parametrize("verb", ["replay", "show"])
def test_a_fault_of_the_harness_in_one_case_is_3_too(verb):
    code, out, err = rollcage(verb, OVERRUN, "--json")
    assert (code, out) == (3, "")
    assert err.endswith(
        "ZeroDivisionError: the judge fell over\n\nThis is a fault of rollcage, not of what is tested\n"
    )


def test_show_is_0_whatever_is_violated():
    code, out, _ = rollcage("show", OVERRUN, "--sut", "reference:deferred")
    assert code == 0
    assert "B1 violated" in out


# replay and show


def test_replay_of_the_whole_corpus_on_the_built_in_suts():
    code, out, _ = rollcage("replay", "--corpus", CORPUS, "--json")
    rows = json.loads(out)["cases"]
    assert code == 0
    assert rows[0].keys() == {"path", "sut", "expected", "observed", "ok", "news", "differences"}
    assert all(row["ok"] for row in rows)
    assert {row["sut"] for row in rows} <= set(builtin_names())


def test_replay_is_1_when_a_verdict_is_another_one(tmp_path):
    case = corpus.read(Path(OVERRUN)).case
    corpus.write(tmp_path / "c.json", corpus.Entry(expected={"reference:deferred": [Shown("B2")]}, case=case))
    code, out, _ = rollcage("replay", tmp_path / "c.json")
    assert code == 1
    assert "DIFFERS" in out
    assert "B1: session 0 turn 0 decoded" in out


def test_no_world_at_all_is_not_clean():
    code, out, err = rollcage("hunt", "--sut", CLEAN, "--seconds", "1e-9")
    assert code == 2
    assert out.startswith(f"{CLEAN}: not tested  (0 worlds")
    assert f"not one world of {CLEAN} was run" in err


def test_the_demonstration_needs_a_server_that_honours_limits():
    code, _, err = rollcage("hunt", "--dialect", "trtllm")
    assert code == 2
    assert "trtllm's server ignores limits" in err


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A case with a verdict of a module that leaves a mark where it is imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trap.py").write_text("open('mark', 'w').close()\ndef build(context): raise RuntimeError\n")
    case = Case(Budget(4, 10), (Session(4),))
    corpus.write(tmp_path / "case.json", corpus.Entry(expected={"trap:build": [Shown("B1")]}, case=case))
    return tmp_path


def test_a_file_imports_nothing_and_says_how_it_would_be(trap):
    code, _, err = rollcage("replay", "case.json")
    assert code == 2
    assert "rollcage replay case.json --sut trap:build" in err
    code, out, err = rollcage("show", "case.json")
    assert (code, out.splitlines()[0]) == (0, CLEAN)
    assert "rollcage show case.json --sut trap:build" in err
    assert not (trap / "mark").exists()
    rollcage("show", "case.json", "--sut", "trap:build")
    assert (trap / "mark").exists()


def test_no_verdict_is_shown_and_no_failure():
    code, out, _ = rollcage("replay", OVERRUN, "--sut", "reference:favourite", "--json")
    (row,) = json.loads(out)["cases"]
    assert (code, row["expected"], row["ok"], row["news"]) == (0, None, None, [])
    assert "0 of 0 as expected, 1 without a verdict" in rollcage("replay", OVERRUN, "--sut", "reference:favourite")[1]


def test_violations_without_a_verdict_are_1_unless_the_known_good_client_has_them_too(client, tmp_path):
    name = client(GOOD, "return DeferredClient(context.config, context.balancer)")
    code, out, _ = rollcage("replay", OVERRUN, "--sut", name)
    assert code == 1
    assert "no verdict  B1        NEW\n" in out
    assert "B1: session 0 turn 0 decoded" in out
    assert out.endswith(
        "0 of 0 as expected, 1 without a verdict, 1 of them with violations that the known-good client lacks\n"
    )
    entry = corpus.read(Path(OVERRUN))
    entry.expected[CLEAN].append(Shown("B1"))
    corpus.write(tmp_path / "c.json", entry)
    assert rollcage("replay", tmp_path / "c.json", "--sut", name)[0] == 0


def test_accept_keeps_what_is_observed_and_what_is_fixed_is_said(tmp_path):
    kept = tmp_path / "c.json"
    entry = corpus.Entry(
        origin="here", expected={CLEAN: [Shown("B1")], "other": [Shown("R1")]}, case=Case(Budget(4, 10), (Session(4),))
    )
    corpus.write(kept, entry)
    code, out, _ = rollcage("replay", kept, "--sut", CLEAN)
    assert code == 1
    assert "B1        clean     fixed\n" in out
    assert "DIFFERS" not in out
    assert out.endswith("0 of 1 as expected, 0 without a verdict, 1 fixed\n")
    assert corpus.read(kept) == entry
    code, out, _ = rollcage("replay", kept, "--sut", CLEAN, "--sut", "reference:deferred", "--accept")
    assert code == 0
    assert out.endswith(f"accepted: {kept}\n")
    assert corpus.read(kept).expected == {CLEAN: [], "other": [Shown("R1")], "reference:deferred": []}
    assert corpus.read(kept).origin == "here"
    code, out, _ = rollcage("replay", kept, "--sut", CLEAN, "--accept", "--json")
    assert (code, json.loads(out)["accepted"]) == (0, [])
    assert os.listdir(tmp_path) == ["c.json"]


def test_a_bare_case_is_accepted_too(tmp_path):
    (tmp_path / "bare.json").write_text(
        '{"budget": {"prompt_length": 4, "response_length": 9}, "sessions": [{"prompt_tokens": 4}]}'
    )
    assert rollcage("replay", tmp_path / "bare.json", "--sut", CLEAN, "--accept")[0] == 0
    assert corpus.read(tmp_path / "bare.json").expected == {CLEAN: []}


def test_show_has_digest_and_events_and_the_same_ones_every_time():
    shown = [json.loads(rollcage("show", OVERRUN, "--json")[1]) for _ in range(2)]
    assert shown[0] == shown[1]
    assert shown[0]["sut"] == "reference:deferred"
    assert shown[0]["events"] > 10
    assert "decoded" in rollcage("show", OVERRUN)[1]


def test_show_judges_the_run_that_it_shows(client):
    """Of a client that fails in its first call only: a second run shows that it breaks D1, and no more."""
    name = client(f"if next(calls): {GOOD}\nraise KeyError('the first')")
    shown = json.loads(rollcage("show", OVERRUN, "--sut", name, "--json")[1])
    assert shown["attempts"] == []
    assert [violation["invariant"] for violation in shown["violations"]] == ["A9", "D1"]
    assert "the first" in shown["violations"][0]["message"]


# Plugins

VERBS = {
    "hunt": ("--sut", CLEAN, "--worlds", 1, "--seed", 1),
    "replay": (OVERRUN,),
    "show": (OVERRUN,),
    "waste": ("--prompt-tokens", 4, "--abort-every-tokens", 3000),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_plugin_is_imported_first_and_what_it_prints_is_not_in_the_json(verb, tmp_path):
    name = f"plugin_of_{verb}"
    (tmp_path / f"{name}.py").write_text(
        "print('hello')\n"
        "import dataclasses\n"
        "from sim.sut.frameworks import register_framework\n"
        "from sim.sut.reference.adapter import REFERENCE\n"
        "load = lambda _: REFERENCE.load('reference:deferred')\n"
        f"register_framework(dataclasses.replace(REFERENCE, name='{name}', suts=('{name}',), load=load))\n"
    )
    code, out, err = rollcage(verb, *VERBS[verb], "--json", "--plugin", name)
    assert code == 0
    json.loads(out)
    assert err == "hello\n"
    assert rollcage("show", OVERRUN, "--sut", name)[0] == 0


@pytest.mark.parametrize("verb", VERBS)
def test_a_plugin_that_cannot_be_imported_is_one_line(verb, tmp_path):
    (tmp_path / "broken_plugin.py").write_text("import sys\nsys.exit('no')\n")
    for name, why in (("no_such_plugin", "ModuleNotFoundError: No module named"), ("broken_plugin", "SystemExit: no")):
        code, out, err = rollcage(verb, "--plugin", name, "--sut" if verb != "waste" else "--policy", "nonsense")
        assert (code, out) == (2, "")
        assert err.startswith(f"error: --plugin {name}: cannot be imported: {why}")
        assert err.count("\n") == 1


# The process


def test_a_plugin_that_registers_what_cannot_be_is_told_the_line(tmp_path):
    (tmp_path / "registers_junk.py").write_text("from sim.dialects import register_dialect\n\nregister_dialect(None)\n")
    code, _, err = rollcage("show", OVERRUN, "--plugin", "registers_junk")
    assert code == 2
    assert "dialect '?' is None; a Dialect is needed (" in err
    assert err.endswith("registers_junk.py, line 3)\n")


def test_a_plugin_that_registers_nothing_is_told(tmp_path):
    (tmp_path / "registers_nothing.py").write_text("x = 1\n")
    code, _, err = rollcage("show", OVERRUN, "--sut", CLEAN, "--plugin", "registers_nothing")
    assert (code, err) == (0, "warning: --plugin registers_nothing registers nothing\n")


def test_a_sut_and_a_case_that_are_named_twice_are_run_once():
    for arguments in (("--sut", CLEAN, "--sut", CLEAN, OVERRUN), ("--sut", CLEAN, OVERRUN, OVERRUN)):
        assert "1 of 1 as expected" in rollcage("replay", *arguments)[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_loses_nothing_that_was_found(tmp_path, number):
    """In a process of its own: the first find is being shrunk, or the search goes on, when the signal comes."""
    seen = tmp_path / "found-one"
    (tmp_path / "telltale.py").write_text(
        "from pathlib import Path\n"
        "from sim.search import campaign\n"
        "from sim.sut.reference.client import DeferredClient\n"
        "finish = campaign._Search.finish\n"
        "def told(search):\n"
        "    finish(search)\n"
        f"    Path({str(seen)!r}).touch()\n"
        "campaign._Search.finish = told\n"
        "def build(context):\n"
        "    return DeferredClient(context.config, context.balancer)\n"
    )
    arguments = ("--kind", "budget", "--worlds", 1_000_000, "--seed", 1, "--json")
    if number == signal.SIGKILL:
        arguments = (*arguments, "--save", tmp_path / "found")
    process = command("hunt", "--sut", "telltale:build", *arguments)
    while process.poll() is None and not seen.exists():
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    if number == signal.SIGKILL:  # nobody is left to say so, but the folder does
        kept = [corpus.read(path) for path in (tmp_path / "found").glob("*-unshrun*.json")]
        assert "B1" in {each.invariant for each in kept}
        assert all(each.origin.endswith("; not shrunk to its end") for each in kept)
        return
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    found = json.loads(out)["suts"]["telltale:build"]["violations"]
    assert found
    assert all(corpus.read(Path(each["case"])).invariant == each["invariant"] for each in found)
    assert all(Path(each["case"]).parent.name == "found" for each in found)


def test_a_reader_that_goes_away_is_no_traceback():
    process = command("replay", "--corpus", CORPUS)
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate()
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom sim.cli.main import main\nmain(['--help'], standalone_mode=False)\nprint(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "hunt" in done.stdout
    assert "'hypothesis'" not in done.stdout
    assert "'numpy'" not in done.stdout
    assert "'msgspec'" not in done.stdout


def test_a_replay_on_vllm_without_vllm_says_what_to_install(monkeypatch):
    session = pytest.importorskip("gpu_checks.session")
    monkeypatch.setattr(session, "is_installed", lambda: False)
    case = str(CORPUS / "overrun-64-256-16.json")
    result = CliRunner().invoke(main, ["replay", case, "--on", "vllm"])
    assert result.exit_code == 2
    assert "needs vLLM: pip install" in result.output
