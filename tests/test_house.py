"""The plan of the house, held against the syntax trees: who may import, name and touch what.

Each test gathers everything that is wrong before it fails, so that one run shows the whole list.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FLOORS = (
    ("clock", "tokens", "files"),
    ("engine", "startup", "net"),
    ("schema", "registry", "records", "migrations", "policies", "dialects", "faults"),
    ("settings",),
    ("case",),
    ("events", "trace", "ledger", "budget"),
    ("servers", "transport"),
    ("sut",),
    ("face",),
    ("world",),
    ("invariants",),
    ("reach",),
    ("elsewhere", "verdicts", "expected", "corpus", "search"),
    ("preflight",),
    ("waste",),
    ("report",),
    ("testing", "cli", "plugins"),
)
"""The rooms of sim/ (folders, or files of its root), lowest first. A room imports from its own floor and from below."""

MOST_LINES = 420
"""Of a file of sim/."""

LONGER = {
    "sim/engine/engine.py": "a step and its two halves, which share all of their state",
    "sim/engine/scheduler.py": "one pass of vLLM's scheduler, in the order of its own",
}
"""Files that are longer, with the reason."""

FOREIGN_PRIVATES = {
    "sim/clock/": {
        "_args",
        "_callback",
        "_cancelled",
        "_eid",
        "_getframe",
        "_inst",
        "_log_destroy_pending",
        "_now",
        "_queue",
        "_run",
        "_set_running_loop",
    },
    "sim/elsewhere/": {"_exit"},
}
"""Underscore names of CPython and SimPy, by the room that may use them."""

NAMEDTUPLE_METHODS = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}

VERLS_ROOMS = ("sim/sut/", "sim/preflight/", "sim/waste/read_verl.py")
"""Where verl may be named: its adapter, and the readers of its own config files. Who imports from one of these says the
name of what is imported, and no more."""

SAME_AS_VERLS = {"sim/face/sglang.py": {"/pause_generation", "abort_all_requests"}}
"""Names of another's that verl has too, by the file that uses them: SGLang's routes and fields."""

MAY_SPEAK_OF_VERL = ("sim/cli/",)
"""Where a sentence for a reader may give verl as an example."""

VERLS_NAMES = re.compile(
    r"\b("
    # its balancer's messages
    r"acquire_server|release_server|add_servers|remove_servers|clear_sticky_cache|get_total_inflight|get_status"
    r"|require_acquire_fields|require_release_fields"
    # what its trainer tells its servers
    r"|abort_all_requests|resume_generation|set_global_steps|pause_generation"
    # its config, and what its answers carry
    r"|actor_rollout_ref|async_training|full_determinism|min_global_steps|max_global_steps|global_steps"
    r")\b"
)

SAME_CLASS_NAME: dict[str, str] = {}
"""Class names that two modules of sim/ may share, with the reason."""


def python_files(*folders: str) -> list[Path]:
    """The files under these folders, except tests."""
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    return sorted(file for file in files if not file.name.startswith("test_"))


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    """All nodes in the order of their lines."""
    return sorted(ast.walk(tree_of(file)), key=lambda node: getattr(node, "lineno", 0))


def shown(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def module_name(file: Path) -> str:
    """`sim/case.py` → `sim.case`, `sim/engine/__init__.py` → `sim.engine`."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SIM = python_files("sim")
MODULES = {module_name(file): file for file in SIM}


@cache
def imports(file: Path) -> dict[str, int]:
    """The modules of sim that a file imports, in functions and under TYPE_CHECKING too, with the first line."""
    found: dict[str, int] = {}
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            dotted = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else str(node.module) for name in dotted]
        else:
            continue
        for name in names:
            if is_ours(name):
                found.setdefault(name, node.lineno)
    return found


def is_ours(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == "sim"


def fail_with(wrong: list[str]) -> None:
    """Fails with all that is wrong, where anything is."""
    if wrong:
        pytest.fail(f"{len(wrong)} wrong:\n" + "\n".join(wrong), pytrace=False)


def test_no_arrow_of_imports_runs_up():
    floor_of = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
    wrong = []
    for name, file in MODULES.items():
        if name == "sim":
            wrong += [f"{shown(file)}:{line} sim itself imports {other}" for other, line in imports(file).items()]
        elif room_of(name) not in floor_of:
            wrong.append(f"{shown(file)}: its room is on no floor")
        else:
            floor = floor_of[room_of(name)]
            wrong += [
                f"{shown(file)}:{line} {room_of(name)} imports {other}, which is on a floor above it"
                for other, line in imports(file).items()
                if floor_of.get(room_of(other), -1) > floor
            ]
    fail_with(wrong)


def room_of(module: str) -> str:
    """`sim.engine.scheduler` → `engine`; empty for sim itself, whose `__init__` is no room."""
    return module.split(".")[1] if "." in module else ""


def test_no_circle_of_imports():
    arrows = {name: set(imports(file)) - {name} for name, file in MODULES.items()}
    wrong = []
    while True:
        try:
            TopologicalSorter(arrows).prepare()
        except CycleError as error:
            circle = error.args[1]
            wrong.append(" ← ".join(circle))
            arrows[circle[1]].discard(circle[0])  # to find the next one
        else:
            break
    fail_with(wrong)


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__")) and name != "_"


def defined_in(tree: ast.Module) -> set[str]:
    """The underscore names that a module makes: functions, classes, variables, fields, slots."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def allowed_privates(file: Path) -> set[str]:
    foreign = [names for room, names in FOREIGN_PRIVATES.items() if shown(file).startswith(room)]
    return NAMEDTUPLE_METHODS.union(*foreign)


def test_nothing_uses_an_underscore_name_of_another_module():
    wrong = []
    for file in python_files("sim", "gpu_checks", "properties", "docs"):
        known = defined_in(tree_of(file)) | allowed_privates(file)
        for node in nodes_of(file):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in known:
                wrong.append(f"{shown(file)}:{node.lineno} {ast.unparse(node)}")
            elif isinstance(node, ast.ImportFrom):
                taken = [alias.name for alias in node.names if is_private(alias.name)]
                private_modules = [part for part in (node.module or "").split(".") if is_private(part)]
                wrong += [f"{shown(file)}:{node.lineno} from {node.module} import {each}" for each in taken]
                wrong += [f"{shown(file)}:{node.lineno} from {node.module}" for _ in private_modules]
    fail_with(wrong)


def test_no_allowance_is_left_over():
    wrong = []
    for room, names in FOREIGN_PRIVATES.items():
        used = {node.attr for file in python_files(room) for node in nodes_of(file) if isinstance(node, ast.Attribute)}
        wrong += [f"{room} does not use {name}" for name in sorted(names - used)]
    wrong += [f"{room} is not there" for room in (*VERLS_ROOMS, *MAY_SPEAK_OF_VERL) if not (ROOT / room).exists()]
    fail_with(wrong)


def words_of(identifier: str) -> set[str]:
    """The words of `snake_case`, `CamelCase` and `a.dotted.path`, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)}


