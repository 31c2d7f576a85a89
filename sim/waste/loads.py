"""Loads by name, and the kinds of files that hold one's own; `sim.waste.lengths` draws and reads them."""

from collections.abc import Mapping
from typing import NamedTuple

SUFFIXES = (".jsonl", ".csv", ".parquet")
DEFAULT_LOAD = "chat"
DEFAULT_COUNT = 1000


class Lognormal(NamedTuple):
    """Lengths whose logarithm is normally distributed."""

    mean_tokens: float
    sigma: float


class NamedLoad(NamedTuple):
    """A load by name, with the settings it is meant for, and lengths in tokens: drawn, or all the same. A prompt is
    shared by `group` responses."""

    about: str
    prompt_length: int
    response_length: int
    prompts: Lognormal | int
    responses: Lognormal | int
    turns: int = 1
    tool_tokens: int = 0
    group: int = 1
    never_stop: float = 0.0
    """Share of responses in which the model does not stop by itself."""


LOADS: Mapping[str, NamedLoad] = {
    "seed": NamedLoad("PR 7207: a prompt of 136, no stop", 2048, 8192, 136, 1, never_stop=1.0),
    "chat": NamedLoad("short answers, few of them cut", 2048, 8192, Lognormal(400, 0.6), Lognormal(2000, 0.9)),
    "reasoning": NamedLoad("long tail, up to 32k", 2048, 32_768, Lognormal(512, 0.5), Lognormal(9000, 1.0)),
    "groups": NamedLoad(
        "8 responses a prompt, one in 10 repeats itself for ever",
        1024,
        4096,
        Lognormal(300, 0.5),
        Lognormal(1200, 0.8),
        group=8,
        never_stop=0.1,
    ),
    "tools": NamedLoad(
        "three turns with a tool's 200 tokens between them",
        2048,
        8192,
        Lognormal(400, 0.6),
        Lognormal(1500, 0.8),
        3,
        200,
    ),
}
