"""How many mutants of the invariants and of the budget's arithmetic the unit tests kill.

    python -m tests.mutation.run                            # all of TARGETS; writes docs/mutation.md
    python -m tests.mutation.run sim/search/shrink.py       # these files alone, told and not written down

Each mutant lives in a process of its own, forked from one that has loaded pytest and nothing of sim; it is killed when
a test fails or takes for ever. All of them take about twenty minutes of two idle cores, so this is a script and no part
of CI. Exit code 1 where a mutant survives of which docs/mutation.md does not say why: kill it with a test, or, if
nothing that anybody could see is different, write the reason behind it there. Reasons are kept from run to run.
"""

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

import hypothesis  # noqa: F401 - loaded before the forks, as are the next ones
import msgspec  # noqa: F401
import numpy  # noqa: F401
import pytest
import simpy  # noqa: F401

from tests.mutation.mutants import Mutant, mutants_of, mutated

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "mutation.md"

TARGETS: dict[str, tuple[str, ...]] = {
    "sim/invariants/**/*.py": (),
    "sim/budget.py": ("tests/test_budget.py", "tests/invariants"),
    "sim/dialects/**/*.py": (),
}
"""What is mutated, and the tests that concern it: those that mirror it where none are named. The first pattern that a
file matches holds."""

FIRST_PAGE = """# Mutants of the invariants and the budget

Written by `uv run python -m tests.mutation.run`, the reasons by hand: the script keeps them. A mutant is a module with
one thing changed (a bound, a condition, a sign, a statement left out; `tests/mutation/mutants.py`), and is killed when
a unit test fails. What survives is listed with the reason why no test could tell, or should.
"""

UNEXPLAINED = "**Not explained.**"

Key = tuple[str, str, str]
"""Function, before, after: where a file moves, the reasons stay."""


@dataclass
class Outcome:
    """What became of the mutants of one file."""

    file: str
    mutants: int = 0
    survivors: list[Mutant] = field(default_factory=list)


@dataclass
class Trial:
    """A process in which the tests run on one mutant, or on the module as it is."""

    mutant: Mutant | None
    deadline: float


class _Mutated(SourceFileLoader):
    """Loads a module from other code than its file's."""

    def __init__(self, module: str, file: Path, code: CodeType) -> None:
        super().__init__(module, str(file))
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        del fullname
        return self.code


class _Finder(MetaPathFinder):
    """Finds one module, and leaves all others to who comes after it."""

    def __init__(self, loader: _Mutated) -> None:
        self.loader = loader

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        del path, target
        if fullname != self.loader.name:
            return None
        file = Path(self.loader.path)
        inside = [str(file.parent)] if file.name == "__init__.py" else None
        return spec_from_file_location(fullname, file, loader=self.loader, submodule_search_locations=inside)


def mirroring_tests(file: str) -> list[str]:
    """The tests that mirror a file of sim/: its own, then all of its room's."""
    *rooms, stem = Path(file).with_suffix("").parts[1:]
    folder = Path("tests", *rooms)
    own = folder / f"test_{stem}.py"
    return [path.as_posix() for path in ([own, folder] if rooms else [own])]


def targets(files: Sequence[str]) -> dict[str, list[str]]:
    """These files, or all of TARGETS, with the tests that concern each."""
    chosen: dict[str, Sequence[str]] = {}
    for pattern, named in TARGETS.items():
        for path in sorted(ROOT.glob(pattern)):
            chosen.setdefault(path.relative_to(ROOT).as_posix(), named)
    if files:
        chosen = {file: chosen.get(file, ()) for file in files}
    return {file: existing(file, named or mirroring_tests(file)) for file, named in sorted(chosen.items())}


def existing(file: str, tests: Sequence[str]) -> list[str]:
    found = [test for test in tests if (ROOT / test).exists()]
    if not found:
        raise SystemExit(f"{file} has no tests: {', '.join(tests)} are not there")
    return found


