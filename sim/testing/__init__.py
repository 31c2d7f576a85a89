"""For test suites: the pytest plugin behind `pytest properties/`, and what other projects' tests can use.

Options: `--sut NAME` (repeatable), `--worlds N`, `--kind KIND` (repeatable), `--only B1,R7`, `--skip R1`,
`--policy KEY=VALUE` (repeatable), `--waivers FILE`, `--reach stock|all`, `--search-seed K`. The plugin loads with
every pytest run, so it imports nothing heavy until a fixture is used.
"""

import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sim.invariants.kinds import KINDS

if TYPE_CHECKING:
    from sim.search.campaign import Campaign
    from sim.search.find import Known
    from sim.search.nearest_first import WhichReach
    from sim.sut.framework import Sut
    from sim.testing.waiver_file import Waiver

DEFAULT_WORLDS = 600
WAIVERS = "rollcage-waivers.toml"
"""Read from the folder of the run, where it is there."""

GATE_SEED = 20_260_829
"""A gate gives the same verdict every time: a fixed seed, a fixed number of worlds."""


_SUT_HELP = "system under test; repeatable (default: reference:pinned, and the planted bugs have to be caught)"


_REACH_HELP = "which finds fail: those that the framework's own callers can meet (default for a package), or all"
BEYOND_STOCK = "rollcage_beyond_stock"
"""Under which name a test's report has, as text, the finds that do not fail it."""


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("at least 1")
    return number


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rollcage", "rollcage: properties of LLM rollout clients")
    group.addoption("--sut", action="append", default=[], metavar="NAME", help=_SUT_HELP)
    group.addoption(
        "--worlds", type=_positive, default=DEFAULT_WORLDS, help="worlds for each SUT and kind (%(default)s)"
    )
    group.addoption("--kind", action="append", default=[], choices=KINDS, help="which invariants; repeatable")
    group.addoption("--only", action="append", default=[], metavar="B1,R7", help="invariants to look for; repeatable")
    group.addoption("--skip", action="append", default=[], metavar="R1", help="invariants to leave out; repeatable")
    group.addoption("--policy", action="append", default=[], metavar="KEY=VALUE", help="judge by it; repeatable")
    group.addoption(
        "--waivers", type=Path, default=None, metavar="FILE", help=f"violations that are waived ({WAIVERS})"
    )
    group.addoption("--reach", choices=("stock", "all"), help=_REACH_HELP)
    group.addoption("--search-seed", type=int, default=GATE_SEED, help="seed of the search (fixed: a gate)")


@pytest.fixture(scope="session")
def named_suts(pytestconfig: pytest.Config) -> "list[Sut]":
    """The SUTs named with --sut; none: the built-in ones prove the harness."""
    from sim.policies import PolicyError, parsed
    from sim.sut.interface import SutError
    from sim.sut.registry import load_sut

    try:
        flags = parsed(pytestconfig.getoption("--policy"))
        return [load_sut(name, flags) for name in pytestconfig.getoption("--sut")]
    except (SutError, PolicyError) as error:
        pytest.exit(f"error: {error}", returncode=2)


@pytest.fixture(scope="session")
def numbers_chosen(pytestconfig: pytest.Config) -> "tuple[str, ...]":
    """The invariants that --kind, --only and --skip leave."""
    from sim.invariants.table import chosen

    return chosen(pytestconfig.getoption("--kind") or KINDS, *_only_and_skip(pytestconfig))


@pytest.fixture(scope="session")
def numbers_in_every_world(pytestconfig: pytest.Config) -> "tuple[str, ...]":
    """What is judged in the worlds of every kind, if --only and --skip leave it."""
    from sim.invariants.table import in_every_world

    return in_every_world(*_only_and_skip(pytestconfig))


def _only_and_skip(pytestconfig: pytest.Config) -> "Iterator[list[str]]":
    from sim.invariants.table import with_numbers

    for name in ("--only", "--skip"):
        numbers = [each for text in pytestconfig.getoption(name) for each in text.split(",")]
        try:
            with_numbers(numbers)
        except ValueError as error:
            pytest.exit(f"error: {error}", returncode=2)
        yield numbers


