"""The unit of virtual time: whole nanoseconds."""

import math

NS_PER_S = 1_000_000_000


def to_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds, rounded to the nearest. NaN and infinity are a ValueError."""
    if not math.isfinite(seconds):
        raise ValueError(f"a virtual time must be a finite number of seconds, not {seconds!r}")
    return round(seconds * NS_PER_S)
