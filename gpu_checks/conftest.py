"""Options, the session's engines, and the table at the end.

Without vLLM every check is skipped, with one line that says what to install. With a vLLM that does not start they fail.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_checks.cases import CORPUS, KeptCase, load, own_cases
from gpu_checks.engines import (
    HOW_TO_INSTALL,
    EngineSettings,
    Platform,
    RealEngines,
    is_installed,
    parse_engine_arg,
    prepare_environment,
    tiny_model,
)
from gpu_checks.real_world import DEFAULT_SPEED
from gpu_checks.replay import RealReplay, summary, table
from gpu_checks.schedules import Load, Schedule, real_core, schedule_of
from gpu_checks.session import VllmUnusable, engine_session
from sim.schema import CaseError

HERE = Path(__file__).parent

REPLAYS: pytest.StashKey[list[RealReplay]] = pytest.StashKey()
FINDINGS: pytest.StashKey[list[str]] = pytest.StashKey()
PLATFORM: pytest.StashKey[Platform] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu_checks", "checks on a real vLLM engine")
    several: dict[str, Any] = {"action": "append", "default": []}
    group.addoption("--model", help="a model of your own (default: a tiny one with random weights, made on the fly)")
    group.addoption("--engine-arg", metavar="NAME=VALUE", help="any other argument of vLLM's engine", **several)
    group.addoption("--gpu-memory-utilization", type=float, help="share of the GPU's memory that an engine may take")
    group.addoption("--replicas", type=int, default=2, help="the most engines at a time (default: 2)")
    group.addoption(
        "--case", metavar="PATH", nargs="+", action="extend", default=[], help="replay these, not the corpus"
    )
    group.addoption("--full-size", action="store_true", help="also the cases that decode thousands of tokens")
    group.addoption("--results", metavar="FILE", help="write what came of it as JSON")
    group.addoption("--speed", type=float, default=DEFAULT_SPEED, help="how much shorter waits are (default: 10)")
    group.addoption("--verl", metavar="DIR", help="a folder with verl unpacked or installed; repeatable", **several)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(name): what in vLLM's interface a drift check is about")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if is_installed():
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=HOW_TO_INSTALL))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`kept` and `sut_name`: every case with every SUT that it keeps a verdict for."""
    if not {"kept", "sut_name"} <= set(metafunc.fixturenames):
        return
    paths = metafunc.config.getoption("--case")
    try:
        cases = load(map(Path, paths)) if paths else [*load([CORPUS]), *own_cases()]
    except CaseError as error:
        raise pytest.UsageError(str(error)) from None
    pairs = [(kept, name) for kept in cases for name in suts_of(kept)]
    metafunc.parametrize(("kept", "sut_name"), pairs, ids=[f"{kept.name}-{name}" for kept, name in pairs])


def suts_of(kept: KeptCase) -> list[str]:
    """Names of the SUTs that a case is about; a key with a version is that of the installed package or of another."""
    return list(kept.expected) or ["reference:deferred", "reference:pinned"]


@contextmanager
def _explained() -> Iterator[None]:
    """A vLLM that is there and cannot be used is a failure that says why, once."""
    try:
        yield
    except Exception as error:
        pytest.fail(f"vLLM is installed and does not start: {type(error).__name__}: {error}", pytrace=False)


@pytest.fixture(scope="session")
def engines(pytestconfig: pytest.Config) -> Iterator[RealEngines]:
    """The session's engines; the first one is up."""
    try:
        extra = dict(parse_engine_arg(text) for text in pytestconfig.getoption("--engine-arg"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    settings = EngineSettings(
        pytestconfig.getoption("--model"),
        pytestconfig.getoption("--gpu-memory-utilization"),
        extra,
        pytestconfig.getoption("--replicas"),
    )
    try:
        with engine_session(settings, pytestconfig.getoption("--speed")) as made:
            pytestconfig.stash[PLATFORM] = made.platform
            yield made
    except VllmUnusable as unusable:
        pytest.fail(str(unusable), pytrace=False)


@pytest.fixture(scope="session")
def schedules() -> Iterator[Callable[[Load], Schedule]]:
    """Schedules of the real engine in this process, each made once."""
    made: dict[str, Schedule] = {}
    with ExitStack() as stack:
        with _explained():
            prepare_environment()
            core = stack.enter_context(real_core(stack.enter_context(tiny_model())))

        def of(load: Load) -> Schedule:
            if load.name not in made:
                made[load.name] = schedule_of(load, core)
            return made[load.name]

        yield of


@pytest.fixture(scope="session")
def replays(pytestconfig: pytest.Config) -> list[RealReplay]:
    """Where the replays of this session are gathered."""
    return pytestconfig.stash.setdefault(REPLAYS, [])


@pytest.fixture(scope="session")
def findings(pytestconfig: pytest.Config) -> list[str]:
    """What was found out about released packages on this vLLM, a sentence each."""
    return pytestconfig.stash.setdefault(FINDINGS, [])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not is_installed():
        terminalreporter.write_line(f"gpu_checks: all skipped: {HOW_TO_INSTALL}")
        return
    platform = config.stash.get(PLATFORM, None)
    if platform is not None:
        terminalreporter.section(f"gpu_checks: {platform}")
    found = config.stash.get(REPLAYS, None)
    if found:
        counts = summary(found)
        terminalreporter.write_line(table(found))
        terminalreporter.write_line(
            f"reproduced {counts['reproduced']} of {counts['of']}; not expressible: {counts['not_expressible']}; "
            f"left out for their size: {counts['left_out']}"
        )
    for finding in config.stash.get(FINDINGS, []):
        terminalreporter.write_line(f"finding: {finding}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--results", None)
    platform = session.config.stash.get(PLATFORM, None)
    if path and platform is not None:
        data: dict[str, Any] = {"device": platform.device, "vllm": platform.vllm, "model": platform.model}
        data["checks"] = _checks(session.config)
        data["findings"] = session.config.stash.get(FINDINGS, [])
        data |= summary(session.config.stash.get(REPLAYS, []))
        Path(path).write_text(json.dumps(data, indent=2) + "\n")


def _checks(config: pytest.Config) -> dict[str, dict[str, int]]:
    """For each file of checks, how many passed, failed and were skipped."""
    counts: dict[str, dict[str, int]] = {}
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    for outcome, shown in (("passed", "passed"), ("failed", "failed"), ("error", "failed"), ("skipped", "skipped")):
        for report in reporter.stats.get(outcome, []):
            of_file = counts.setdefault(Path(report.nodeid.partition("::")[0]).stem, {})
            of_file[shown] = of_file.get(shown, 0) + 1
    return counts


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A drift check that fails says who relies on what it checks, and since when that has been so."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        report.sections.extend(("drift", text) for name, text in item.user_properties if name == "vLLM")