@pytest.fixture(scope="session")
def waivers(pytestconfig: pytest.Config) -> "list[Waiver]":
    """What is waived, by --waivers or the file that is there."""
    from sim.testing.waiver_file import WaiverError, read_waivers

    given: Path | None = pytestconfig.getoption("--waivers")
    path = given or pytestconfig.invocation_params.dir / WAIVERS
    try:
        return read_waivers(path) if given is not None or path.exists() else []
    except WaiverError as error:
        pytest.exit(f"error: {error}", returncode=2)


def search(
    sut: "Sut",
    kind: str,
    *,
    worlds: int = DEFAULT_WORLDS,
    seed: int = GATE_SEED,
    numbers: Sequence[str] | None = None,
    known: "Collection[Known]" = (),
    classics: bool = True,
    reach: "WhichReach | None" = "all",
) -> "Campaign":
    """Searches `worlds` worlds for violations of a kind, or of the given invariants; the same finds every time.

    The kind's classic worlds are the first of them; without `classics` all are drawn. Violations that are `known` are
    counted and not reported. `reach`: whether what the framework's own callers can meet is searched first ("stock"), or
    all is alike; None: as it is for this SUT. Raises what the harness or the SUT's factory raises.
    """
    from sim.case import dumps
    from sim.invariants.table import in_every_world, numbers_of
    from sim.search.campaign import Bounds, Campaign
    from sim.search.classics import classic_cases
    from sim.search.nearest_first import every_find_counts, search_nearest_first
    from sim.search.strategies import STRATEGIES

    most_s = sut.framework.max_parked_s
    campaign = Campaign(sut, seed)
    search_nearest_first(
        campaign,
        STRATEGIES[kind](max_parked_s=most_s),
        numbers or (*numbers_of([kind]), *in_every_world()),
        Bounds(worlds=worlds),
        classic_cases([kind], max_parked_s=most_s) if classics else (),
        is_all=every_find_counts(sut, reach),
        known=known,
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


def known_violations(corpus: Path, sut: "Sut") -> set[tuple[str, str]]:
    """What a SUT is known to violate, by number and what it is about: what a kept case expects of it."""
    from sim import corpus as kept
    from sim.verdicts import judged

    known: set[tuple[str, str]] = set()
    for path in sorted(corpus.glob("*.json")):
        entry = kept.read(path)
        for verdict in entry.expected.get(sut.key, ()):
            if verdict.about is not None:
                known.add((verdict.invariant, verdict.about))
            else:
                violations = judged(entry.case, sut, (verdict.invariant,)).violations
                known |= {(each.invariant, each.about) for each in violations}
    return known


def assert_nothing_found(campaign: "Campaign", reach: "WhichReach | None" = "all") -> list[str]:
    """Fails with the explained world for each find that counts (`reach` as in `search`); returns, explained as well,
    those that do not."""
    from sim.reach import reach_of
    from sim.report.world import find_report
    from sim.search.nearest_first import counts, every_find_counts
    from sim.verdicts import judged

    is_all = every_find_counts(campaign.sut, reach)
    told: set[str] = set()
    fails, beyond = [], []
    for find in campaign.finds:
        report = find_report(judged(find.case, campaign.sut), find, told)
        reached = reach_of(find.case, campaign.sut.framework.callers)
        if counts(find, reached, is_all=is_all):
            fails.append(report)
        else:
            feature = f" ({reached.feature})" if reached.feature else ""
            beyond.append(f"{report}\nreach: {reached.reach}{feature}")
    if fails:
        pytest.fail("\n\n".join(fails), pytrace=False)
    return beyond


def pytest_terminal_summary(terminalreporter: Any) -> None:
    texts = [
        text
        for report in terminalreporter.getreports("passed")
        for name, text in report.user_properties
        if name == BEYOND_STOCK
    ]
    if texts:
        terminalreporter.section("beyond what the framework's own callers do, or only warned of: no failure")
        terminalreporter.write("\n\n".join(texts) + "\n")
