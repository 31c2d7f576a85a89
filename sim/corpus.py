"""Cases on disk: what was found once, kept to be replayed on every version.

A corpus file is a JSON object: where the case comes from, the invariant that it is about, the case itself, and for
each SUT (by its key: a name, or name==version) the verdicts that it gives there (`sim.expected`). A bare case can be
read too.
"""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from sim.case import Case, loads, to_builtins
from sim.expected import Shown, as_plain, differences, from_plain, numbers_in, verdicts_of
from sim.files import FileError, read_bytes, write_text
from sim.invariants.table import INVARIANTS
from sim.reach import reach_of
from sim.schema import CaseError, explained, plain_json
from sim.sut.framework import Sut
from sim.sut.registry import CLEAN
from sim.verdicts import Judged, judged


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kept case. `expected`: for each SUT key what it shows there, nothing for a clean SUT."""

    origin: str = ""
    invariant: str | None = None
    expected: dict[str, list[Shown]] = {}
    case: Case
    format: Literal[1] = 1

    def __post_init__(self) -> None:
        named = [verdict.invariant for verdicts in self.expected.values() for verdict in verdicts]
        if self.invariant is not None:
            named.append(self.invariant)
        for number in named:
            if INVARIANTS.find(number) is None:
                raise CaseError(INVARIANTS.unknown(number))

    def numbers(self, sut_key: str) -> list[str] | None:
        """The invariants that a SUT is expected to violate; None where it has no verdict."""
        verdicts = self.expected.get(sut_key)
        return None if verdicts is None else numbers_in(verdicts)


class Replay(msgspec.Struct, frozen=True):
    """The outcome of an entry on a SUT. `expected` and `ok` are None where the entry has no verdict for it; `news`:
    what it then violates beyond what the known-good client is expected to; `differences`: how it is not as expected."""

    path: str
    sut: str
    expected: list[Shown] | None
    observed: list[Shown]
    ok: bool | None
    messages: list[str]
    news: list[Shown] = []
    differences: list[str] = []

    @property
    def passes(self) -> bool:
        """Whether it is as expected, or there is nothing to hold against it."""
        return self.ok is not False and not self.news

    @property
    def mark(self) -> str:
        """The outcome in a word."""
        if self.ok is None:
            return "NEW" if self.news else "-"
        if self.ok:
            return "ok"
        return "DIFFERS" if numbers_in(self.observed) else "fixed"


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An entry's own fields, around a case that is still to be read."""

    origin: str = ""
    invariant: str | None = None
    expected: dict[str, list[Shown | str]] = {}
    case: msgspec.Raw
    format: Literal[1] = 1


_envelope_decoder = msgspec.json.Decoder(_Envelope)


def read(path: Path) -> Entry:
    """The entry in a file, or the bare case in it. Raises `CaseError` that names file, path and what was expected."""
    try:
        text = read_bytes(path, "a case file")
    except FileError as error:
        raise CaseError(str(error)) from None
    try:
        try:
            envelope = _envelope_decoder.decode(text)
        except msgspec.ValidationError:
            fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            if "case" in fields:
                raise
            if "budget" not in fields and fields.keys() & {"origin", "invariant", "expected"}:
                raise CaseError(f"{path}: has no `case`; a kept case has its world there") from None
            bare = Entry(case=loads(text, str(path)))
            _check_names(path, text)
            return bare
        case = loads(bytes(envelope.case), f"{path}: case")
        _check_names(path, text)
    except msgspec.ValidationError as error:
        raise CaseError(f"{path}: {explained(error, plain_json(text), _Envelope)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CaseError(f"{path}: {error}{_place(str(error), text)}") from None
    try:
        expected = {sut: list(map(from_plain, verdicts)) for sut, verdicts in envelope.expected.items()}
        return Entry(origin=envelope.origin, invariant=envelope.invariant, expected=expected, case=case)
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None


def _check_names(path: Path, text: bytes) -> None:
    """Raises `CaseError` for a name that an object has twice: of its values only one would be read."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        for name, times in Counter(name for name, _ in pairs).items():
            if times > 1:
                raise CaseError(f"{path}: {name!r} is given {times} times in one object")

    json.loads(text, object_pairs_hook=once)


def _place(error: str, text: bytes) -> str:
    """Line and rest of the line where a parser that counts bytes gave up."""
    byte = re.search(r"\(byte (\d+)\)", error)
    if byte is None:
        return ""
    at = int(byte[1])
    shown = text[at:].split(b"\n", 1)[0][:20].decode("ascii", "backslashreplace")
    return f", line {text.count(10, 0, at) + 1}: {shown}" if shown.isprintable() else ""


def files(paths: Iterable[Path]) -> list[Path]:
    """The case files among `paths`, each once, directories standing for the .json files in them. Raises `CaseError`."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.json"))
            if not inside:
                raise CaseError(f"{path}: no .json files in this directory")
            found.extend(inside)
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def write(path: Path, entry: Entry) -> None:
    """Writes readable JSON, and the folder where it is missing. Raises `FileError`."""
    with suppress(OSError):  # which is said of the file
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, dumps(entry))


