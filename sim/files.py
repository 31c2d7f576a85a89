"""Files: one way to read them and one to write them.

What is read is a regular file, no longer than its reader can want: a pipe would never end, and a device might not. What
is written is there whole or not at all, and in the place of nothing that it should not touch.
"""

import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 64 * 2**20

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class FileError(ValueError):
    """A file that cannot be read or written: names it, and says why."""


def check_regular(path: Path, what: str = "a file") -> None:
    """Raises `FileError` unless there is a regular file, or a link to one; `what` is what is needed there."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        raise FileError(f"{path}: cannot be read: {_why(error)}") from None
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            raise FileError(f"{path}: is {kind}; {what} is needed")


def read_bytes(path: Path, what: str = "a file", most_bytes: int = MOST_BYTES) -> bytes:
    """What is in a file. Raises `FileError`."""
    check_regular(path, what)
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {_why(error)}") from None
    if len(data) > most_bytes:
        raise FileError(f"{path}: has more than {most_bytes:,} bytes; {what} has fewer")
    return data


def read_text(path: Path, what: str = "a file", most_bytes: int = MOST_BYTES) -> str:
    """As `read_bytes`, of UTF-8."""
    try:
        return read_bytes(path, what, most_bytes).decode()
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: is not UTF-8: {error.reason} at byte {error.start:,}") from None


def check_writable(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raises what `write_bytes` would: before the work whose result is to be written."""
    try:
        _mode_to_keep(path, inputs)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {_why(error)}") from None


def write_bytes(path: Path, data: bytes, inputs: Iterable[Path] = ()) -> None:
    """Writes a file under a temporary name in its folder, and renames it; one that is there keeps its mode.

    Raises `FileError` where it cannot be written, where there is a link or anything else than a regular file, and where
    it is one of the `inputs`.
    """
    try:
        mode = _mode_to_keep(path, inputs)
        temporary = path.with_name(f".{path.name[:64]}.{secrets.token_hex(4)}")  # mkstemp's are unreadable for others
        try:
            with temporary.open("xb") as file:
                file.write(data)
            if mode is not None:
                temporary.chmod(mode)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: cannot be written: {_why(error)}") from None


def write_text(path: Path, text: str, inputs: Iterable[Path] = ()) -> None:
    """As `write_bytes`, in UTF-8."""
    write_bytes(path, text.encode(errors="backslashreplace"), inputs)


def _mode_to_keep(path: Path, inputs: Iterable[Path]) -> int | None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):
        raise FileError(f"{path}: cannot be written: it is a link; name the file itself")
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            raise FileError(f"{path}: cannot be written: it is {kind}")
    for each in inputs:
        if each.exists() and path.samefile(each):
            raise FileError(f"{path}: cannot be written: it is read here; name another file")
    return stat.S_IMODE(mode)


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
