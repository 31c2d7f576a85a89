"""For test suites: the pytest plugin behind `pytest properties/`, and what other projects' tests can use.

Options: `--sut NAME` (repeatable), `--worlds N`, `--kind KIND` (repeatable), `--search-seed K`. The plugin loads with
every pytest run, so it imports nothing heavy until a fixture is used.
"""

import warnings
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sim.invariants.kinds import KINDS

if TYPE_CHECKING:
    from sim.search.campaign import Campaign
    from sim.sut.framework import Sut

DEFAULT_WORLDS = 600
GATE_SEED = 20_260_829
"""A gate gives the same verdict every time: a fixed seed, a fixed number of worlds."""


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("at least 1")
    return number


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rollcage", "rollcage: properties of LLM rollout clients")
    group.addoption("--sut", action="append", default=[], metavar="NAME", help="system under test; repeatable")
    group.addoption(
        "--worlds", type=_positive, default=DEFAULT_WORLDS, help="worlds for each SUT and kind (%(default)s)"
    )
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
    sut: "Sut",
    kind: str,
    *,
    worlds: int = DEFAULT_WORLDS,
    seed: int = GATE_SEED,
    numbers: Sequence[str] | None = None,
    known: Collection[str] = (),
    classics: bool = True,
) -> "Campaign":
    """Searches `worlds` worlds for violations of a kind (or of the given invariants); the same finds every time.

    The kind's classic worlds are the first of them; without `classics` all are drawn. Violations that are `known` are
    counted and not reported. Raises what the harness or the SUT's factory raises.
    """
    from sim.case import dumps
    from sim.invariants.table import numbers_of
    from sim.search.campaign import Bounds, run_campaign
    from sim.search.classics import classic_cases
    from sim.search.strategies import STRATEGIES

    campaign = run_campaign(
        sut,
        STRATEGIES[kind](),
        numbers or numbers_of([kind]),
        seed,
        Bounds(worlds=worlds),
        known=known,
        classics=classic_cases([kind]) if classics else (),
    )
    if campaign.breakdown is not None:
        error = campaign.breakdown.error
        error.add_note(f"in this case, on {sut.key}:\n{dumps(campaign.breakdown.case)}")
        raise error
    if campaign.interrupted:
        raise KeyboardInterrupt
    if campaign.idle and not campaign.finds:
        warnings.warn(f"{sut.key}: {campaign.idle}", stacklevel=2)
    return campaign


def known_violations(corpus: Path, sut_key: str) -> set[str]:
    """The invariants that a SUT is known to violate: those that a kept case expects of it."""
    from sim import corpus as kept

    entries = [kept.read(path) for path in sorted(corpus.glob("*.json"))]
    return {number for entry in entries for number in entry.expected.get(sut_key, ())}


def assert_only_known(campaign: "Campaign", known: Iterable[str]) -> None:
    """Fails with the explained world for each find whose invariant is not among the known ones."""
    from sim.report.world import find_report
    from sim.verdicts import judged

    allowed = set(known)
    told: set[str] = set()
    reports = [
        find_report(judged(find.case, campaign.sut), find, told)
        for find in campaign.finds
        if find.invariant not in allowed
    ]
    if reports:
        pytest.fail("\n\n".join(reports), pytrace=False)