def start(file: str, source: str, mutant: Mutant | None, tests: Sequence[str]) -> int:
    """The id of a process that ends with pytest's exit code."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    with suppress(BaseException):
        devnull = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(devnull, stream)
        if mutant is not None:
            parts = Path(file).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            compiled = compile(mutated(source, mutant.number), file, "exec")
            sys.meta_path.insert(0, _Finder(_Mutated(module, ROOT / file, compiled)))
        code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no", *tests]))
    os._exit(code)


def survivors_of(file: str, tests: Sequence[str], workers: int) -> Outcome:
    """Runs the tests on every mutant of a file."""
    source = (ROOT / file).read_text(encoding="utf-8")
    begun = time.monotonic()
    pid = start(file, source, None, tests)
    if os.waitpid(pid, 0)[1] != 0:
        raise SystemExit(f"the tests of {file} fail without a mutant: pytest {' '.join(tests)}")
    patience_s = 10 + 10 * (time.monotonic() - begun)

    mutants = mutants_of(source)
    outcome = Outcome(file, len(mutants))
    waiting: Iterator[Mutant] = iter(mutants)
    running: dict[int, Trial] = {}
    while True:
        while len(running) < workers and (mutant := next(waiting, None)) is not None:
            running[start(file, source, mutant, tests)] = Trial(mutant, time.monotonic() + patience_s)
        if not running:
            break
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            ended = running.pop(pid).mutant
            if status == 0 and ended is not None:
                outcome.survivors.append(ended)
            continue
        for each, trial in running.items():
            if time.monotonic() > trial.deadline:
                os.kill(each, signal.SIGKILL)
        time.sleep(0.01)
    outcome.survivors.sort(key=lambda mutant: mutant.number)
    return outcome


def key_of(mutant: Mutant) -> Key:
    return mutant.function, mutant.before, mutant.after


_SURVIVOR = re.compile(r"^- `(.*?)`: `` (.+?) `` → `` (.+?) ``\. (.+)$", re.MULTILINE)


def reasons_in(page: str) -> dict[Key, str]:
    """The reasons that a page gives for survivors."""
    return {(function, before, after): why for function, before, after, why in _SURVIVOR.findall(page)}


def page_of(outcomes: Sequence[Outcome], reasons: dict[Key, str]) -> str:
    """The page: the score, and what survives."""
    rows = [(outcome.file, outcome.mutants, len(outcome.survivors)) for outcome in outcomes]
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    lines = [FIRST_PAGE, "| file | mutants | killed | survive |", "|---|---|---|---|"]
    lines += [f"| {file} | {mutants} | {mutants - survive} | {survive} |" for file, mutants, survive in rows]
    for outcome in outcomes:
        if outcome.survivors:
            lines += ["", f"## {outcome.file}", ""]
        for mutant in outcome.survivors:
            why = reasons.get(key_of(mutant), UNEXPLAINED)
            lines.append(f"- `{mutant.function}`: `` {mutant.before} `` → `` {mutant.after} ``. {why}")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("files", nargs="*", help="files of sim/ to mutate in place of the usual ones")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    reasons = reasons_in(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    outcomes = []
    for file, concerned in targets(arguments.files).items():
        begun = time.monotonic()
        outcome = survivors_of(file, concerned, arguments.workers)
        outcomes.append(outcome)
        killed = outcome.mutants - len(outcome.survivors)
        print(f"{file}: {killed} of {outcome.mutants} killed, {time.monotonic() - begun:.0f} s", flush=True)
        for mutant in outcome.survivors:
            known = "" if key_of(mutant) in reasons else "  (not explained)"
            print(f"  {mutant.line} {mutant.function}: {mutant.before} → {mutant.after}{known}", flush=True)
    if not arguments.files:
        PAGE.write_text(page_of(outcomes, reasons), encoding="utf-8")
    explained = {key for key, why in reasons.items() if why != UNEXPLAINED}
    return int(any(key_of(mutant) not in explained for outcome in outcomes for mutant in outcome.survivors))


if __name__ == "__main__":
    sys.exit(main())
