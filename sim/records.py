"""What a project hands in, held against the types of the record that it fills in, before anything relies on it."""

import collections.abc
import dataclasses
import reprlib
import typing
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from sim.registry import RegistrationError

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


def check_record(what: str, record: object, kind: type[Any]) -> None:
    """Whether it is a record of that kind, with values that its fields can have. Raises `RegistrationError` that names
    the field, the value and what is allowed. `what`: what it is called, such as `dialect 'vllm'`."""
    if not isinstance(record, kind):
        raise RegistrationError(f"{what} is {_short.repr(record)}; a {kind.__name__} is needed")
    _check_fields(what, "", record, kind)


def _check_fields(what: str, path: str, record: object, kind: type[Any]) -> None:
    for name, hint in get_type_hints(kind).items():
        value = getattr(record, name)
        if dataclasses.is_dataclass(hint) and isinstance(value, typing.cast("type[Any]", hint)):
            _check_fields(what, f"{path}{name}.", value, typing.cast("type[Any]", hint))
        elif not _fits(value, hint):
            raise RegistrationError(f"{what}: {path}{name} is {_short.repr(value)}; {_wanted(hint)} is needed")


def _fits(value: object, hint: Any) -> bool:
    if _is_function(hint):
        return callable(value)
    if _is_protocol(hint):
        return all(callable(getattr(value, method, None)) for method in _methods(hint))
    if dataclasses.is_dataclass(hint):
        return False
    try:
        msgspec.convert(dict(value) if isinstance(value, Mapping) else value, hint)
    except msgspec.ValidationError:
        return False
    return not (get_origin(hint) is tuple and not isinstance(value, tuple))


def _is_function(hint: Any) -> bool:
    return get_origin(hint) is collections.abc.Callable or (_is_protocol(hint) and "__call__" in vars(hint))


def _is_protocol(hint: Any) -> bool:
    return isinstance(hint, type) and getattr(hint, "_is_protocol", False)


def _methods(protocol: Any) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]


def _wanted(hint: Any) -> str:
    """What may stand there, in words."""
    if _is_function(hint):
        return "a function"
    if _is_protocol(hint):
        return f"an object with the methods {', '.join(_methods(hint))}"
    if get_origin(hint) is Literal:
        return " or ".join(repr(value) for value in get_args(hint))
    if isinstance(hint, type) and not get_args(hint):
        return f"a value of type {hint.__name__}"
    spelled = str(hint).replace("typing.", "").replace("collections.abc.", "")
    return f"a value of type {spelled}"
