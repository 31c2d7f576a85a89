"""How long prompts and responses are: a user's own pairs from a file, or a named load.

Drawn lengths are evenly spaced quantiles in a shuffled order, so that a small load has its tail too, and that the
same seed gives the same load with every version of every library.
"""

import csv
import json
import math
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.files import FileError, check_regular
from sim.schema import MAX_TOKENS
from sim.waste.loads import LOADS, SUFFIXES, Lognormal

NEVER = 2 * MAX_TOKENS
"""A response length that no response reaches: the model does not stop by itself."""

PROMPT_COLUMNS = ("prompt_tokens", "prompt_length", "prompt_len", "input_tokens", "prompt")
RESPONSE_COLUMNS = ("response_tokens", "response_length", "response_len", "output_tokens", "response")


class LengthsError(ValueError):
    """Lengths that cannot be used: the message names the file or setting, what is in it and what is allowed."""


@dataclass(frozen=True)
class Lengths:
    """The lengths of a load in tokens. `responses` has a column a turn, `NEVER` where the model does not stop.

    `tool_tokens`, `tool_time_s`: what a tool answers between two turns. `note`: what a reader of results must know.
    `group`: so many in a row share one prompt.
    """

    prompts: NDArray[np.int64]
    responses: NDArray[np.int64]
    tool_tokens: int = 0
    tool_time_s: float = 0.0
    note: str = ""
    group: int = 1

    def __post_init__(self) -> None:
        assert self.responses.shape[0] == len(self.prompts) > 0, "a load has as many responses as prompts"

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def turns(self) -> int:
        return int(self.responses.shape[1])


# NamedLoad loads


def drawn(tokens: Lognormal | int, count: int, seed: int, most: int) -> NDArray[np.int64]:
    """`count` lengths between 1 and `most`: evenly spaced quantiles of a distribution, shuffled; or all the same."""
    if isinstance(tokens, int):
        return np.full(count, min(most, tokens))
    logarithm = NormalDist(math.log(tokens.mean_tokens) - tokens.sigma**2 / 2, tokens.sigma)
    quantiles = (math.exp(logarithm.inv_cdf((i + 0.5) / count)) for i in range(count))
    values = [min(most, max(1, round(quantile))) for quantile in quantiles]
    random.Random(seed).shuffle(values)
    return np.array(values, dtype=np.int64)


