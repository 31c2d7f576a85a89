"""Waivers: violations of a SUT that a project has decided to live with, each shown by a case and given a reason.

```toml
[[waiver]]
invariant = "R1"
sut = "mine:build"
case = "found/R1-mine-build-0a1b2c3d.json"   # relative to this file
reason = "random on purpose"
```
"""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from sim import corpus
from sim.files import FileError, read_text
from sim.invariants.table import INVARIANTS
from sim.sut.framework import Sut
from sim.verdicts import judged


class WaiverError(ValueError):
    """A file of waivers that cannot be used: the message says what is wrong and what is needed."""


@dataclass(frozen=True)
class Waiver:
    """A violation of `invariant` by `sut` (its name or key), shown by `case`, and why it is waived."""

    invariant: str
    sut: str
    case: Path
    reason: str

    def is_about(self, sut: Sut) -> bool:
        return self.sut in (sut.name, sut.key)

    def shows(self, sut: Sut) -> set[tuple[str, str]]:
        """What its case still shows on a SUT, as number and what it is about; empty where the waiver is of no use any
        more."""
        violations = judged(corpus.read(self.case).case, sut, (self.invariant,)).violations
        return {(each.invariant, each.about) for each in violations}


def read_waivers(path: Path) -> list[Waiver]:
    """The waivers in a file. Raises `WaiverError`."""
    try:
        data = tomllib.loads(read_text(path, "a file of waivers"))
    except FileError as error:
        raise WaiverError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise WaiverError(f"{path}: cannot be read: {error}") from None
    entries = data.get("waiver", [])
    if set(data) - {"waiver"} or not isinstance(entries, list):
        raise WaiverError(f"{path}: tables [[waiver]] are needed, and nothing else (found {', '.join(data) or 'none'})")
    return [_waiver(path, number, entry) for number, entry in enumerate(entries)]


def _waiver(path: Path, number: int, entry: object) -> Waiver:
    where, needed = f"{path}: waiver {number}", {field.name for field in fields(Waiver)}
    if not isinstance(entry, dict) or set(entry) != needed:
        has = ", ".join(entry) if isinstance(entry, dict) else repr(entry)
        raise WaiverError(f"{where} has {has}; {', '.join(sorted(needed))} are needed")
    for key, value in entry.items():
        if not isinstance(value, str) or not value.strip():
            raise WaiverError(f"{where}: {key} is {value!r}; a text is needed")
    if entry["invariant"] not in INVARIANTS:
        raise WaiverError(f"{where}: {INVARIANTS.unknown(entry['invariant'])}")
    case = path.parent / entry["case"]
    if not case.is_file():
        raise WaiverError(f"{where}: there is no case {case}")
    return Waiver(entry["invariant"], entry["sut"], case, entry["reason"])
