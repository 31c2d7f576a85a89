"""The corpus is replayed before anything is searched."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sim.search.find import Find
    from sim.sut.framework import Sut
    from sim.testing.waiver_file import Waiver

CORPUS = Path(__file__).parent / "corpus"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.parent == Path(__file__).parent and item.path.stem != "test_corpus")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "corpus_file" in metafunc.fixturenames:
        files = sorted(CORPUS.glob("*.json"))
        metafunc.parametrize("corpus_file", files, ids=[file.stem for file in files])
    if "planted_name" in metafunc.fixturenames:
        metafunc.parametrize("planted_name", _planted_names(metafunc))


def _planted_names(metafunc: pytest.Metafunc) -> list[str]:
    from sim.invariants.table import INVARIANTS
    from sim.sut.planted import PLANTED

    kind = metafunc.module.KIND
    return [name for name, planted in PLANTED.items() if INVARIANTS[planted.invariant].kind == kind]


@pytest.fixture
def gate(
    named_suts: "list[Sut]",
    numbers_chosen: tuple[str, ...],
    numbers_in_every_world: tuple[str, ...],
    waivers: "list[Waiver]",
    pytestconfig: pytest.Config,
    request: pytest.FixtureRequest,
) -> Callable[[], None]:
    """Searches the named SUTs (the clean built-in one by default): what is found must be in the corpus, or waived."""
    from sim.invariants.table import INVARIANTS
    from sim.registry import PluginError
    from sim.sut.interface import SutError
    from sim.sut.registry import CLEAN, load_sut
    from sim.testing import BEYOND_STOCK, assert_nothing_found, known_violations, search

    kind, reach = request.module.KIND, pytestconfig.getoption("--reach")
    skip_other_kinds(pytestconfig, kind)
    numbers = [number for number in numbers_chosen if INVARIANTS[number].kind == kind]
    if not numbers:
        pytest.skip(f"--only and --skip leave nothing of kind {kind}")

    def run() -> None:
        for sut in named_suts or [load_sut(CLEAN)]:
            known = known_violations(CORPUS, sut)
            for waiver in waivers:
                if waiver.is_about(sut):
                    known |= waiver.shows(sut)
            try:
                campaign = search(
                    sut,
                    kind,
                    worlds=pytestconfig.getoption("--worlds"),
                    seed=pytestconfig.getoption("--search-seed"),
                    numbers=(*numbers, *numbers_in_every_world),
                    known=known,
                    reach=reach,
                )
            except (PluginError, SutError) as error:
                pytest.fail(f"error: {error}", pytrace=False)
            found = [find.invariant for find in campaign.finds]
            print(f"{sut.key}: {campaign.worlds} worlds, known {sorted(campaign.seen)}, found {found}")
            for find in campaign.warnings.values():
                print(f"warning: {find.invariant}: {find.message}")
            beyond = assert_nothing_found(campaign, reach)
            request.node.user_properties += [(BEYOND_STOCK, text) for text in beyond]

    return run


@pytest.fixture
def catch(
    named_suts: "list[Sut]", pytestconfig: pytest.Config, request: pytest.FixtureRequest
) -> "Callable[[str], Find]":
    """Searches a planted bug for its own invariant and returns the find, which a person can read."""
    from sim.case import dumps
    from sim.sut.planted import PLANTED
    from sim.sut.registry import load_sut
    from sim.testing import search

    if named_suts:
        pytest.skip("planted bugs are searched when no --sut is named")
    skip_other_kinds(pytestconfig, request.module.KIND)

    def run(planted_name: str) -> "Find":
        planted = PLANTED[planted_name]
        number = planted.invariant
        sut = load_sut(f"reference:{planted_name}")
        campaign = search(sut, request.module.KIND, worlds=WORLDS_TO_CATCH, numbers=(number,))
        assert campaign.finds, f"{sut.name} was not caught by {number} in {campaign.worlds} worlds"
        case = campaign.finds[0].case
        assert len(case.sessions) <= planted.most_sessions, dumps(case)
        assert len(case.faults) <= 2, dumps(case)
        assert len(case.schedule.deviations) <= 3, dumps(case)
        return campaign.finds[0]

    return run


WORLDS_TO_CATCH = 3000


@pytest.fixture
def of_wanted_kind(pytestconfig: pytest.Config) -> Callable[[str | None], None]:
    """Skips what is about an invariant of a kind that --kind leaves out."""
    from sim.invariants.table import INVARIANTS

    def check(number: str | None) -> None:
        if number is not None:
            skip_other_kinds(pytestconfig, INVARIANTS[number].kind)

    return check


def skip_other_kinds(pytestconfig: pytest.Config, kind: str) -> None:
    wanted = pytestconfig.getoption("--kind")
    if wanted and kind not in wanted:
        pytest.skip(f"kind {kind} is not among --kind {', '.join(wanted)}")
