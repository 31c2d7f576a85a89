"""Case: what can be written down, what is refused, and that the message says where, what and what is allowed."""

import json
import re

import msgspec
import pytest

from sim import registry
from sim.case import (
    Budget,
    Case,
    ClientView,
    EngineSettings,
    FittedLatency,
    Limit,
    RooflineLatency,
    Router,
    Schedule,
    ServerSettings,
    Session,
    Transport,
    Turn,
    dumps,
    explicit_limit,
    from_builtins,
    loads,
    params_owner,
    to_builtins,
)
from sim.faults import (
    AbortAll,
    AddReplica,
    AfterSent,
    AfterTokens,
    AtTime,
    CancelClient,
    DelayReleases,
    RemoveReplica,
    WeightUpdate,
)
from sim.migrations import FORMAT
from sim.schema import CaseError

BUDGET = Budget(prompt_length=4, response_length=8, max_model_len=32)
ONE = Session(prompt_tokens=2)
SMALL = Case(BUDGET, (ONE,))

EVERYTHING = Case(
    budget=Budget(4, 8, 32, 64, "trajectory", ClientView(None)),
    sessions=(
        Session(2, (Turn(3, 1, 0.5), Turn()), 1.25, Limit("both", 7)),
        Session(3, shares_params_with=0),
    ),
    faults=(
        WeightUpdate(AfterTokens(0, 2), 0.5, (1,)),
        AbortAll(AfterSent(1, 1), 0, 0.25),
        CancelClient(AtTime(3.0), 1),
        RemoveReplica(AtTime(0.0), 2),
        AddReplica(AtTime(4.0), 2),
        DelayReleases(AtTime(0.0), 2.0, 10.0),
    ),
    replicas=3,
    server=ServerSettings("sglang", False, 0.001, 0.1, 0.2),
    router=Router("first", False),
    transport=Transport("shared", 0.01, 0.02),
    partial_rollout=False,
    seed=5,
    schedule=Schedule("explicit", 0, ((3, 1),)),
)


@pytest.mark.parametrize("case", [SMALL, EVERYTHING], ids=["small", "everything"])
def test_json_there_and_back(case):
    assert loads(dumps(case)) == case
    assert from_builtins(json.loads(dumps(case))) == case
    assert from_builtins(to_builtins(case)) == case


def test_json_leaves_out_defaults_but_always_has_the_format():
    assert to_builtins(SMALL) == {
        "format": FORMAT,
        "budget": {"prompt_length": 4, "response_length": 8, "max_model_len": 32},
        "sessions": [{"prompt_tokens": 2}],
    }


def test_a_case_is_a_value():
    assert hash(loads(dumps(EVERYTHING))) == hash(EVERYTHING)
    with pytest.raises(AttributeError):
        SMALL.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("client_view", "seen"),
    [
        (None, 8),
        ({}, msgspec.UNSET),
        ({"response_length": None}, None),
        ({"response_length": False}, False),
        ({"response_length": 0}, 0),
        ({"response_length": "8"}, "8"),
        ({"response_length": 8.0}, 8.0),
        ({"response_length": True}, True),
    ],
)
def test_absent_null_false_and_zero_stay_four_things(client_view, seen):
    data = to_builtins(SMALL)
    data["budget"]["client_view"] = client_view
    case = loads(json.dumps(data))

    assert case.budget.client_response_length is seen or case.budget.client_response_length == seen
    assert type(case.budget.client_response_length) is type(seen)
    assert loads(dumps(case)) == case


@pytest.mark.parametrize(
    ("max_model_len", "context"), [({}, 64), ({"max_model_len": None}, 64), ({"max_model_len": 32}, 32)]
)
def test_context_falls_back_to_the_model(max_model_len, context):
    budget = msgspec.convert(
        {"prompt_length": 4, "response_length": 8, "max_position_embeddings": 64, **max_model_len}, Budget
    )
    assert budget.context_tokens == context


