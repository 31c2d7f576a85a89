"""What Cases are made of: ranges of values, strict frozen data, and JSON read with errors that a person can act on."""

import difflib
import functools
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, inspect

from sim.registry import FROM_PLUGINS

__all__ = [
    "MAX_REPEAT",
    "MAX_REPLICAS",
    "MAX_TIME_S",
    "MAX_TOKENS",
    "CaseError",
    "Data",
    "Index",
    "PositiveTokenCount",
    "Priority",
    "Seconds",
    "Seed",
    "TokenCount",
    "explained",
    "plain_json",
    "values_named",
]

MAX_TOKENS = 10_000_000
MAX_TIME_S = 1e7
MAX_REPLICAS = 1024
MAX_REPEAT = 1_000_000

TokenCount: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
PositiveTokenCount: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_TIME_S)]
Index: TypeAlias = Annotated[int, Meta(ge=0)]
Priority: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]

_SHOWN_CHARS = 60


class CaseError(ValueError):
    """A Case that cannot be: the message names the field, the value and what is allowed."""


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a Case: plain, frozen, and strict about what it is made from."""


def plain_json(text: str | bytes) -> Any:
    """The JSON without a schema; None where it is malformed further on, behind the value that was wrong."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def explained(error: msgspec.ValidationError, data: Any, kind: Any) -> str:
    """msgspec's message about `data`, with what it leaves out: the value at that path, and what may stand there."""
    if isinstance(error.__cause__, CaseError):
        return str(error.__cause__)
    message = str(error)
    path = re.search(r" - at `\$(.*)`$", message)
    steps = [] if path is None else re.findall(r"\.([^.\[]+)|\[(\d+)\]", path[1])
    here: Any = msgspec.inspect.type_info(kind)
    for name, number in steps:
        step = int(number) if number else name
        here = _inside(here, step, data)
        if not isinstance(data, dict | list) or (isinstance(data, dict) and step not in data):
            return message
        data = data[step]
    shown = repr(data) if isinstance(data, str | int | float | None) else type(data).__name__
    if len(shown) > _SHOWN_CHARS:
        shown = shown[:_SHOWN_CHARS] + "…"
    if message.startswith(("Invalid", "Object contains unknown")):
        return message + _hint(message, data, _allowed(here, data), steps[-1][0] if steps else "")
    return f"{message} (it is {shown})" if message.startswith("Expected") and steps else message


def _hint(message: str, data: Any, allowed: list[str], field: str) -> str:
    """What may stand in the place of an unknown name, and which of it may be meant."""
    if not allowed:
        return ""
    unknown = re.search(r"unknown field `(.*?)`", message)
    named = unknown[1] if unknown else str(data)
    close = difflib.get_close_matches(named, [each.strip("'") for each in allowed], n=1)
    guess = f"; did you mean {close[0]}?" if close else ""
    plugins = f"; {FROM_PLUGINS}" if field == "fault" else ""
    return f" (allowed are {', '.join(allowed)}{guess}{plugins})"


def values_named(kind: Any, data: Any, path: Sequence[str | int]) -> tuple[Any, ...]:
    """The values of a Literal field of this type, at a path in its data, as it has them; none for any other field."""
    here, field = _info(kind), path[-1]
    for step in path[:-1]:
        here, data = _inside(here, step, data), data[step]
    hints = [get_type_hints(each.cls).get(str(field)) for each in _structs(here, data)]
    return next((get_args(hint) for hint in hints if get_origin(hint) is Literal), ())


_info = functools.lru_cache(maxsize=4)(inspect.type_info)


def _options(here: Any) -> Any:
    """The types that a value may have: those of a union, or the one."""
    return here.types if isinstance(here, inspect.UnionType) else (here,)


def _structs(here: Any, data: Any) -> list[Any]:
    """The structs among a value's possible types; where its tag names one, that one alone."""
    structs = [option for option in _options(here) if isinstance(option, inspect.StructType)]
    named = [
        each for each in structs if isinstance(data, dict) and each.tag_field and data.get(each.tag_field) == each.tag
    ]
    return named or structs


def _inside(here: Any, step: str | int, data: Any) -> Any:
    """The type one step further down; None where that is not known."""
    if isinstance(step, int):
        for option in _options(here):
            if isinstance(option, inspect.VarTupleType):
                return option.item_type
            if isinstance(option, inspect.TupleType) and step < len(option.item_types):
                return option.item_types[step]
        return None
    structs = _structs(here, data)
    tags = [each.tag for each in structs if each.tag_field == step]
    if tags:
        return inspect.LiteralType(tuple(tags))
    return next((field.type for each in structs for field in each.fields if field.encode_name == step), None)


def _allowed(here: Any, data: Any) -> list[str]:
    """The values of a literal, or the fields of a struct."""
    values = [repr(value) for each in _options(here) if isinstance(each, inspect.LiteralType) for value in each.values]
    structs = _structs(here, data)
    return values or ([field.encode_name for field in structs[0].fields] if len(structs) == 1 else [])
