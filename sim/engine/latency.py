"""How long a step takes. One small Protocol is the only way to ask.

A step takes a whole number of nanoseconds, so that a thousand steps one by one and a thousand at once come to the
same instant. The models count in femtoseconds, affine in the tokens and in the KV, and each step is rounded down to
the nanosecond; `Stretch.total_ns` adds up any number of rounded steps without walking over them.
"""

from bisect import bisect_right
from typing import NamedTuple, Protocol

from sim.engine.engine import StepTotals

FS_PER_NS = 10**6


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