def test_sessions_may_share_one_params_object():
    case = Case(BUDGET, (Session(2, limit=Limit("max_tokens", 3)), Session(2, shares_params_with=0), ONE))
    assert [params_owner(case, index) for index in range(3)] == [0, 0, 2]
    assert [explicit_limit(case, index) for index in range(3)] == [Limit("max_tokens", 3)] * 2 + [None]


# Bad input: the message names the path, the value (or its type) and what is allowed.


def edited(path, value):
    """The JSON of a small case with one value changed or added."""
    data = to_builtins(SMALL)
    place = data
    *way, last = path
    for step in way:
        place = place.setdefault(step, {}) if isinstance(place, dict) else place[step]
    place[last] = value
    return json.dumps(data)


FAULT = {"fault": "abort_all", "at": {"on": "time", "time_s": 0}, "replica": 0}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        # wrong types and ranges
        (("budget", "prompt_length"), -1, "Expected `int` >= 1 - at `$.budget.prompt_length` (it is -1)"),
        (("budget", "response_length"), 0, "Expected `int` >= 1 - at `$.budget.response_length` (it is 0)"),
        (("budget", "response_length"), 8.5, "Expected `int`, got `float` - at `$.budget.response_length` (it is 8.5)"),
        (("budget", "response_length"), "8", "Expected `int`, got `str` - at `$.budget.response_length` (it is '8')"),
        (
            ("budget", "response_length"),
            True,
            "Expected `int`, got `bool` - at `$.budget.response_length` (it is True)",
        ),
        (
            ("budget", "response_length"),
            None,
            "Expected `int`, got `null` - at `$.budget.response_length` (it is None)",
        ),
        (
            ("budget", "response_length"),
            10**9,
            "Expected `int` <= 10000000 - at `$.budget.response_length` (it is 10000",
        ),
        (("budget", "max_model_len"), 0, "Expected `int` >= 1 - at `$.budget.max_model_len` (it is 0)"),
        (
            ("budget", "policy"),
            "both",
            "Invalid enum value 'both' - at `$.budget.policy` (allowed are 'trajectory', 'trajectory-assistant', 't",
        ),
        (("sessions",), [], "Expected `array` of length >= 1 - at `$.sessions` (it is list)"),
        (("sessions",), 3, "Expected `array`, got `int` - at `$.sessions` (it is 3)"),
        (("sessions", 0, "prompt_tokens"), 0, "Expected `int` >= 1 - at `$.sessions[0].prompt_tokens` (it is 0)"),
        (("sessions", 0, "turns"), [], "Expected `array` of length >= 1 - at `$.sessions[0].turns` (it is list)"),
        (("sessions", 0, "arrival_s"), -0.5, "Expected `float` >= 0.0 - at `$.sessions[0].arrival_s` (it is -0.5)"),
        (
            ("sessions", 0, "arrival_s"),
            1e300,
            "Expected `float` <= 10000000.0 - at `$.sessions[0].arrival_s` (it is 1e+3",
        ),
        (("replicas",), 0, "Expected `int` >= 1 - at `$.replicas` (it is 0)"),
        (("replicas",), 100_000, "Expected `int` <= 1024 - at `$.replicas` (it is 100000)"),
        (("seed",), -1, "Expected `int` >= 0 - at `$.seed` (it is -1)"),
        (("seed",), "x" * 99, f"Expected `int`, got `str` - at `$.seed` (it is '{'x' * 59}…)"),
        (
            ("server", "dialect"),
            "tgi",
            "server.dialect: unknown dialect 'tgi'; known are vllm, sglang, trtllm, plain-vllm, plain-sglang",
        ),
        (
            ("server", "dialect"),
            "plain_vllm",
            "server.dialect: unknown dialect 'plain_vllm' (did you mean plain-vllm?); known are vllm, sglang, ",
        ),
        (("server", "dialect"), 7, "Expected `str`, got `int` - at `$.server.dialect` (it is 7)"),
        (("format",), 2, f"format is 2: this version of rollcage reads the formats 1 to {FORMAT}"),
        (("format",), 0, "format is 0: this version of rollcage reads the formats 1 to"),
        (("format",), "1", "format is '1': this version of rollcage reads the formats 1 to"),
        (("format",), True, "Expected `int`, got `bool` - at `$.format` (it is True)"),
        (
            ("faults",),
            [{**FAULT, "fault": "meteor"}],
            "Invalid value 'meteor' - at `$.faults[0].fault` (allowed are 'weig",
        ),
        (
            ("faults",),
            [{**FAULT, "at": {"on": "moon"}}],
            "Invalid value 'moon' - at `$.faults[0].at.on` (allowed are 'time",
        ),
        (("schedule",), {"deviations": [[0, -1]]}, "Expected `int` >= 0 - at `$.schedule.deviations[0][1]` (it is -1)"),
        # unknown fields
        (("colour",), 1, "unknown field `colour` (allowed are budget, sessions, faults, "),
        (("budget", "max_tokens"), 1, "unknown field `max_tokens` - at `$.budget` (allowed are prompt_length, "),
        (("sessions", 0, "prompt"), 1, "unknown field `prompt` - at `$.sessions[0]` (allowed are prompt_tokens, turns"),
        (("server", "speed"), 1, "unknown field `speed` - at `$.server` (allowed are dialect, submission_gate, "),
        (
            ("faults",),
            [{**FAULT, "who": 1}],
            "unknown field `who` - at `$.faults[0]` (allowed are at, replica, pause_s, reset_prefix_cache)",
        ),
        # what does not fit together
        (
            ("budget", "max_model_len"),
            40_000,
            "budget.max_model_len is 40000: it may not exceed budget.max_position_embeddings (32768)",
        ),
        (("sessions", 0, "prompt_tokens"), 33, "sessions[0].prompt_tokens is 33: longer than the context (32 "),
        (
            ("faults",),
            [{**FAULT, "replica": 1}],
            "faults[0].replica is 1: there is no such replica, allowed are 0 to 0",
        ),
        (
            ("faults",),
            [FAULT, {"fault": "cancel_client", "at": FAULT["at"], "session": 3}],
            "faults[1].session is 3: there is no such session, allowed are 0 to 0",
        ),
        (
            ("faults",),
            [{**FAULT, "at": {"on": "tokens", "session": 9, "tokens": 1}}],
            "faults[0].at.session is 9: there is no such session, allowed are 0 to 0",
        ),
        (
            ("faults",),
            [{"fault": "weight_update", "at": FAULT["at"], "leaving": [0]}],
            "faults[0].leaving names all 1 replicas: at least one must stay",
        ),
        (
            ("sessions", 0, "shares_params_with"),
            0,
            "sessions[0].shares_params_with is 0: it must name an earlier session",
        ),
        (("schedule",), {"deviations": [[0, 1]]}, "schedule.deviations need schedule.policy explicit, not fifo"),
    ],
)
def test_bad_input_is_named(path, value, message):
    for read in (loads, lambda text, source: from_builtins(json.loads(text), source)):
        with pytest.raises(CaseError, match=re.escape(message)) as caught:
            read(edited(path, value), "worlds/bad.json")
        assert str(caught.value).startswith("worlds/bad.json: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "truncated"),
        (dumps(SMALL)[:40], "truncated"),
        ("[]", "Expected `object`, got `array`"),
        ("null", "Expected `object`, got `null`"),
        ("{}", "missing required field `budget`"),
        (b"\xff\xfe{", "malformed"),
        (dumps(SMALL).replace("{", '{"\ud800": 1, ', 1).encode("utf-8", "surrogatepass"), "utf-8"),
        (dumps(SMALL) + "x", "trailing"),
        (dumps(SMALL).replace("32", "NaN"), "malformed"),
        (dumps(SMALL).replace("32", "1e999"), "out of range"),
        (dumps(SMALL).replace("32", "-3") + "}", "Expected `int` >= 1"),
        ("[" * 100_000, "Expected `object`, got `array`"),
    ],
)
@pytest.mark.parametrize("first_error", [False, True])
def test_what_is_no_json_is_a_case_error_too(text, message, first_error, monkeypatch):
    """The first error of a process makes it look for installed plugins, which may know what is not known here."""
    monkeypatch.setattr(registry, "_installed_are_loaded", not first_error)
    with pytest.raises(CaseError, match=f"(?i){message}"):
        loads(text)


