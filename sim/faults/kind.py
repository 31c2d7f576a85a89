"""Whether a class can be a kind of fault: named in Cases, written, read and drawn with them, and able to act."""

import inspect
from typing import Any

import msgspec
from msgspec import inspect as kinds

from sim.faults.fault import Fault
from sim.registry import RegistrationError

_PLAIN = (
    kinds.IntType,
    kinds.FloatType,
    kinds.StrType,
    kinds.BoolType,
    kinds.NoneType,
    kinds.LiteralType,
    kinds.EnumType,
)


def checked_kind(fault: object) -> str:
    """The tag of a kind of fault. Raises `RegistrationError` that says what is wrong with it, and what is needed."""
    if not (isinstance(fault, type) and issubclass(fault, Fault)):
        raise RegistrationError(f"{fault!r} is no kind of fault: a subclass of Fault with a tag is needed")
    name, tag = fault.__name__, fault.__struct_config__.tag
    if not isinstance(tag, str) or tag == name:  # msgspec's own, where none is given
        raise RegistrationError(
            f'fault {name} has no tag of its own: class {name}(Fault, frozen=True, tag="its_name") is needed, with '
            f"another tag than the name of the class"
        )
    if not fault.__struct_config__.frozen:
        raise RegistrationError(f"fault {tag!r}: class {name} is not frozen: Cases are frozen data")
    if fault.act is Fault.act:
        raise RegistrationError(f"fault {tag!r}: class {name} has no act; async def act(self, stage) is needed")
    if not inspect.iscoroutinefunction(fault.act):
        raise RegistrationError(
            f"fault {tag!r}: act of class {name} is no async def; async def act(self, stage) is needed"
        )
    for field in msgspec.structs.fields(fault):
        _check_field(f"fault {tag!r}: field {field.name}", field)
    return tag


def _check_field(named: str, field: msgspec.structs.FieldInfo) -> None:
    try:
        fits = _is_plain(kinds.type_info(field.type))
    except TypeError:
        fits = False
    if not fits:
        raise RegistrationError(
            f"{named} is of type {_spelled(field.type)}, which a Case cannot hold; allowed are numbers, bool, str, "
            f"Literal, None, tuples of such, and frozen structs (sim.schema.Data)"
        )
    if field.default is not msgspec.NODEFAULT:
        try:
            msgspec.convert(msgspec.to_builtins(field.default), field.type)
        except msgspec.ValidationError as error:
            raise RegistrationError(f"{named} has the default {field.default!r}: {error}") from None


def _spelled(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)


def _is_plain(kind: kinds.Type) -> bool:
    """Whether values of that type are plain data that cannot change, the same once written and read."""
    match kind:
        case kinds.UnionType():
            return all(_is_plain(each) for each in kind.types)
        case kinds.VarTupleType():
            return _is_plain(kind.item_type)
        case kinds.TupleType():
            return all(_is_plain(each) for each in kind.item_types)
        case kinds.StructType():
            return kind.cls.__struct_config__.frozen and all(_is_plain(field.type) for field in kind.fields)
    return isinstance(kind, _PLAIN)
