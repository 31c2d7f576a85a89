"""Shrinking what Hypothesis leaves: the world by its parts, and the schedule.

Hypothesis shrinks the draws, and gives up when two hundred attempts in a row bring nothing; what hangs together in a
case (a session, the faults that name it, their indexes) it can only take apart by luck. So the case itself is then
taken apart, session by session, fault by fault, setting by setting.

Then: which deviations from FIFO does the violation need? None needed means that it is no race. First delta debugging
(ddmin, IEEE Transactions on Software Engineering 28(2), 2002) on the deviations of the run that failed. A deviation is
a step's number, though, and leaving one out moves all later ones, so ddmin ends at lists that no single removal
improves. Most races need one or two deviations (the small depth that PCT counts on), so those are then tried at every
step of the FIFO run.
"""

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import msgspec

from sim.case import Case, Schedule, convert, layout, to_builtins
from sim.clock import Chooser, Fifo
from sim.reach import FEATURES, as_stock, is_farther, reach_of
from sim.schema import CaseError, values_named
from sim.sut.framework import Sut
from sim.world import World

Fails = Callable[[Case], bool]
Deviations = tuple[tuple[int, int], ...]

MOST_RUNS = 400
"""Worlds that each of the three ways may cost."""

_LOW = 4

NOBODYS: Mapping[str, bool] = MappingProxyType(dict.fromkeys([feature.name for feature in FEATURES], True))
"""Of callers of whom nothing is known: whatever a case has, they may bring about."""


def shrink_world(case: Case, fails: Fails, callers: Mapping[str, bool] = NOBODYS) -> Case:
    """The case without what it does not need: greedily, each part in turn, until none can be spared. First what the
    framework's own callers (`Framework.callers`) never bring about; nothing brings that back."""
    case = _nearer(case, fails, callers)
    reach, runs = reach_of(case, callers).reach, 0
    spared = True
    while spared and runs < MOST_RUNS:
        spared = False
        number = 0
        candidates = _smaller(case)
        while runs < MOST_RUNS and (smaller := next(candidates, None)) is not None:
            runs += 1
            if not is_farther(reach_of(smaller, callers).reach, reach) and fails(smaller):
                case, spared = smaller, True
                candidates = itertools.islice(_smaller(case), number, None)  # the next part now has this one's number
            else:
                number += 1
    return case


def _nearer(case: Case, fails: Fails, callers: Mapping[str, bool]) -> Case:
    """The case without the features that put it beyond stock, all of them if it can be, else one after the other."""
    stock = as_stock(case, callers)
    if stock == case or fails(stock):
        return stock
    for feature in reversed(FEATURES):
        if not callers.get(feature.name, False) and feature.has(case) and fails(without := feature.without(case)):
            case = without
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Every case that is smaller by one part and can be."""
    data = to_builtins(case)
    yield from _more_usual(data)
    for index in range(len(case.sessions)):
        yield from _valid(_without_session(data, index))
    for index in range(case.replicas):
        yield from _valid(_without_replica(data, index))
    for path in _paths(data):
        if path[0] not in ("format", "schedule"):
            for changed in _reduced(data, path):
                if _fixed(changed) == _fixed(data):
                    yield from _valid(changed)


_FIXED = ("dialect", "face", "max_parked_s")
"""Of the servers: what a search was asked for, and what an adapter has fixed."""


def _fixed(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.get("server", {}).items() if key in _FIXED}


_SETTINGS = ("server", "router", "transport", "repeat", "max_concurrent_sessions")
_SETTINGS_OF = {
    "sessions": ("shares_params_with", "shares_prompt_with", "priority"),
    "faults": ("reset_prefix_cache", "pause_mode"),
}


def _more_usual(data: dict[str, Any]) -> Iterator[Case]:
    """The case with a setting at its default, those of sessions and faults in all of them at once: what is left is
    quicker to take apart."""
    for field in _SETTINGS:
        if field in data and (kept := _fixed(data) if field == "server" else {}) != data[field]:
            yield from _valid({**_without(data, field), **({field: kept} if kept else {})})
    for part, fields in _SETTINGS_OF.items():
        for field in fields:
            if any(field in each for each in data.get(part, ())):
                yield from _valid({**data, part: [_without(each, field) for each in data[part]]})


def _without(data: dict[str, Any], field: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != field}


def _valid(data: Any) -> Iterator[Case]:
    with suppress(CaseError, msgspec.ValidationError):
        yield convert(data)  # from_builtins takes longer to explain what is wrong than a world runs


def _without_session(data: dict[str, Any], gone: int) -> dict[str, Any]:
    def moved(value: Any) -> Any:
        """The same indexes for the sessions that are left; None for what names the one that is gone."""
        out = dict(value)
        for key in ("session", "shares_params_with", "shares_prompt_with"):
            if out.get(key) is not None:
                if out[key] == gone and key == "session":
                    return None
                out[key] = None if out[key] == gone else out[key] - (out[key] > gone)
        if "at" in out:
            out["at"] = moved(out["at"])
        return None if "at" in out and out["at"] is None else out

    sessions = [moved(session) for index, session in enumerate(data["sessions"]) if index != gone]
    faults = [fault for fault in map(moved, data.get("faults", ())) if fault is not None]
    return {**data, "sessions": sessions, "faults": faults}


def _without_replica(data: dict[str, Any], gone: int) -> dict[str, Any]:
    """Faults of the one that is gone are those of the first that is left."""

    def moved(fault: Any) -> Any:
        out = dict(fault)
        if isinstance(out.get("replica"), int):
            out["replica"] = max(0, out["replica"] - (out["replica"] >= gone))
        if isinstance(out.get("replicas"), list):
            out["replicas"] = sorted({max(0, each - (each >= gone)) for each in out["replicas"]})
        return out

    return {**data, "replicas": data.get("replicas", 1) - 1, "faults": [moved(each) for each in data.get("faults", ())]}


Path = tuple[Any, ...]


def _paths(data: Any, prefix: Path = ()) -> Iterator[Path]:
    """Where the values are, outer ones first."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield (*prefix, key)
        yield from _paths(value, (*prefix, key))