@pytest.mark.parametrize("time_s", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("path", [("arrival_s",), ("turns", 0, "tool_time_s")])
def test_times_that_are_none(time_s, path):
    session = {"prompt_tokens": 2, "turns": [{}]}
    place = session
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = time_s
    with pytest.raises(CaseError, match=path[-1]):
        from_builtins({**to_builtins(SMALL), "sessions": [session]})


def test_borrowed_params_have_one_owner():
    lender = Session(2, shares_params_with=0)
    with pytest.raises(CaseError, match=r"sessions\[2\]\.shares_params_with is 1, which itself shares"):
        Case(BUDGET, (ONE, lender, Session(2, shares_params_with=1)))
    with pytest.raises(CaseError, match=r"sessions\[1\] has both limit and shares_params_with"):
        Case(BUDGET, (ONE, Session(2, limit=Limit("max_tokens", 1), shares_params_with=0)))


# The engine


def engine_case(latency=None, max_model_len=10_241, **engine):
    server = ServerSettings(engine=EngineSettings(**engine), latency=latency)
    return Case(Budget(2048, 8192, max_model_len), (Session(8),), server=server)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (
            {"num_gpu_blocks": 81, "block_size": 128},
            "server.engine.num_gpu_blocks is 81: a request of max_model_len (10241 tokens) needs 82 blocks of 128",
        ),
        (
            {"enable_chunked_prefill": False},
            "server.engine.max_num_batched_tokens is 8192: with enable_chunked_prefill false it must be at least "
            "max_model_len (10241)",
        ),
        (
            {"max_num_seqs": 1024, "max_num_batched_tokens": 512},
            "server.engine.max_num_seqs is 1024: more than max_num_batched_tokens (512)",
        ),
        (
            {"long_prefill_token_threshold": 20_000},
            "server.engine.long_prefill_token_threshold is 20000: more than max_model_len (10241)",
        ),
    ],
)
def test_engine_settings_that_vllm_would_not_start_with(engine, message):
    with pytest.raises(CaseError, match=re.escape(message)):
        engine_case(**engine)


def test_engine_settings_that_it_starts_with():
    assert engine_case(num_gpu_blocks=82, block_size=128)
    assert engine_case(enable_chunked_prefill=False, max_num_batched_tokens=10_241)
    assert engine_case(max_num_batched_tokens=512).server.engine.config(10_241).max_num_seqs == 512
    assert engine_case(max_model_len=32_768).server.engine.config(10**7).num_gpu_blocks == 625_001


def test_latency_is_part_of_the_case():
    usual = dumps(Case(Budget(2048, 8192), (Session(8),), server=ServerSettings("sglang")))
    assert "latency" not in usual
    assert "engine" not in usual
    for latency in (RooflineLatency("H100-SXM", "Qwen2.5-7B", 2, 0.002), FittedLatency(0.005, 2e-5, 3e-8)):
        assert loads(dumps(engine_case(latency))).server.latency == latency


def test_unknown_hardware_is_named_with_what_is_known():
    with pytest.raises(CaseError, match=r"server\.latency: hardware='A10' is unknown; known are A100-SXM-80GB"):
        engine_case(RooflineLatency("A10", "Qwen2.5-7B"))
