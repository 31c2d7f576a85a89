"""How long a step takes. One small Protocol is the only way to ask.

A step takes a whole number of nanoseconds, so that a thousand steps one by one and a thousand at once come to the
same instant. The models count in femtoseconds, affine in the tokens and in the KV, and each step is rounded down to
the nanosecond; `Stretch.total_ns` adds up any number of rounded steps without walking over them.
"""

import csv
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from sim.engine.engine import StepTotals
from sim.files import check_regular

T = TypeVar("T")

FS_PER_NS = 10**6
_FS_PER_S = 10**15
BYTES_PER_VALUE = 2
CSV_COLUMNS = ("batch", "tokens", "seconds")


class Stretch(NamedTuple):
    """Steps that each take longer than the one before by the same amount: pure decode steps in one regime.

    Step i, counted from 0, takes ``(first_fs + i * growth_fs) // FS_PER_NS`` nanoseconds.
    """

    first_fs: int
    growth_fs: int = 0
    num_steps: int | None = None
    """For how many steps this holds while nothing but decoding happens; None: for ever."""

    @property
    def step_ns(self) -> int:
        """The time of the first step."""
        return self.first_fs // FS_PER_NS

    def total_ns(self, num_steps: int) -> int:
        """The time of the first steps together."""
        if not self.growth_fs:
            return num_steps * (self.first_fs // FS_PER_NS)
        return floor_sum(num_steps, FS_PER_NS, self.growth_fs, self.first_fs)

    def ended_steps(self, elapsed_ns: int, num_steps: int) -> int:
        """How many of the first num_steps have ended after a time."""
        return bisect_right(range(1, num_steps + 1), elapsed_ns, key=self.total_ns)


def floor_sum(count: int, divisor: int, slope: int, offset: int) -> int:
    """The sum of ``(slope * i + offset) // divisor`` for i from 0 to count - 1, for non-negative arguments.

    Counts lattice points under a line as Euclid's algorithm goes, so it takes a logarithmic number of rounds.
    """
    total = 0
    while count:
        total += count * (count - 1) // 2 * (slope // divisor) + count * (offset // divisor)
        slope, offset = slope % divisor, offset % divisor
        # What is left of the line rises to `top`; from here on the axes change places.
        top = slope * count + offset
        count, offset, divisor, slope = top // divisor, top % divisor, slope, divisor
    return total


class Latency(Protocol):
    """How long steps take on some hardware."""

    def stretch(self, totals: StepTotals) -> Stretch:
        """The time of a step with these totals and of those after it, as long as these only decode: as many requests
        a step, and the KV grows by one token for each. Where the step computes prompts it stands alone."""


class Constant(NamedTuple):
    """A step takes the time of a token, and `prefill_ns` more if it computes any prompt."""

    token_ns: int
    prefill_ns: int = 0

    def stretch(self, totals: StepTotals) -> Stretch:
        if totals.num_prefill_tokens:
            return Stretch((self.token_ns + self.prefill_ns) * FS_PER_NS, num_steps=1)
        return Stretch(self.token_ns * FS_PER_NS)


class Hardware(NamedTuple):
    """One accelerator, as its datasheet has it."""

    memory_bytes_per_s: int
    flops_per_s: int
    """Dense, bfloat16: without the factor 2 of structured sparsity that datasheets like to quote."""
    source: str


HARDWARE = {
    "A100-SXM-80GB": Hardware(
        2_039 * 10**9, 312 * 10**12, "NVIDIA A100 Tensor Core GPU datasheet: 2,039 GB/s, 624 TFLOPS with sparsity"
    ),
    "H100-SXM": Hardware(
        3_350 * 10**9, 989 * 10**12, "NVIDIA H100 Tensor Core GPU datasheet: 3.35 TB/s, 1,979 TFLOPS with sparsity"
    ),
    "H200-SXM": Hardware(
        4_800 * 10**9, 989 * 10**12, "NVIDIA H200 Tensor Core GPU datasheet: 4.8 TB/s, 1,979 TFLOPS with sparsity"
    ),
    "L40S": Hardware(864 * 10**9, 362_050 * 10**9, "NVIDIA L40S datasheet: 864 GB/s, 362.05 TFLOPS, 733 with sparsity"),
    "MI300X": Hardware(
        5_300 * 10**9, 1_307_400 * 10**9, "AMD Instinct MI300X accelerator data sheet: 5.3 TB/s, 1,307.4 TFLOPS"
    ),
}


class Model(NamedTuple):
    """A dense transformer with grouped-query attention in bfloat16; the names are those of its config.json."""

    num_parameters: int
    """As the shapes in its config.json make them: embeddings, attention, MLP and norms."""
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    source: str

    @property
    def weight_bytes(self) -> int:
        return BYTES_PER_VALUE * self.num_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * BYTES_PER_VALUE

    @property
    def flops_per_token(self) -> int:
        """A multiplication and an addition for each parameter."""
        return 2 * self.num_parameters

    @property
    def attention_flops_per_kv_token(self) -> int:
        """Of one query over one token of KV: the score and the weighted sum."""
        return 4 * self.num_hidden_layers * self.num_attention_heads * self.head_dim


MODELS = {
    "Qwen2.5-0.5B": Model(494_032_768, 24, 14, 2, 64, "config.json of Qwen/Qwen2.5-0.5B-Instruct"),
    "Qwen2.5-7B": Model(7_615_616_512, 28, 28, 4, 128, "config.json of Qwen/Qwen2.5-7B-Instruct"),
    "Qwen2.5-32B": Model(32_763_876_352, 64, 40, 8, 128, "config.json of Qwen/Qwen2.5-32B-Instruct"),
    "Llama-3.1-8B": Model(8_030_261_248, 32, 32, 8, 128, "config.json of meta-llama/Llama-3.1-8B-Instruct"),
    "Llama-3.1-70B": Model(70_553_706_496, 80, 64, 8, 128, "config.json of meta-llama/Llama-3.1-70B-Instruct"),
}


class Affine(NamedTuple):
    """A time that grows with the tokens that a step schedules and with the tokens in its KV, in femtoseconds."""

    fixed_fs: int
    scheduled_token_fs: int
    kv_token_fs: int

    def of(self, totals: StepTotals) -> int:
        return (
            self.fixed_fs
            + self.scheduled_token_fs * totals.num_scheduled_tokens
            + self.kv_token_fs * totals.num_kv_tokens
        )

    def growth(self, totals: StepTotals) -> int:
        """From one decode step to the next."""
        return self.kv_token_fs * totals.num_decodes


class Roofline:
    """A step takes the longer of moving its bytes (weights and KV) and doing its sums, and a fixed overhead.

    Attention is counted as one query a request over its KV, which is exact for decoding and less than a prompt costs.
    It is a bound that real engines come near to, not a measurement: for that there is `Fitted`.

    Raises:
        ValueError: an unknown name; the message lists the known ones.
    """

    def __init__(self, hardware: str, model: str, *, tensor_parallel_size: int = 1, overhead_ns: int = 0) -> None:
        chip = _named("hardware", hardware, HARDWARE)
        net = _named("model", model, MODELS)
        if tensor_parallel_size < 1:
            raise ValueError(f"tensor_parallel_size={tensor_parallel_size!r} is not possible: it must be at least 1")
        bytes_per_s = chip.memory_bytes_per_s * tensor_parallel_size
        flops_per_s = chip.flops_per_s * tensor_parallel_size
        self.overhead_fs = overhead_ns * FS_PER_NS
        self.memory = Affine(
            net.weight_bytes * _FS_PER_S // bytes_per_s, 0, net.kv_bytes_per_token * _FS_PER_S // bytes_per_s
        )
        self.compute = Affine(
            0,
            net.flops_per_token * _FS_PER_S // flops_per_s,
            net.attention_flops_per_kv_token * _FS_PER_S // flops_per_s,
        )

    def stretch(self, totals: StepTotals) -> Stretch:
        longer, shorter = self.memory, self.compute
        lead_fs = longer.of(totals) - shorter.of(totals)
        if lead_fs < 0:
            longer, shorter, lead_fs = shorter, longer, -lead_fs
        first_fs = self.overhead_fs + longer.of(totals)
        if totals.num_prefill_tokens:
            return Stretch(first_fs, num_steps=1)
        loss_fs = shorter.growth(totals) - longer.growth(totals)
        num_steps = lead_fs // loss_fs + 1 if loss_fs > 0 else None
        return Stretch(first_fs, longer.growth(totals), num_steps)


class Fitted:
    """A step takes what a user measured, fitted by an affine time with no negative part.

    The relative errors are kept small, not the absolute ones, so that short steps count as much as long ones.
    """

    def __init__(self, time: Affine, mean_error: float = 0.0, max_error: float = 0.0) -> None:
        self.time = time
        self.mean_error = mean_error
        """Of the fit at the measured steps, as a share of what was measured."""
        self.max_error = max_error

    @classmethod
    def from_csv(cls, path: Path) -> "Fitted":
        """From a CSV with the columns ``batch`` (tokens that the step schedules: one for each request that decodes),
        ``tokens`` (in the KV of all of them) and ``seconds``; other columns are ignored.

        Raises:
            ValueError: a column is missing, a value is no number of the right sign, or there are no rows.
        """
        check_regular(path, "a CSV of measured steps")
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            columns = rows.fieldnames or ()
            missing = [column for column in CSV_COLUMNS if column not in columns]
            if len(missing) == len(CSV_COLUMNS):
                raise ValueError(
                    f"{path}, line 1: is {','.join(columns)!r}; a header line that names the columns "
                    f"{', '.join(CSV_COLUMNS)} is needed"
                )
            if missing:
                raise ValueError(f"{path}: no column {', '.join(missing)}; needed are {', '.join(CSV_COLUMNS)}")
            measured = [_measured(path, rows.line_num, row) for row in rows]
        if not measured:
            raise ValueError(f"{path}: no measurements")
        return cls.from_measurements(measured)

    @classmethod
    def from_measurements(cls, measured: Sequence[tuple[float, float, float]]) -> "Fitted":
        """From (batch, tokens, seconds) of steps."""
        import numpy as np  # takes longer to import than all else here

        steps = np.array(measured, dtype=float)
        # Each row divided by its time: what is left to explain is a 1, and a residual is a relative error.
        terms = np.column_stack((np.ones(len(steps)), steps[:, 0], steps[:, 1])) / steps[:, 2:]
        best, best_residual = np.zeros(3), float("inf")
        for size in (1, 2, 3):
            for chosen in combinations(range(3), size):
                found = np.zeros(3)
                found[list(chosen)] = np.linalg.lstsq(terms[:, chosen], np.ones(len(steps)), rcond=None)[0]
                residual = float(((terms @ found - 1) ** 2).sum())
                if (found >= 0).all() and residual < best_residual:
                    best, best_residual = found, residual
        time = Affine(*(round(float(seconds) * _FS_PER_S) for seconds in best))
        errors = np.abs(terms @ best - 1)
        return cls(time, float(errors.mean()), float(errors.max()))

    def stretch(self, totals: StepTotals) -> Stretch:
        if totals.num_prefill_tokens:
            return Stretch(self.time.of(totals), num_steps=1)
        return Stretch(self.time.of(totals), self.time.growth(totals))

    def __str__(self) -> str:
        fixed, scheduled, kv = map(_spelled_fs, self.time)
        return (
            f"{fixed} a step + {scheduled} for each token that it computes + {kv} for each cached token; "
            f"off by {self.mean_error:.1%} on average, {self.max_error:.1%} at most"
        )


def _spelled_fs(fs: int) -> str:
    """With three digits, in the unit that suits it."""
    for unit, scale in (("s", _FS_PER_S), ("ms", _FS_PER_S // 1000), ("µs", 1000 * FS_PER_NS)):
        if fs >= scale:
            return f"{fs / scale:#.3g} {unit}".replace(". ", " ")
    return f"{fs / FS_PER_NS:.3g} ns"


def _measured(path: Path, line: int, row: Mapping[str, str]) -> tuple[float, float, float]:
    try:
        batch, tokens, seconds = (float(row[column]) for column in CSV_COLUMNS)
    except (TypeError, ValueError):
        raise ValueError(f"{path}, line {line}: {dict(row)} has a value that is no number") from None
    if not (batch >= 0 and tokens >= 0 and 0 < seconds < float("inf")):
        raise ValueError(f"{path}, line {line}: {dict(row)}: seconds must be above 0 and the others at least 0")
    return batch, tokens, seconds


def _named(what: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise ValueError(f"{what}={name!r} is unknown; known are {', '.join(known)}")
    return known[name]
