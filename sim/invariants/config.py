"""C1–C3: what must hold between a configuration, preflight's answer, and the engine that starts or does not."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine, or verl in front of it, did with a configuration.

    `explicit`: the settings somebody wrote, null and false included, unset ones absent. `final`: the values in force.
    `announced`: the settings that were changed with a warning or a finding.
    """

    starts: bool
    error: str = ""
    explicit: Mapping[str, Any] = {}
    final: Mapping[str, Any] = {}
    announced: frozenset[str] = frozenset()


class Netted(msgspec.Struct, frozen=True, kw_only=True):
    """One pass of the safety net. `warnings` are the lines it logged; `chunking` is truth as the net reads it."""

    backend: str
    chunking: bool
    context_tokens: int
    before_tokens: int
    after_tokens: int
    warnings: Sequence[str]


class StartupInvariant(msgspec.Struct, frozen=True):
    """A numbered statement and its check, which returns the violations as sentences."""

    number: str
    statement: str
    check: Callable[..., list[str]]


def _c1(preflight_accepts: bool, engine: Started) -> list[str]:
    if preflight_accepts == engine.starts:
        return []
    if engine.starts:
        return [f"preflight refuses {dict(engine.explicit)}, which starts"]
    return [f"preflight accepts {dict(engine.explicit)}, which is refused: {engine.error}"]


def _c2(engine: Started) -> list[str]:
    return [
        f"{name} was set to {value!r} and is {engine.final[name]!r}, with no word of it"
        for name, value in engine.explicit.items()
        if value is not None
        and name in engine.final
        and engine.final[name] is not UNSET
        and engine.final[name] != value
        and name not in engine.announced
    ]


def _c3(net: Netted) -> list[str]:
    needed = net.backend == "vllm" and not net.chunking and net.before_tokens < net.context_tokens
    expected = net.context_tokens if needed else net.before_tokens
    wrong = []
    if net.after_tokens < net.before_tokens:
        wrong.append(f"max_num_batched_tokens was lowered from {net.before_tokens} to {net.after_tokens}")
    if net.after_tokens != expected:
        why = "chunked prefill is off and it is too small" if needed else f"nothing called for it on {net.backend}"
        wrong.append(f"max_num_batched_tokens became {net.after_tokens}, not {expected}: {why}")
    if needed and not any(str(net.before_tokens) in w and str(net.context_tokens) in w for w in net.warnings):
        wrong.append(f"no warning names both {net.before_tokens} and {net.context_tokens}")
    if not needed and net.warnings:
        wrong.append(f"a warning without a change: {net.warnings[0]}")
    return wrong


C1 = StartupInvariant("C1", "Preflight accepts a configuration if and only if the engine starts with it.", _c1)
C2 = StartupInvariant(
    "C2", "An explicit value survives or its change is announced; unset, null and false stay apart.", _c2
)
C3 = StartupInvariant(
    "C3",
    "The safety net raises max_num_batched_tokens only where chunked prefill is off and it is below max_model_len, to "
    "exactly max_model_len, with a warning that names both, and touches no other backend.",
    _c3,
)
INVARIANTS = (C1, C2, C3)
