"""Token ids and log probabilities as runs: sequences that cost as much for a thousand tokens as for one.

The fake model's ids count up, and so do its log probabilities in their way, so that what a request brings is one run,
or one for each weight version. A client that does no more to its tokens than one does to a sequence may ask for them
in this form (`sim.sut.interface.Client`); others are given lists.
"""

import math
import operator
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, Self, TypeAlias, TypeVar, overload

Ids = tuple[tuple[int, int], ...]
"""Token ids as runs of consecutive ids: (first id, count)."""

LogProbRuns = tuple[tuple[int, int, int] | tuple[str, int], ...]
"""Log probabilities as runs: (position, count, version) of those that encode it, (text, count) of any other value."""

SESSION_STRIDE = 1 << 24
"""Token ids of one session, more than any context holds: an id says whose it is and where it stands."""


def first_token(session: int) -> int:
    """The id of the token at position 0 of a session."""
    return (session + 1) * SESSION_STRIDE


def session_of(token_id: int) -> int:
    """The session that a token id belongs to."""
    return operator.index(token_id) // SESSION_STRIDE - 1


T = TypeVar("T", int, float)
R = TypeVar("R", bound=tuple[int, ...])


class _InRuns(Sequence[T], Generic[T, R]):
    """Immutable. Joined with ``+``, also with a list; cut with a slice."""

    __slots__ = ("_length", "runs")

    def __init__(self, runs: tuple[R, ...] = ()) -> None:
        self.runs = runs
        """In order; the second entry of each is its length."""
        self._length = runs[0][1] if len(runs) == 1 else sum([run[1] for run in runs])

    @staticmethod
    @abstractmethod
    def _items(run: R) -> Sequence[T]:
        """What a run stands for."""

    @staticmethod
    @abstractmethod
    def _cut(run: R, start: int, length: int) -> R: ...

    @staticmethod
    @abstractmethod
    def _joined(left: R, right: R) -> R | None:
        """One run for two, where that is possible."""

    @classmethod
    @abstractmethod
    def _from(cls, items: Iterable[T]) -> Self: ...

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for run in self.runs:
            yield from self._items(run)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> "Self | list[T]": ...
    def __getitem__(self, index: int | slice) -> "T | Self | list[T]":
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self._slice(start, stop) if step == 1 else list(self)[index]
        place = operator.index(index)
        if place < 0:
            place += self._length
        if not 0 <= place < self._length:
            raise IndexError(f"index {index} of {self._length} tokens")
        starts = [0, *accumulate(run[1] for run in self.runs)] if len(self.runs) > 1 else [0]
        number = bisect_right(starts, place) - 1
        return self._items(self._cut(self.runs[number], place - starts[number], 1))[0]

    def _slice(self, start: int, stop: int) -> Self:
        runs: list[R] = []
        for run in self.runs:
            if stop <= 0:
                break
            length = run[1]
            if start < length:
                first, end = max(0, start), min(length, stop)
                if first < end:
                    runs.append(run if end - first == length else self._cut(run, first, end - first))
            start, stop = start - length, stop - length
        return type(self)(tuple(runs))

    def __add__(self, other: Iterable[T]) -> Self:
        right: Self = other if type(other) is type(self) else self._from(other)
        if not self._length:
            return right
        if not right._length:
            return self
        joined = self._joined(self.runs[-1], right.runs[0])
        if joined is None:
            return type(self)(self.runs + right.runs)
        return type(self)((*self.runs[:-1], joined, *right.runs[1:]))

    def __radd__(self, other: list[T]) -> Self:
        return self._from(other) + self if other else self

    def __eq__(self, other: object) -> bool:
        if type(other) is type(self):
            return self.runs == other.runs or list(self) == list(other)
        return list(self) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.runs!r})"


class TokenIds(_InRuns[int, tuple[int, int]]):
    """Token ids; a run is (first id, count)."""

    __slots__ = ()

    @classmethod
    def counting_from(cls, first: int, count: int) -> Self:
        return cls(((first, count),) if count else ())

    def as_range(self) -> range | None:
        """The ids as a range, if they are one run."""
        return self._items(self.runs[0]) if len(self.runs) == 1 else None

    @staticmethod
    def _items(run: tuple[int, int]) -> range:
        return range(run[0], run[0] + run[1])

    @staticmethod
    def _cut(run: tuple[int, int], start: int, length: int) -> tuple[int, int]:
        return run[0] + start, length

    @staticmethod
    def _joined(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int] | None:
        return (left[0], left[1] + right[1]) if sum(left) == right[0] else None

    @classmethod
    def _from(cls, items: Iterable[int]) -> Self:
        return cls(ids_as_runs(items))


