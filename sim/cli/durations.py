"""How durations are spelled on the command line, and what one may have meant who spelled one otherwise."""

import math
import re
from typing import Any

import click

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPELLED = {
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]+)")


def seconds_of(text: str) -> float | None:
    """The seconds that a number with a unit stands for (`1m`, `500 ms`, `2 hours`); None where it is none."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        return None
    scale = _UNITS_S.get(_SPELLED.get(match[2], match[2]))
    return None if scale is None else float(match[1]) * scale


class Seconds(click.FloatRange):
    """An option in seconds, which is a number without a unit."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        meant_s = seconds_of(value) if isinstance(value, str) else None
        if meant_s is not None:
            self.fail(f"{value!r} is not a number of seconds; did you mean {meant_s:.12g}?", param, ctx)
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):  # no range keeps it out
            self.fail("nan is not a time", param, ctx)
        return seconds