def identifiers(node: ast.AST) -> Iterator[str]:
    """The names that a node itself spells out."""
    for field in ("id", "attr", "name", "arg", "asname", "module", "rest"):
        name = getattr(node, field, None)
        if isinstance(name, str):
            yield name
    match node:
        case ast.Global(names=names) | ast.Nonlocal(names=names) | ast.MatchClass(kwd_attrs=names):
            yield from names


def test_verl_is_named_in_its_own_rooms_alone():
    wrong = []
    for file in SIM:
        path = shown(file)
        if path.startswith(VERLS_ROOMS):
            continue
        docstrings = {id(node.value) for node in nodes_of(file) if isinstance(node, ast.Expr)}
        imported = imported_from_verls_rooms(file)
        for node in nodes_of(file):
            line = getattr(node, "lineno", 0)
            wrong += [
                f"{path}:{line} {name}"
                for name in identifiers(node)
                if name not in imported and ("verl" in words_of(name) or VERLS_NAMES.search(name))
            ]
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                text = node.value
                if text in SAME_AS_VERLS.get(path, ()):
                    continue
                named = re.search(r"\bverl(?![a-z])", text, re.IGNORECASE)
                sentence = " " in text and path.startswith(MAY_SPEAK_OF_VERL)
                if VERLS_NAMES.search(text) or (named and not sentence):
                    wrong.append(f"{path}:{line} {text[:80]!r}")
    fail_with(wrong)


def imported_from_verls_rooms(file: Path) -> set[str]:
    """The modules of verl's rooms that a file imports from, and what it imports."""
    names: set[str] = set()
    for node in nodes_of(file):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                other = MODULES.get(f"{node.module}.{alias.name}") or MODULES.get(str(node.module))
                if other is not None and shown(other).startswith(VERLS_ROOMS):
                    names |= {str(node.module), alias.name, alias.asname or alias.name}
    return names


def public_names(file: Path) -> set[str] | None:
    """A module's `__all__`; None where it has none."""
    for node in tree_of(file).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return set(ast.literal_eval(value))
    return None


def examples() -> Iterator[tuple[str, ast.Module]]:
    """The Python that README and docs show, and the examples."""
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"^```python\n(.*?)^```", file.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            yield shown(file), ast.parse(block)
    for file in python_files("docs"):
        yield shown(file), tree_of(file)


def test_docs_import_public_names_alone():
    wrong = []
    for path, tree in examples():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                wrong += [f"{path} import {alias.name}: not `from`" for alias in node.names if is_ours(alias.name)]
            elif isinstance(node, ast.ImportFrom) and is_ours(node.module):
                public = public_names(MODULES[node.module]) if node.module in MODULES else None
                wrong += [
                    f"{path} from {node.module} import {alias.name}: not in its __all__"
                    for alias in node.names
                    if alias.name not in (public or ())
                ]
    fail_with(wrong)


def test_pages_name_files_that_are_there():
    wrong = []
    for page in sorted(ROOT.glob("*.md")):
        named = re.findall(
            r"`((?:sim|tests|properties|docs|gpu_checks|\.ci)/[\w./*-]*)`", page.read_text(encoding="utf-8")
        )
        wrong += [
            f"{page.name}: {path}"
            for path in dict.fromkeys(named)
            if "NAME" not in path and not any(ROOT.glob(path.rstrip("/")))
        ]
    fail_with(wrong)


def test_all_names_exist():
    wrong = []
    for name, file in MODULES.items():
        made = defined_in(tree_of(file)) | {
            alias.asname or alias.name
            for node in nodes_of(file)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        wrong += [
            f"{name}.__all__ has {each}, which is not there" for each in sorted((public_names(file) or set()) - made)
        ]
    fail_with(wrong)


def test_no_file_is_too_long_to_read():
    lengths = {shown(file): len(file.read_text(encoding="utf-8").splitlines()) for file in SIM}
    too_long = {path: lines for path, lines in lengths.items() if lines > MOST_LINES}
    fail_with([f"{path}: {lines} lines" for path, lines in too_long.items() if path not in LONGER])
    fail_with([f"{path}: no longer too long, yet excused" for path in LONGER if path not in too_long])


def test_no_class_name_means_two_things():
    places = defaultdict(list)
    for file in SIM:
        for node in tree_of(file).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{shown(file)}:{node.lineno}")
    fail_with(
        [f"{name}: {', '.join(at)}" for name, at in places.items() if len(at) > 1 and name not in SAME_CLASS_NAME]
    )
