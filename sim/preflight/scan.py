"""Scans a tree for launches: shell scripts, workflow files, YAML and JSON configs, each setting with file and line."""

import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from sim.files import FileError, read_text
from sim.preflight import read_flags, read_shell, read_workflow, read_yaml
from sim.preflight.launch import PreflightError, Reading

SHELL_SUFFIXES = frozenset((".sh", ".bash", ".env"))
YAML_SUFFIXES = frozenset((".yaml", ".yml", ".json"))
SKIPPED_DIRS = frozenset((".git", ".venv", "venv", "node_modules", "__pycache__", ".tox", "site-packages"))
FILE_BYTES_MAX = 1 << 20

_TELLING = re.compile(r"max[-_]model[-_]len|max[-_]num[-_](batched[-_]tokens|seqs)|chunked[-_]prefill", re.IGNORECASE)
_SWITCH = re.compile(r"(?:\w+_)?ENABLE_CHUNKED_PREFILL", re.IGNORECASE)
_OFF = frozenset(("false", "0"))


def scan(root: Path, env: Mapping[str, str]) -> Reading:
    """Reads every launch file under `root`. `env` answers `${oc.env:…}` in configs.

    Of what is handed to scripts outside the tree only switches of chunked prefill that are off are kept.
    """
    scripts: dict[str, tuple[str, str]] = {}
    documents: list[tuple[str, str]] = []
    for path in _files(root):
        text = _text(path)
        if text is None:
            continue
        if path.suffix in YAML_SUFFIXES:
            documents.append((str(path), text))
        elif path.suffix in SHELL_SUFFIXES or re.match(r"#!.*\b(?:ba|z)?sh\b", text):
            scripts[path.relative_to(root).as_posix()] = (str(path), text)

    def find(called: str) -> tuple[str, str] | None:
        return _called(called, scripts)

    reading = Reading()
    for file, text in scripts.values():
        read_shell.read_shell(text, file, find, reading=reading)
    for file, text in documents:
        # Anything may be YAML: only what speaks of these settings is worth an error, workflows excepted.
        if not _TELLING.search(text) and "jobs:" not in text:
            continue
        try:
            read = _read_document(text, file, find, env)
        except PreflightError as error:
            reading.errors.append(str(error))
        else:
            reading.launches += read.launches
            reading.unread += read.unread
            reading.errors += read.errors
    unread = [fed for fed in reading.unread if _SWITCH.fullmatch(fed.name) and fed.text.lower() in _OFF]
    return Reading(reading.launches, unread, sorted(set(reading.errors)))


def read_file(path: Path, env: Mapping[str, str]) -> Reading:
    """The launches of one file: a config, a workflow, a script, or a vLLM command line."""
    text = _text(path)
    if text is None:
        raise PreflightError(f"{path}: cannot be read as text of at most {FILE_BYTES_MAX} bytes")
    file = str(path)
    if path.suffix in YAML_SUFFIXES:
        reading = _read_document(text, file, partial(_beside, path), env)
    elif text.lstrip().startswith("-"):
        reading = Reading([read_flags.read_vllm_command(text, file)])
    else:
        reading = read_shell.read_shell(text, file, partial(_beside, path))
    if reading.errors:
        raise PreflightError(reading.errors[0])
    if not reading.launches:
        raise PreflightError(
            f"{file}: no engine setting found; expected a verl or vLLM config (YAML, JSON), "
            "a `vllm serve` command line, a launch script or a workflow"
        )
    return Reading(reading.launches)


def _read_document(text: str, file: str, find: read_shell.FindScript, env: Mapping[str, str]) -> Reading:
    of_workflow = read_workflow.read_workflow(text, file, find)
    return Reading(read_yaml.read_yaml(text, file, env)) if of_workflow is None else of_workflow


def _files(root: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in SKIPPED_DIRS)
        for name in sorted(files):
            path = Path(directory, name)
            if path.suffix in SHELL_SUFFIXES | YAML_SUFFIXES or not path.suffix:
                yield path


def _text(path: Path) -> str | None:
    try:
        return read_text(path, most_bytes=FILE_BYTES_MAX)
    except FileError:
        return None


def _beside(caller: Path, called: str) -> tuple[str, str] | None:
    """The script that a path means in a file: from the file's folder, the working directory, or one above the file."""
    relative = called.removeprefix("./")
    for folder in (caller.parent, Path(), *caller.resolve().parents):
        path = folder / relative
        text = _text(path) if path.is_file() else None
        if text is not None:
            return str(path), text
    return None


def _called(called: str, scripts: Mapping[str, tuple[str, str]]) -> tuple[str, str] | None:
    """The script a path means. The scan may begin above or below the directory the path is relative to."""
    wanted = called.removeprefix("./").lstrip("/")
    if wanted in scripts:
        return scripts[wanted]
    ends = [found for path, found in scripts.items() if wanted.endswith("/" + path) or path.endswith("/" + wanted)]
    return ends[0] if len(ends) == 1 else None