class LogProbs(_InRuns[float, tuple[int, int, int]]):
    """Log probabilities that encode the position and the weight version of their tokens, exactly; a run is (position,
    count, version)."""

    __slots__ = ()

    @staticmethod
    def _items(run: tuple[int, int, int]) -> list[float]:
        position, count, version = run
        offset = -version / 1024 - 1 / 2048
        return [offset - each for each in range(position, position + count)]

    @staticmethod
    def _cut(run: tuple[int, int, int], start: int, length: int) -> tuple[int, int, int]:
        return run[0] + start, length, run[2]

    @staticmethod
    def _joined(left: tuple[int, int, int], right: tuple[int, int, int]) -> tuple[int, int, int] | None:
        goes_on = left[0] + left[1] == right[0] and left[2] == right[2]
        return (left[0], left[1] + right[1], left[2]) if goes_on else None

    @classmethod
    def _from(cls, items: Iterable[float]) -> Self:
        if not list(items):  # what `output.log_probs or []` makes of an answer without tokens
            return cls()
        raise TypeError(f"log probabilities in runs are joined with such alone, not with {type(items).__name__}")


Tokens: TypeAlias = list[int] | TokenIds


def plain_ids(ids: Sequence[int]) -> Sequence[int]:
    """Token ids as a range where they are consecutive, as nearly all are; a TypeError if one is no integer. What is in
    runs stays so."""
    if type(ids) is TokenIds:
        return ids.as_range() or ids
    consecutive = range(operator.index(ids[0]), operator.index(ids[0]) + len(ids))
    if ids[-1] == consecutive[-1] and list(ids) == list(consecutive):
        return consecutive
    return [operator.index(token_id) for token_id in ids]


def ids_as_runs(ids: Iterable[int]) -> Ids:
    """Token ids as runs of consecutive ids."""
    if type(ids) is TokenIds:
        return ids.runs
    if isinstance(ids, range) and ids.step == 1:
        return ((ids.start, len(ids)),) if ids else ()
    runs: list[tuple[int, int]] = []
    ids = list(ids)
    start = 0
    count = len(ids)
    while start < count:
        first = operator.index(ids[start])
        # A response is nearly always one run: try the whole rest before looking token by token.
        if ids[-1] - first == count - 1 - start and ids[start:] == list(range(first, first + count - start)):
            runs.append((first, count - start))
            break
        end = start + 1
        while end < count and ids[end] == first + end - start:
            end += 1
        runs.append((first, end - start))
        start = end
    return tuple(runs)


_VERSIONS = 1024
"""How many weight versions a log probability can tell apart: that of version 1024 at a position is that of version 0 at
the next."""

_MOST_RUNS = 256
"""That are kept of the log probabilities of one response; what comes behind them is one run more."""

_MOST_TEXT = 24


def log_probs_as_runs(log_probs: Iterable[Any]) -> LogProbRuns:
    """What a client returned as log probabilities, as runs, none of which goes on in the next. Versions are below 1024:
    see `as_told`."""
    runs: list[Any] = []
    if type(log_probs) is LogProbs:
        for run in log_probs.runs:
            _append(runs, as_told(run))
        return tuple(runs)
    values = log_probs.tolist() if hasattr(log_probs, "tolist") else list(log_probs)
    start, count = 0, len(values)
    while start < count and len(runs) <= _MOST_RUNS:
        end = start + 1
        encoded = _encoded(values[start])
        if encoded is None:
            _append(runs, (_spelled(values[start]), 1))
        else:
            # A response is nearly always one run: try the whole rest before looking value by value.
            position, version = encoded
            if values[start:] == LogProbs._items((position, count - start, version)):
                end = count
            while end < count and _encoded(values[end]) == (position + end - start, version):
                end += 1
            _append(runs, (position, end - start, version))
        start = end
    if start < count:
        runs.append(("…", count - start))
    return tuple(runs)


def as_told(run: tuple[int, int, int]) -> tuple[int, int, int]:
    """A run of (position, count, version) as its log probabilities tell it."""
    position, count, version = run
    return run if version < _VERSIONS else (position + version // _VERSIONS, count, version % _VERSIONS)


def _append(runs: list[Any], run: Any) -> None:
    """Adds a run, in the last one where it goes on with that."""
    if runs and len(runs[-1]) == len(run):
        last = runs[-1]
        if len(run) == 2 and last[0] == run[0]:
            runs[-1] = (last[0], last[1] + run[1])
            return
        if len(run) == 3 and last[2] == run[2] and last[0] + last[1] == run[0]:
            runs[-1] = (last[0], last[1] + run[1], last[2])
            return
    runs.append(run)


def _encoded(value: Any) -> tuple[int, int] | None:
    """The position and the version that a log probability encodes; None where it is none of the fake model's."""
    if not isinstance(value, float) or not math.isfinite(value):
        return None
    place = -value * _VERSIONS - 0.5
    return divmod(int(place), _VERSIONS) if place >= 0 and place.is_integer() else None


def _spelled(value: Any) -> str:
    """A value as text that is the same in every process."""
    plain = value is None or isinstance(value, int | float | str)
    return repr(value)[:_MOST_TEXT] if plain else type(value).__name__
