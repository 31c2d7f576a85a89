"""Kinds of servers, by the name that Cases have for them.

`vllm`, `sglang` and `trtllm` are verl's servers in front of these engines; `plain-vllm` and `plain-sglang` the engines'
own.
"""

from sim.dialects.defaults import DefaultLimit, FixedLimit, LengthSettings, PromptAllowance, Room
from sim.dialects.dialect import Dialect, Grant, IllFormed, NoRoom, Outcome, Refused
from sim.dialects.limits import LIMIT_KEYS, MAX_NEW_TOKENS_KEY, MAX_TOKENS_KEY
from sim.dialects.sglang import PLAIN_SGLANG, SGLANG
from sim.dialects.trtllm import TRTLLM
from sim.dialects.vllm import PLAIN_VLLM, VLLM
from sim.records import check_record
from sim.registry import RegistrationError, Registry

DIALECTS: Registry[Dialect] = Registry("dialect")


def register_dialect(dialect: Dialect) -> Dialect:
    """Makes a dialect known, so that Cases can name it. Raises `RegistrationError` for a name that is taken, and for
    what cannot be a dialect."""
    named = f"dialect {getattr(dialect, 'name', '?')!r}"
    check_record(named, dialect, Dialect)
    for field in ("reserved_tokens", "least_grant"):
        if getattr(dialect, field) < 0:
            raise RegistrationError(f"{named}: {field} is {getattr(dialect, field)}; at least 0 is needed")
    lacking = [end for end in dialect.ends if end not in dialect.stop_reasons]
    if lacking:
        raise RegistrationError(
            f"{named}: stop_reasons lacks {', '.join(lacking)}; {', '.join(dialect.ends)} are needed"
        )
    return DIALECTS.add(dialect.name, dialect)


for _dialect in (VLLM, SGLANG, TRTLLM, PLAIN_VLLM, PLAIN_SGLANG):
    register_dialect(_dialect)

__all__ = [
    "DIALECTS",
    "LIMIT_KEYS",
    "MAX_NEW_TOKENS_KEY",
    "MAX_TOKENS_KEY",
    "DefaultLimit",
    "Dialect",
    "FixedLimit",
    "Grant",
    "IllFormed",
    "LengthSettings",
    "NoRoom",
    "Outcome",
    "PromptAllowance",
    "Refused",
    "Room",
    "register_dialect",
]
