"""What can be named in a Case or on the command line, and how a project adds its own without touching this one.

A name stands for one thing. What is built in is listed in the table of its room; a project adds to it by calling the
room's `register_…` from a module of its own, which is imported because an installed package has an entry point for it
in the group `rollcage`, or because it was named with `--plugin MODULE`.
"""

import difflib
import importlib
import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import ClassVar, Generic, NoReturn, TypeVar

GROUP = "rollcage"
"""Entry points of this group name modules that register something when they are imported."""

FROM_PLUGINS = "what a plugin adds is known with --plugin MODULE"

Thing = TypeVar("Thing")


class RegistrationError(ValueError):
    """A name that is taken or cannot be one, a thing that is none of its kind, or a plugin that cannot be imported."""


class PluginError(Exception):
    """What a project has added does not work: the message names it and its module; the cause is what it raised."""


def blamed(error: Exception, part: object, what: str) -> Exception:
    """An error that came of calling `part`, as the one to raise in its place: of what a project has added it is a
    `PluginError` that says so; of what is built in it stays as it is, a fault of ours. `what`: what the part is called.
    """
    if isinstance(error, PluginError):
        return error
    raised_in = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    culprits = [_module_of(part), *(each for each in raised_in[-1:] if _is_foreign(each))]
    if not _is_foreign(culprits[-1]):
        return error
    said = str(error).splitlines()
    raised = type(error).__name__ + "".join(f": {line}" for line in said[:1])
    named = PluginError(f"{what} failed: {culprits[-1]} raised {raised}")
    named.__cause__ = error
    return named


def blame(error: Exception, part: object, what: str) -> NoReturn:
    """Raises what `blamed` makes of an error."""
    raise blamed(error, part, what)


def _module_of(part: object) -> str:
    found = getattr(part, "__module__", None)
    return found if isinstance(found, str) else type(part).__module__


def _is_foreign(module: str) -> bool:
    return module.partition(".")[0] not in ("sim", "gpu_checks", *sys.stdlib_module_names)


class Registry(Generic[Thing]):
    """Things of one kind by name, in the order in which they were added."""

    registrations: ClassVar[int] = 0
    """Of things of any kind, so far."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, Thing] = {}

    def add(self, name: str, thing: Thing) -> Thing:
        """Takes a thing. Raises `RegistrationError` where another has the name; the same one twice is no error."""
        if not name or not name.replace("-", "").replace("_", "").isalnum():
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise RegistrationError(
                f"{name!r} is no name for {article} {self.kind}: letters, digits, - and _ are allowed"
            )
        if self._things.setdefault(name, thing) is not thing:
            raise RegistrationError(f"the {self.kind} {name!r} is registered already")
        Registry.registrations += 1
        return thing

    def find(self, name: str) -> Thing | None:
        """The thing of that name; None where there is none, in an installed plugin either."""
        found = self._things.get(name)
        if found is None and load_installed_plugins():
            found = self._things.get(name)
        return found

    def __getitem__(self, name: str) -> Thing:
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def values(self) -> list[Thing]:
        return list(self._things.values())

    def items(self) -> list[tuple[str, Thing]]:
        return list(self._things.items())

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """What is added while it lasts is forgotten afterwards: for tests of what a project adds."""
        before = dict(self._things)
        try:
            yield
        finally:
            self._things = before

    def unknown(self, name: str) -> str:
        """What to say of a name that is not known: the one that may be meant, and all that are."""
        close = difflib.get_close_matches(name, self._things, n=1)
        guess = f" (did you mean {close[0]}?)" if close else ""
        return f"unknown {self.kind} {name!r}{guess}; known are {', '.join(self._things)}; {FROM_PLUGINS}"


def module_of_file(path: str) -> str:
    """The name of the module in a file below the working directory."""
    return ".".join(part for part in Path(path).with_suffix("").parts if part not in ("/", "."))


def import_from_here(module: str) -> ModuleType:
    """Imports a module; one in the working directory counts, as with `python -m`."""
    if module.endswith(".py") or "/" in module:
        raise ModuleNotFoundError(f"{module!r} is a file; its module is needed, {module_of_file(module)}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(module)


def why_not_imported(error: BaseException) -> str:
    """What a module raised when it was imported, and in which line."""
    importing = (str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<frozen")
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    theirs = [each for each in lines if not each[0].startswith(importing)]
    place = f" ({theirs[-1][0]}, line {theirs[-1][1]})" if theirs else ""
    return f"{type(error).__name__}: {error}{place}"


_plugins: dict[str, None] = {}


def plugins_loaded() -> list[str]:
    """The modules that were named as plugins."""
    return list(_plugins)


def load_plugin(module: str) -> bool:
    """Imports a module that registers something; False where it registers nothing. Raises `RegistrationError` that says
    why it cannot be imported."""
    was_imported, registered_before = module in sys.modules, Registry.registrations
    try:
        import_from_here(module)
    except (Exception, SystemExit) as error:  # whatever the module's own code raises
        raise RegistrationError(f"plugin {module}: cannot be imported: {why_not_imported(error)}") from error
    _plugins[module] = None
    return was_imported or Registry.registrations > registered_before


_installed_are_loaded = False


def load_installed_plugins() -> bool:
    """Imports the modules that installed packages name in the group `rollcage`; False where that was done before."""
    global _installed_are_loaded
    if _installed_are_loaded:
        return False
    _installed_are_loaded = True
    for entry_point in importlib.metadata.entry_points(group=GROUP):
        load_plugin(entry_point.module)
    return True
