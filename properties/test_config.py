"""C1–C3 over drawn configurations: preflight, its model of verl's safety net, and verl's own code where installed."""

import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from sim.invariants.config import C1, C2, C3, Netted, Started
from sim.preflight import installed, verl
from sim.preflight.launch import PreflightError
from sim.startup.flags import FLAGS
from sim.startup.model_shape import ModelShape

DRAWS = settings(deadline=None, max_examples=300)
EDGES = (1, 2, 255, 256, 1024, 8191, 8192, 8193, 32768, 128_000, 131_072)
tokens = st.sampled_from(EDGES) | st.integers(1, 200_000)
MUTABLE = msgspec.structs.replace(verl.RELEASES[-1], batch_is_frozen=False)
"""verl 0.9.1 as its authors meant it: the net may write what it computes."""


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[dict[str, Any], ModelShape]:
    """Rollout settings, each unset, null, false or a value, and a model; near-equal lengths are common."""
    positions = draw(tokens)
    near = st.sampled_from((positions - 1, positions, positions + 1)).filter(lambda n: n > 0)
    length = tokens | near
    rollout = {
        "name": draw(st.sampled_from(verl.BACKENDS)),
        "max_model_len": draw(st.just(UNSET) | st.none() | length),
        "max_num_batched_tokens": draw(st.just(UNSET) | st.none() | length),
        "enable_chunked_prefill": draw(st.sampled_from((UNSET, None, False, True))),
        "max_num_seqs": draw(st.just(UNSET) | st.sampled_from((1, 16, 256, 1024))),
        "tensor_model_parallel_size": 1,
    }
    return rollout, ModelShape(max_position_embeddings=positions, derived_max_model_len=positions)


def netted(release: verl.Release, rollout: dict[str, Any], model: ModelShape) -> Netted | None:
    """One pass of the modelled net, or None where the draw does not reach it."""
    values = verl.compose(rollout, release)
    after, found = verl.validate(values, model, release=release, backend=values["name"])
    if any(f.level == "refused" for f in found) or values["max_num_batched_tokens"] is None:
        return None
    return Netted(
        backend=values["name"],
        chunking=bool(values["enable_chunked_prefill"]),
        context_tokens=after["max_model_len"],
        before_tokens=values["max_num_batched_tokens"],
        after_tokens=after["max_num_batched_tokens"],
        warnings=[f.why for f in found if f.rule == "batch-raised-to-context"],
    )


@DRAWS
@given(rollouts())
def test_c3_the_net_raises_only_when_needed_and_exactly(drawn: tuple[dict[str, Any], ModelShape]) -> None:
    pass_ = netted(MUTABLE, *drawn)
    assert pass_ is None or C3.check(pass_) == []


@DRAWS
@given(rollouts())
def test_c3_the_net_is_idempotent(drawn: tuple[dict[str, Any], ModelShape]) -> None:
    rollout, model = drawn
    values = verl.compose(rollout, MUTABLE)
    once, found = verl.validate(values, model, release=MUTABLE, backend=values["name"])
    if not any(f.level == "refused" for f in found):
        twice, again = verl.validate(once, model, release=MUTABLE, backend=values["name"])
        assert twice == once
        assert again == []


@DRAWS
@given(rollouts())
def test_c1_accepted_means_the_engine_rules_hold(drawn: tuple[dict[str, Any], ModelShape]) -> None:
    """What verl passes on after its net is never refused by vLLM for the very thing the net is there for."""
    outcome = verl.start(*drawn, release=MUTABLE)
    assert "batch-below-context" not in {f.rule for f in outcome.findings}


@DRAWS
@given(rollouts())
def test_c2_an_explicit_value_survives(drawn: tuple[dict[str, Any], ModelShape]) -> None:
    rollout, model = drawn
    outcome = verl.start(rollout, model, release=MUTABLE)
    if outcome.engine is not None and outcome.starts:
        assert C2.check(_started(rollout, outcome)) == []


def _started(rollout: dict[str, Any], outcome: verl.VerlStartup) -> Started:
    return Started(
        starts=outcome.starts,
        explicit={name: value for name, value in rollout.items() if value is not UNSET},
        final=outcome.final,
        announced=frozenset(f.setting for f in outcome.findings if f.level == "changed"),
    )


def test_c2_unset_null_and_false_are_three_answers() -> None:
    """In front of 0.9.1's net: unset takes true, null trips the net yet leaves chunking on, false turns it off."""
    model = ModelShape(max_position_embeddings=4096, derived_max_model_len=4096)
    final = {
        show: verl.start({"name": "vllm", "enable_chunked_prefill": value}, model, release=MUTABLE)
        for show, value in (("unset", UNSET), ("null", None), ("false", False))
    }
    assert [final[show].final["enable_chunked_prefill"] for show in final] == [True, True, False]
    assert [{f.rule for f in o.findings} & {"null-chunking", "chunking-off"} for o in final.values()] == [
        set(),
        {"null-chunking"},
        {"chunking-off"},
    ]


