"""Scans a tree for launches: shell scripts, workflow files, YAML and JSON configs, each setting with file and line."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from sim.preflight import read_flags, read_shell, read_workflow, read_yaml
from sim.preflight.launch import Launch, PreflightError
from sim.preflight.read_shell import Fed, Reading

SHELL_SUFFIXES = frozenset((".sh", ".bash", ".env"))
YAML_SUFFIXES = frozenset((".yaml", ".yml", ".json"))
SKIPPED_DIRS = frozenset((".git", ".venv", "venv", "node_modules", "__pycache__", ".tox", "site-packages"))
FILE_BYTES_MAX = 1 << 20

_TELLING = re.compile(r"max[-_]model[-_]len|max[-_]num[-_](batched[-_]tokens|seqs)|chunked[-_]prefill", re.IGNORECASE)
_SWITCH = re.compile(r"(?:\w+_)?ENABLE_CHUNKED_PREFILL", re.IGNORECASE)
_OFF = frozenset(("false", "0"))


class Tree(msgspec.Struct, kw_only=True):
    """What lies in a tree: the launches, switches handed to scripts outside it, and what could not be read."""

    files_read: int = 0
    launches: list[Launch] = []
    unread: list[Fed] = []
    errors: list[str] = []


def scan(root: Path, env: Mapping[str, str]) -> Tree:
    """Reads every launch file under `root`. `env` answers `${oc.env:…}` in configs."""
    scripts: dict[str, tuple[str, str]] = {}
    documents: list[tuple[str, str]] = []
    for path in _files(root):
        text = _text(path)
        if text is None:
            continue
        relative = path.relative_to(root).as_posix()
        if path.suffix in YAML_SUFFIXES:
            documents.append((str(path), text))
        elif path.suffix in SHELL_SUFFIXES or re.match(r"#!.*\b(?:ba|z)?sh\b", text):
            scripts[relative] = (str(path), text)

    def find(called: str) -> tuple[str, str] | None:
        return _called(called, scripts)

    tree = Tree(files_read=len(scripts) + len(documents))
    reading = Reading()
    for file, text in scripts.values():
        read_shell.read_shell(text, file, find, reading=reading)
    for file, text in documents:
        # Anything may be YAML: only what speaks of these settings is worth an error, workflows excepted.
        if not _TELLING.search(text) and "jobs:" not in text:
            continue
        try:
            of_workflow = read_workflow.read_workflow(text, file, find)
            if of_workflow is None:
                reading.launches += read_yaml.read_yaml(text, file, env)
            else:
                _extend(reading, of_workflow)
        except PreflightError as error:
            reading.errors.append(str(error))
    tree.launches, tree.errors = reading.launches, sorted(set(reading.errors))
    tree.unread = [fed for fed in reading.unread if _SWITCH.fullmatch(fed.name) and fed.text.lower() in _OFF]
    return tree


def read_file(path: Path, env: Mapping[str, str]) -> Tree:
    """The launches of one file: a config, a workflow, a script, or a vLLM command line."""
    text = _text(path)
    if text is None:
        raise PreflightError(f"{path}: cannot be read as text of at most {FILE_BYTES_MAX} bytes")
    file = str(path)
    reading: Reading | None
    if path.suffix in YAML_SUFFIXES:
        reading = read_workflow.read_workflow(text, file, lambda _: None)
        if reading is None:
            reading = Reading(launches=read_yaml.read_yaml(text, file, env))
    elif text.lstrip().startswith("-"):
        reading = Reading(launches=[read_flags.read_vllm_command(text, file)])
    else:
        reading = read_shell.read_shell(text, file)
    if reading.errors:
        raise PreflightError(reading.errors[0])
    if not reading.launches:
        raise PreflightError(
            f"{file}: no engine setting found; expected a verl or vLLM config (YAML, JSON), "
            "a `vllm serve` command line, a launch script or a workflow"
        )
    return Tree(files_read=1, launches=reading.launches, unread=[], errors=[])


def _extend(into: Reading, other: Reading) -> None:
    into.launches += other.launches
    into.unread += other.unread
    into.errors += other.errors


def _files(root: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in SKIPPED_DIRS)
        for name in sorted(files):
            path = Path(directory, name)
            if path.suffix in SHELL_SUFFIXES | YAML_SUFFIXES or not path.suffix:
                yield path


def _text(path: Path) -> str | None:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _called(called: str, scripts: Mapping[str, tuple[str, str]]) -> tuple[str, str] | None:
    """The script a path means. The scan may begin above or below the directory the path is relative to."""
    wanted = called.removeprefix("./").lstrip("/")
    if wanted in scripts:
        return scripts[wanted]
    ends = [found for path, found in scripts.items() if wanted.endswith("/" + path) or path.endswith("/" + wanted)]
    return ends[0] if len(ends) == 1 else None
