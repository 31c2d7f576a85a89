"""What tokens cost: from counts and KV depths to seconds of an engine.

The only way to ask for a time is `DecodeLatency`. It is affine in what it is given, so that the cost of many tokens
follows from two sums, their number and their depths (`sim.waste.ledger.Tally`), whatever their order.
"""

import re
from dataclasses import dataclass
from typing import Protocol

from sim.waste.ledger import Tally

NS_PER_S = 1_000_000_000
PS_PER_NS = 1000


class DecodeLatency(Protocol):
    """How long an engine takes for a step in which it only decodes."""

    def decode_ns(self, requests: int, kv_tokens: int) -> int:
        """One step: `requests` decode a token each, over `kv_tokens` cached tokens in all. Affine in both."""


class LatencyError(ValueError):
    """A latency model that is not known: the message lists those that are."""


@dataclass(frozen=True)
class Affine:
    """`step_ns` whatever the batch (reading the weights), and `kv_token_ps` for each cached token that is read."""

    step_ns: int
    kv_token_ps: int = 0

    def decode_ns(self, requests: int, kv_tokens: int) -> int:
        del requests
        return self.step_ns + kv_tokens * self.kv_token_ps // PS_PER_NS


def engine_s(latency: DecodeLatency, batch: int, some: Tally) -> float:
    """Seconds of one engine that these tokens cost when each was decoded in a step of `batch` requests.

    A token's cost is its share of the step, 1 / batch of what does not depend on depth, and the reading of its own
    KV entries.
    """
    if not some.tokens:
        return 0.0
    shared_ns = latency.decode_ns(batch, 0)
    own_ns = latency.decode_ns(batch, some.kv_tokens) - shared_ns
    return (shared_ns / batch * some.tokens + own_ns) / NS_PER_S


def parse(text: str) -> DecodeLatency:
    """`constant:MS` or `affine:MS,NS`: milliseconds a step, and nanoseconds for each cached token read."""
    kind, _, rest = text.partition(":")
    try:
        numbers = [float(number) for number in rest.split(",")]
        if any(not 0 <= number < 1e9 for number in numbers) or numbers[0] == 0:
            raise ValueError
        if kind == "constant" and len(numbers) == 1:
            return Affine(round(numbers[0] * 1e6))
        if kind == "affine" and len(numbers) == 2:
            return Affine(round(numbers[0] * 1e6), round(numbers[1] * PS_PER_NS))
        raise ValueError
    except ValueError:
        bare = re.sub(r"(?<=\d)\s*[mn]s", "", text)
        raise LatencyError(
            f"--latency {text}: known are constant:MS (a step takes MS milliseconds) and affine:MS,NS (and NS "
            f"nanoseconds more for each cached token that it reads)"
            + (f"; did you mean {bare}?" if bare != text else "")
        ) from None
