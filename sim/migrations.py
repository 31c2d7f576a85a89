"""Case files of earlier formats: each step writes out what a format's defaults were, so that a case keeps its meaning.

The number of the format is raised when a default changes or a field means something else. A new optional field needs
no new format: an older file that lacks it says what it always said.
"""

from collections.abc import Callable
from typing import Any

from sim.schema import CaseError

FORMAT = 1
"""Of the JSON layout that is written."""

MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From a format to the next one: a case as plain JSON to another that means the same there."""


def migrated(data: dict[str, Any]) -> dict[str, Any]:
    """A case as plain JSON in today's format. Raises `CaseError` for a format that is not known, and for what is so far
    from a case that a step cannot be taken."""
    number = data.get("format", FORMAT)
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise CaseError(f"format is {number!r}: this version of rollcage reads the formats 1 to {FORMAT}")
    for step in range(number, FORMAT):
        try:
            data = {**MIGRATIONS[step](data), "format": step + 1}
        except (LookupError, TypeError, AttributeError, ValueError) as error:  # nobody has checked it so far
            raise CaseError(f"this is no case of format {step}: {type(error).__name__}: {error}") from error
    return data
