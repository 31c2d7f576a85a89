"""What tokens cost: from counts and KV depths to seconds of an engine.

How long a step takes is asked of `sim.engine.latency`, as the simulated engine does. A step's time is apportioned to
what it does at one working point, a batch and a mean depth, so that the cost of many tokens follows from two sums,
their number and their depths (`sim.waste.ledger.Tally`), whatever their order, and parts add up to the whole.
"""

import re
from pathlib import Path
from typing import NamedTuple

from sim.case import EngineSettings
from sim.engine.engine import StepTotals
from sim.engine.latency import FS_PER_NS, HARDWARE, MODELS, Affine, Constant, Fitted, Latency, Roofline
from sim.waste.ledger import Tally, Waste

_NS_PER_MS = 10**6
_FS_PER_S = 10**15
S_PER_HOUR = 3600
PREFILL_CHUNK_TOKENS = EngineSettings().max_num_batched_tokens
"""Tokens of prompts that a step computes beside what it decodes."""

KNOWN = (
    "constant:MS (a step takes MS milliseconds), affine:MS,NS (and NS nanoseconds more for each cached token that it "
    "reads), roofline:HARDWARE:MODEL or …:TENSOR_PARALLEL_SIZE, and a FILE.csv of measured steps (columns batch, "
    f"tokens, seconds); HARDWARE is one of {', '.join(HARDWARE)}, MODEL one of {', '.join(MODELS)}"
)


class LatencyError(ValueError):
    """A latency model that is not known: the message lists those that are."""


class Spelled(NamedTuple):
    """A latency model that the user named. `gpus`: how many it is about, where it says so."""

    latency: Latency
    about: str
    gpus: int | None = None


class Rates(NamedTuple):
    """What an engine's time is spent on, in seconds: for each token that it decodes, for each cached token that is read
    for that, and for each token of a prompt that it computes beside them."""

    token_s: float
    kv_token_s: float
    prefill_token_s: float

    def engine_s(self, some: Tally) -> float:
        """Of decoded tokens."""
        return some.tokens * self.token_s + some.kv_tokens * self.kv_token_s


def rates(latency: Latency, batch: int, depth_tokens: float) -> Rates:
    """Of an engine that decodes `batch` responses at once, `depth_tokens` deep on average.

    Exact for a time that is affine in the cached tokens; a roofline is taken as the tangent at this point.
    """
    kv_tokens = round(batch * depth_tokens)

    def step_fs(more_kv_tokens: int = 0, prefill_tokens: int = 0) -> int:
        kv = kv_tokens + more_kv_tokens + prefill_tokens
        return latency.stretch(StepTotals(batch + prefill_tokens, prefill_tokens, batch, kv)).first_fs

    whole_fs = step_fs()
    kv_token_fs = step_fs(more_kv_tokens=1) - whole_fs
    prefill_fs = step_fs(prefill_tokens=PREFILL_CHUNK_TOKENS) - whole_fs
    return Rates(
        (whole_fs - kv_tokens * kv_token_fs) / batch / _FS_PER_S,
        kv_token_fs / _FS_PER_S,
        prefill_fs / PREFILL_CHUNK_TOKENS / _FS_PER_S,
    )


class Price(NamedTuple):
    """How tokens become time, where the user named a latency model: `batch` responses decode at once."""

    latency: Latency
    batch: int
    gpus_per_replica: int | None

    def rates_of(self, waste: Waste) -> Rates:
        """At the mean depth of what was decoded."""
        return rates(self.latency, self.batch, waste.decoded.depth_tokens)

    def decoding_s(self, waste: Waste) -> float:
        return self.rates_of(waste).engine_s(waste.decoded)

    def again_s(self, waste: Waste) -> float:
        """Of what was prefilled again."""
        return self.rates_of(waste).prefill_token_s * waste.again_tokens


class Saving(NamedTuple):
    """What one ledger saves against another; less than nothing where it costs more. Seconds with a latency model."""

    decoded_tokens: int
    kept_tokens: int
    prefilled_again_tokens: int
    engine_s: float | None

    @staticmethod
    def of(base: Waste, waste: Waste, price: Price | None) -> "Saving":
        saved_s = None
        if price is not None:
            saved_s = price.decoding_s(base) + price.again_s(base) - price.decoding_s(waste) - price.again_s(waste)
        return Saving(
            base.decoded.tokens - waste.decoded.tokens,
            base.kept_tokens - waste.kept_tokens,
            base.again_tokens - waste.again_tokens,
            saved_s,
        )


def parse(text: str) -> Spelled:
    """One of `KNOWN`. Raises `LatencyError` that lists them, or says what is wrong with the file or the name."""
    kind, _, rest = text.partition(":")
    if Path(text).suffix.lower() == ".csv":
        return _fitted(Path(text))
    if kind == "roofline":
        return _roofline(text, rest.split(":"))
    try:
        numbers = [float(number) for number in rest.split(",")]
        if any(not 0 <= number < 1e9 for number in numbers) or numbers[0] == 0:
            raise ValueError
        if kind == "constant" and len(numbers) == 1:
            return Spelled(Constant(round(numbers[0] * _NS_PER_MS)), f"a step takes {numbers[0]:g} ms")
        if kind == "affine" and len(numbers) == 2:
            step_ms, kv_token_ns = numbers
            time = Affine(round(step_ms * _NS_PER_MS * FS_PER_NS), 0, round(kv_token_ns * FS_PER_NS))
            about = f"a step takes {step_ms:g} ms and {kv_token_ns:g} ns for each cached token"
            return Spelled(Fitted(time), about)
        raise ValueError
    except ValueError:
        bare = re.sub(r"(?<=\d)\s*[mn]s", "", text)
        guess = f"; did you mean {bare}?" if bare != text else ""
        raise LatencyError(f"--latency {text}: is not known; known are {KNOWN}{guess}") from None


def _fitted(path: Path) -> Spelled:
    try:
        fitted = Fitted.from_csv(path)
    except OSError as error:
        raise LatencyError(f"--latency {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise LatencyError(f"--latency {error}") from None
    return Spelled(fitted, f"fitted to {path}: {fitted}")


def _roofline(text: str, parts: list[str]) -> Spelled:
    try:
        hardware, model, *rest = parts
        gpus = int(rest[0]) if rest else 1
        if len(rest) > 1:
            raise ValueError
    except ValueError:
        raise LatencyError(
            f"--latency {text}: roofline:HARDWARE:MODEL or roofline:HARDWARE:MODEL:TENSOR_PARALLEL_SIZE is needed; "
            f"known are {KNOWN}"
        ) from None
    try:
        latency = Roofline(hardware, model, tensor_parallel_size=gpus)
    except ValueError as error:
        raise LatencyError(f"--latency {text}: {error}") from None
    return Spelled(latency, f"{model} on {gpus} × {hardware} at their peak, the least that it can take", gpus)