def dumps(entry: Entry) -> str:
    """The entry as readable JSON; values of the case at their defaults are left out."""
    fields: dict[str, Any] = {"format": entry.format, "origin": entry.origin, "invariant": entry.invariant}
    expected = {sut: list(map(as_plain, verdicts)) for sut, verdicts in entry.expected.items()}
    fields |= {"expected": expected, "case": to_builtins(entry.case)}
    return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode() + "\n"


def digest_of(case: Case) -> str:
    """A hash of the case, for a name."""
    return hashlib.blake2b(msgspec.json.encode(case), digest_size=16).hexdigest()


def keep(folder: Path, about: str, sut_key: str, entry: Entry) -> Path:
    """Writes what a search came upon into a folder, and returns where: a file that says as much already stays as it is,
    and one that says something else is not overwritten."""
    path = first = folder / file_name(about, sut_key, digest_of(entry.case))
    for number in itertools.count(2):
        if not path.exists():
            write(path, entry)
            return path
        if _says_as_much(path, entry):
            return path
        path = first.with_stem(f"{first.stem}-{number}")
    raise AssertionError("there are always more numbers")


def _says_as_much(path: Path, entry: Entry) -> bool:
    try:
        kept = read(path)
    except CaseError:
        return False
    same = (kept.case, kept.invariant) == (
        entry.case,
        entry.invariant,
    ) and entry.expected.items() <= kept.expected.items()
    return same and (bool(entry.expected) or kept.origin == entry.origin)


def file_name(invariant: str, sut_key: str, digest: str) -> str:
    """A name for a new find."""
    return f"{invariant}-{re.sub(r'[^A-Za-z0-9.=_-]+', '-', sut_key)}-{digest[:8]}.json"


def observed_in(run: Judged) -> list[Shown]:
    """What a run shows, as an entry keeps it."""
    return verdicts_of([*run.violations, *run.warnings], reach_of(run.case, run.sut.framework.callers).reach)


def replay(path: Path, entry: Entry, sut: Sut) -> Replay:
    """Runs an entry on a SUT and compares what it shows with what is expected."""
    run = judged(entry.case, sut)
    observed, expected = observed_in(run), entry.expected.get(sut.key)
    wrong = [] if expected is None else differences(expected, observed)
    usual = entry.numbers(CLEAN) or ()
    news = [
        each for each in observed if expected is None and each.severity == "violation" and each.invariant not in usual
    ]
    messages = dict.fromkeys(f"{violation.invariant}: {violation.message}" for violation in run.violations)
    ok = None if expected is None else not wrong
    return Replay(str(path), sut.key, expected, observed, ok, list(messages), news, wrong)


def accept(replays: Iterable[Replay]) -> list[Path]:
    """Writes what was observed into the case files, as what is expected of these SUTs; the files that changed."""
    changed: list[Path] = []
    for each in replays:
        path = Path(each.path)
        entry = read(path)
        if entry.expected.get(each.sut) != each.observed:
            expected = {**entry.expected, each.sut: each.observed}
            write(path, msgspec.structs.replace(entry, expected=dict(sorted(expected.items()))))
            changed.append(path)
    return list(dict.fromkeys(changed))