def _reduced(data: Any, path: Path) -> Iterator[Any]:
    """The data without the value at `path`, and with smaller ones in its place."""

    def put(*new: Any) -> Any:
        changed = msgspec.json.decode(msgspec.json.encode(data))
        inner = functools.reduce(lambda inside, key: inside[key], path[:-1], changed)
        if new:
            inner[path[-1]] = new[0]
        else:
            del inner[path[-1]]
        return changed

    value = functools.reduce(lambda inside, key: inside[key], path, data)
    if isinstance(path[-1], str) or value not in ([], {}, None):
        yield put()
    if isinstance(value, int | float) and not isinstance(value, bool):
        size, sign = abs(value), -1 if value < 0 else 1
        lower = dict.fromkeys((0, 1, size // 2, size - 1))
        yield from (put(type(value)(sign * number)) for number in lower if 0 <= number < size)
    if isinstance(value, str):
        named = values_named(layout(), data, path)
        shorter = (
            named[: named.index(value)] if value in named else ("", value[: len(value) // 2], value[:-1], value[1:])
        )
        yield from (put(text) for text in dict.fromkeys(shorter) if text != value)


def with_schedule(case: Case, schedule: Schedule) -> Case:
    """The same world under another schedule."""
    return msgspec.structs.replace(case, schedule=schedule)


def shrink_schedule(case: Case, sut: Sut, fails: Fails) -> Case:
    """The case with FIFO if it fails so too, else with as few explicit deviations as could be found."""
    fifo = with_schedule(case, Schedule())
    if case.schedule == fifo.schedule or fails(fifo):
        return fifo

    def explicit(deviations: Deviations) -> Case:
        return with_schedule(case, Schedule("explicit", deviations=deviations))

    def deviations_fail(deviations: Deviations) -> bool:
        return fails(explicit(deviations))

    failing = World(case, sut)
    failing.run()
    recorded: Deviations = tuple((deviation.step, deviation.pick) for deviation in failing.deviations)
    if not deviations_fail(recorded):
        return case
    fewest = _ddmin(recorded, deviations_fail)
    if len(fewest) > 1:
        tries = _few(_choices(fifo, sut), len(fewest), case.seed)
        fewest = next((few for few in itertools.islice(tries, MOST_RUNS) if deviations_fail(few)), fewest)
    # A pick past the end took the last in line, and one where nothing else was ready is none: what really happened.
    kept = World(explicit(_low_picks(fewest, deviations_fail)), sut)
    kept.run()
    really = explicit(tuple((deviation.step, deviation.pick) for deviation in kept.deviations))
    return really if fails(really) else kept.case


def _ddmin(items: Deviations, fails: Callable[[Deviations], bool]) -> Deviations:
    runs = 0
    parts = 2
    while len(items) >= 2 and runs < MOST_RUNS:
        size = max(1, len(items) // parts)
        for start in range(0, len(items), size):
            rest = items[:start] + items[start + size :]
            runs += 1
            if fails(rest):
                items, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(items), parts * 2)
    return items


class _Widths(Fifo):
    """FIFO that notes where there was a choice."""

    def __init__(self) -> None:
        self.choices: list[tuple[int, int]] = []

    def chooser(self) -> Chooser:
        def first(step: int, ready: Sequence[Any]) -> int:
            self.choices.extend((step, pick) for pick in range(1, len(ready)))
            return 0

        return first


def _choices(fifo: Case, sut: Sut) -> list[tuple[int, int]]:
    """Every deviation that the FIFO run could have taken."""
    widths = _Widths()
    World(fifo, sut, widths).run()
    return widths.choices


def _few(choices: list[tuple[int, int]], fewer_than: int, seed: int) -> Iterator[Deviations]:
    """Each choice alone, then two at random, as long as that is fewer than there are already."""
    yield from ((choice,) for choice in choices[: MOST_RUNS // 2])
    draw = random.Random(seed)
    while fewer_than > 2 and len(choices) > 1:
        first, second = sorted(draw.sample(choices, 2))
        if first[0] != second[0]:
            yield first, second


def _low_picks(items: Deviations, fails: Callable[[Deviations], bool]) -> Deviations:
    """Each pick as the next in line where that is enough."""
    for index, (step, pick) in enumerate(items):
        for lower in range(1, min(pick, _LOW)):
            tried = (*items[:index], (step, lower), *items[index + 1 :])
            if fails(tried):
                items = tried
                break
    return items