def named(name: str, count: int, seed: int, *, most_prompt: int) -> Lengths:
    """A named load of `count` responses. Raises `LengthsError` that lists the known names."""
    load = LOADS.get(name)
    if load is None:
        raise LengthsError(f"{name!r} is neither a file nor a named load; known are {', '.join(LOADS)}")
    groups = -(-count // load.group)
    prompts = np.repeat(drawn(load.prompts, groups, seed, most_prompt), load.group)[:count]
    columns = []
    for turn in range(load.turns):
        lengths = drawn(load.responses, count, seed + 1 + turn, MAX_TOKENS)
        endless = round(load.never_stop * count)
        places = random.Random(seed + 101 + turn).sample(range(count), endless)
        lengths[places] = NEVER
        columns.append(lengths)
    return Lengths(
        prompts, np.stack(columns, axis=1), load.tool_tokens, 1.0 if load.turns > 1 else 0.0, group=load.group
    )


# Files


def read(path: Path, response_length: int) -> Lengths:
    """A user's own pairs. Raises `LengthsError` that names the file, the line and what was expected.

    A response of exactly `response_length` tokens was cut: how far the model would have gone on is not in the file,
    and it is taken not to stop. So is one whose length is null.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise LengthsError(f"{path}: {path.suffix or 'no suffix'} is not known; {', '.join(SUFFIXES)} are")
    try:
        check_regular(path, "a file of lengths")
        pairs = [_pair(each, f"{path}:{line}") for line, each in reader(path)]
    except FileError as error:
        raise LengthsError(str(error)) from None
    except OSError as error:
        raise LengthsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LengthsError(f"{path}: is not UTF-8 text") from None
    if not pairs:
        raise LengthsError(f"{path}: holds no pairs of lengths")
    prompts, responses = np.array(pairs, dtype=np.int64).T
    cut = (responses == response_length) | (responses == 0)
    note = ""
    if cut.any():
        responses[cut] = NEVER
        note = (
            f"{int(cut.sum())} of {len(pairs)} responses reach response_length ({response_length}) or have no length: "
            f"they are treated as cut off there, that is, as never stopping on their own"
        )
    return Lengths(prompts, responses[:, None], note=note)


def fitting(load: Lengths, most_prompt: int, name: str) -> Lengths:
    """The load without the prompts beyond `most_prompt`, as verl's data loader leaves them out."""
    fits = load.prompts <= most_prompt
    left_out = int((~fits).sum())
    if not left_out:
        return load
    if left_out == len(load):
        raise LengthsError(f"{name}: every prompt is longer than {most_prompt} tokens (prompt_length, max_model_len)")
    note = f"{left_out} of {len(load)} prompts are longer than {most_prompt} and left out"
    notes = f"{load.note}; {note}" if load.note else note
    return replace(load, prompts=load.prompts[fits], responses=load.responses[fits], note=notes)


def resized(load: Lengths, count: int, seed: int) -> Lengths:
    """`count` responses of a load: all of it as often as it goes in, and for the rest a draw without repetition."""
    order = [index for _ in range(count // len(load)) for index in range(len(load))]
    order += random.Random(seed).sample(range(len(load)), count % len(load))
    return replace(load, prompts=load.prompts[order], responses=load.responses[order])


def _lines(path: Path) -> Iterable[tuple[int, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except json.JSONDecodeError as error:
                    raise LengthsError(
                        f"{path}:{number}: {line.strip()[:60]!r} is not JSON ({error.msg}); each line is an object "
                        f'like {{"prompt_tokens": 136, "response_tokens": 8192}}, or a pair [136, 8192]'
                    ) from None


def _rows(path: Path) -> Iterable[tuple[int, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        columns = rows.fieldnames
        if columns is not None and not all(set(columns) & set(names) for names in (PROMPT_COLUMNS, RESPONSE_COLUMNS)):
            raise LengthsError(
                f"{path}:1: is {','.join(columns)!r}; a header line with a column for prompts ("
                f"{', '.join(PROMPT_COLUMNS)}) and one for responses ({', '.join(RESPONSE_COLUMNS)}) is needed, with "
                f"commas between them"
            )
        yield from enumerate(rows, 2)


def _columns(path: Path) -> Iterable[tuple[int, Any]]:
    try:
        from pyarrow import parquet
        from pyarrow.lib import ArrowException
    except ImportError:
        raise LengthsError(
            f"{path}: Parquet needs pyarrow, which is not installed: pip install pyarrow, or give JSONL or CSV"
        ) from None
    try:
        wanted = [name for name in parquet.read_schema(path).names if name in PROMPT_COLUMNS + RESPONSE_COLUMNS]
        rows = parquet.read_table(path, columns=wanted).to_pylist()
    except ArrowException as error:
        raise LengthsError(f"{path}: not a readable Parquet file: {error}") from None
    yield from enumerate(rows, 1)


_READERS: dict[str, Callable[[Path], Iterable[tuple[int, Any]]]] = {
    ".jsonl": _lines,
    ".csv": _rows,
    ".parquet": _columns,
}


def _pair(row: Any, where: str) -> tuple[int, int]:
    """(prompt, response) in tokens; a response that is null or empty counts as 0."""
    if isinstance(row, list) and len(row) == 2:
        prompt, response = row
    elif isinstance(row, dict):
        prompt, response = (_one_of(names, row, where) for names in (PROMPT_COLUMNS, RESPONSE_COLUMNS))
    else:
        raise LengthsError(f"{where}: {row!r} is neither an object nor a pair [prompt, response]")
    return _tokens(prompt, "prompt", where, least=1), _tokens(response, "response", where, least=0)


def _one_of(names: tuple[str, ...], row: dict[str, Any], where: str) -> Any:
    name = next((name for name in names if name in row), None)
    if name is None:
        has = ", ".join(str(key) for key in row) or "nothing"
        raise LengthsError(f"{where}: has {has}; one of {', '.join(names)} is needed")
    return row[name]


def _tokens(value: Any, what: str, where: str, *, least: int) -> int:
    if value is None or value == "":
        value = 0
    if isinstance(value, str) and re.fullmatch(r"\s*\d+(\.0*)?\s*", value):
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not least <= value <= MAX_TOKENS:
        raise LengthsError(
            f"{where}: the {what} is {value!r}; a number of tokens from {least} to {MAX_TOKENS} is needed"
        )
    return value