# Planted faults: each invariant fails on a subject that breaks it.


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"after_tokens": 4096, "before_tokens": 8192, "context_tokens": 4096}, "lowered"),
        ({"backend": "sglang", "after_tokens": 32768}, "nothing called for it on sglang"),
        ({"chunking": True, "after_tokens": 32768}, "nothing called for it"),
        ({"after_tokens": 40960}, "not 32768"),
        ({"after_tokens": 8192}, "not 32768"),
        ({"after_tokens": 32768, "warnings": ["raised to 32768"]}, "names both"),
    ],
    ids=["lowers", "touches another backend", "ignores chunking", "raises too far", "does nothing", "half a warning"],
)
def test_c3_catches_planted_faults(fault: dict[str, Any], words: str) -> None:
    sound = Netted(
        backend="vllm",
        chunking=False,
        context_tokens=32768,
        before_tokens=8192,
        after_tokens=32768,
        warnings=["from 8192 to 32768"],
    )
    assert C3.check(sound) == []
    assert any(words in line for line in C3.check(msgspec.structs.replace(sound, **fault)))


def test_c3_catches_a_net_that_lowers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a net without its comparison sets the batch to the context, larger or not."""
    monkeypatch.setattr(verl, "safety_net", lambda _chunking, _batched, context, *, frozen: (context, []))  # noqa: ARG005
    pass_ = netted(MUTABLE, {"name": "vllm", "max_num_batched_tokens": 8192}, ModelShape(max_position_embeddings=4096))
    assert pass_ is not None
    assert any("lowered" in line for line in C3.check(pass_))


def test_c2_catches_the_false_that_verl_0_9_0_drops() -> None:
    """verl before 0.9.1 loses an explicit false; C2 holds only because preflight says so."""
    rollout = {"name": "vllm", "enable_chunked_prefill": False}
    model = ModelShape(max_position_embeddings=4096, derived_max_model_len=4096)
    told = _started(rollout, verl.start(rollout, model, release=verl.release_for((0, 9, 0))))
    assert C2.check(told) == []
    untold = msgspec.structs.replace(told, announced=frozenset())
    assert C2.check(untold) == ["enable_chunked_prefill was set to False and is True, with no word of it"]


def test_c1_catches_a_preflight_that_forgot_the_rule() -> None:
    refused = Started(starts=False, error="max_num_batched_tokens (8) is smaller than max_model_len (16)")
    assert C1.check(True, refused)
    assert C1.check(False, refused) == []
    assert C1.check(False, Started(starts=True))


# verl's own code.


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture(scope="module")
def own() -> SimpleNamespace:
    """The installed verl: its `_validate_configs`, its RolloutConfig, what its code does, and a log to read."""
    try:
        release = installed.release()
    except PreflightError:
        pytest.skip(
            "preflight is held against verl's _validate_configs where verl is installed (pip install '.[verl]')"
        )
    utils = pytest.importorskip("verl.workers.rollout.utils", reason="verl cannot be imported here")
    config = pytest.importorskip("verl.workers.config", reason="verl cannot be imported here")
    log, logger = _Log(), logging.getLogger("verl under test")
    logger.addHandler(log)
    logger.propagate = False
    positions = utils.get_max_position_embeddings
    validate = installed.validate_configs(get_max_position_embeddings=positions, logger=logger)
    return SimpleNamespace(release=release, validate=validate, RolloutConfig=config.RolloutConfig, log=log)


def _run(own: SimpleNamespace, config: Any, model: ModelShape) -> tuple[str, list[str]]:
    """verl's own validation of `config` in place: the name of what it raised, or nothing, and what it logged."""
    own.log.lines.clear()
    hf_config = SimpleNamespace(max_position_embeddings=model.max_position_embeddings)
    server = SimpleNamespace(config=config, model_config=SimpleNamespace(hf_config=hf_config))
    try:
        own.validate(server)
    except Exception as error:
        return type(error).__name__, list(own.log.lines)
    return "", list(own.log.lines)


@DRAWS
@given(drawn=rollouts())
def test_verls_own_validation_agrees(own: SimpleNamespace, drawn: tuple[dict[str, Any], ModelShape]) -> None:
    """On a config that may change: refusals, values and warning alike; and on a real RolloutConfig, frozen as it is."""
    rollout, model = {**drawn[0], "name": "vllm"}, drawn[1]
    mutable = msgspec.structs.replace(own.release, batch_is_frozen=False)
    values = verl.compose(rollout, mutable)

    loose = SimpleNamespace(**values)
    error, warnings = _run(own, loose, model)
    after, found = verl.validate(values, model, release=mutable, backend="vllm")
    assert bool(error) == any(f.level == "refused" for f in found), (error, found)
    if not error:
        assert (loose.max_model_len, loose.max_num_batched_tokens) == (
            after["max_model_len"],
            after["max_num_batched_tokens"],
        )
        assert bool(warnings) == any(f.rule == "batch-raised-to-context" for f in found)
        if own.release.has_net and values["max_num_batched_tokens"] is not None:
            seen = Netted(
                backend="vllm",
                chunking=bool(values["enable_chunked_prefill"]),
                context_tokens=loose.max_model_len,
                before_tokens=values["max_num_batched_tokens"],
                after_tokens=loose.max_num_batched_tokens,
                warnings=warnings,
            )
            assert C3.check(seen) == []

    strict = own.RolloutConfig(**values)
    error, _ = _run(own, strict, model)
    _, found = verl.validate(values, model, release=own.release, backend="vllm")
    ours = Started(starts=not error, error=error, explicit=rollout)
    assert C1.check(not any(f.level == "refused" for f in found), ours) == []
    assert (error == "FrozenInstanceError") == any(f.rule == "net-on-frozen-field" for f in found)


def test_startup_knows_every_argument_that_verl_forwards() -> None:
    assert set(verl.FORWARDED.values()) <= set(FLAGS)
    assert set(verl.FORWARDED) <= set(verl.ROLLOUT_DEFAULTS)
