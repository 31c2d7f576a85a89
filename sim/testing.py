"""For test suites: the pytest plugin behind `pytest properties/`, and what other projects' tests can use.

Options: `--sut NAME` (repeatable), `--worlds N`, `--kind KIND` (repeatable), `--search-seed K`. The plugin loads with
every pytest run, so it imports nothing heavy until a fixture is used.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sim.search.campaign import Campaign
    from sim.sut.interface import Sut

KINDS = ("budget", "lifecycle", "routing", "staleness", "liveness", "harness")

DEFAULT_WORLDS = 600
GATE_SEED = 20_260_829
"""A gate gives the same verdict every time: a fixed seed, a fixed number of worlds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rollcage", "rollcage: properties of LLM rollout clients")
    group.addoption("--sut", action="append", default=[], metavar="NAME", help="system under test; repeatable")
    group.addoption("--worlds", type=int, default=DEFAULT_WORLDS, help="worlds for each SUT and kind (%(default)s)")
    group.addoption("--kind", action="append", default=[], choices=KINDS, help="which invariants; repeatable")
    group.addoption("--search-seed", type=int, default=GATE_SEED, help="seed of the search (fixed: a gate)")


@pytest.fixture(scope="session")
def named_suts(pytestconfig: pytest.Config) -> "list[Sut]":
    """The SUTs named with --sut; none: the built-in ones prove the harness."""
    from sim.sut.interface import SutError
    from sim.sut.registry import load_sut

    try:
        return [load_sut(name) for name in pytestconfig.getoption("--sut")]
    except SutError as error:
        pytest.exit(f"error: {error}", returncode=2)


def search(
    sut: "Sut", kind: str, *, worlds: int = DEFAULT_WORLDS, seed: int = GATE_SEED, numbers: Sequence[str] | None = None
) -> "Campaign":
    """Searches `worlds` worlds for violations of a kind (or of the given invariants); the same finds every time."""
    from sim.invariants import numbers_of
    from sim.search.campaign import Bounds, run_campaign
    from sim.search.strategies import STRATEGIES

    return run_campaign(sut, STRATEGIES[kind](), numbers or numbers_of([kind]), seed, Bounds(worlds=worlds))


def known_violations(corpus: Path, sut_key: str) -> set[str]:
    """The invariants that a SUT is known to violate: those that a kept case expects of it."""
    from sim import corpus as kept

    entries = [kept.read(path) for path in sorted(corpus.glob("*.json"))]
    return {number for entry in entries for number in entry.expected.get(sut_key, ())}


def assert_only_known(campaign: "Campaign", known: Iterable[str]) -> None:
    """Fails with the explained world for each find whose invariant is not among the known ones."""
    from sim.invariants import judge
    from sim.report.explain import world_report
    from sim.world import run_world

    reports = []
    for find in campaign.finds:
        if find.invariant not in set(known):
            trace = run_world(find.case, campaign.sut)
            reports.append(world_report(find.case, campaign.sut, trace, judge(find.case, trace)))
    if reports:
        pytest.fail("\n\n".join(reports), pytrace=False)
