"""How much of a set of wrong clients and balancers a search finds: `python -m tests.power.measure [--write]`.

Drawn worlds only (no classic ones), nothing shrunk, several seeds. With --write it writes docs/power.md.
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from sim.invariants.table import INVARIANTS
from sim.search import campaign as campaign_module
from sim.search import shrink as shrink_module
from sim.sut.registry import sut_of
from sim.testing import search
from tests.power.wrong import ALL, KINDS

WORLDS = 3000
SEEDS = 5
PAGE = Path(__file__).parents[2] / "docs" / "power.md"

Found = dict[tuple[str, int], int | None]
"""By name and seed: after how many worlds, or not at all."""


def worlds_to_find(name: str, seed: int, worlds: int = WORLDS) -> int | None:
    """How many drawn worlds it took to find what is wrong; None where it was not found in so many."""
    wrong = ALL[name]
    campaign_module.MOST_SHRINK_WORLDS = campaign_module.MOST_RACE_WORLDS = shrink_module.MOST_RUNS = 0
    kind = INVARIANTS[wrong.told_by[0]].kind
    campaign = search(
        sut_of(name, wrong.build), kind, worlds=worlds, seed=seed, numbers=wrong.told_by[:1], classics=False
    )
    return campaign.worlds if campaign.finds else None


def _one(task: tuple[str, int]) -> tuple[str, int, int | None]:
    return (*task, worlds_to_find(*task))


def measure(names: list[str], seeds: int, processes: int) -> Iterator[tuple[str, int, int | None]]:
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap_unordered(_one, [(name, seed) for name in names for seed in range(seeds)])


def page(found: Found, seeds: int) -> str:
    """What was found, by kind and by name, in Markdown."""
    lines = [
        "# Power: how much of what is wrong a search finds",
        "",
        f"Written by `python -m tests.power.measure --write`: {len({name for name, _ in found})} wrong clients and "
        f"balancers that no search was tuned to (tests/power/wrong/), {WORLDS:,} drawn worlds each, {seeds} seeds, "
        "classic worlds left out.",
        "",
        "| kind | wrong ones | found in all | in some | in none |",
        "|---|---|---|---|---|",
    ]
    sums = [0, 0, 0, 0]
    for kind, wrong in KINDS.items():
        times = [sum(found[name, seed] is not None for seed in range(seeds)) for name in wrong]
        row = [len(wrong), times.count(seeds), sum(0 < each < seeds for each in times), times.count(0)]
        sums = [a + b for a, b in zip(sums, row, strict=True)]
        lines.append(f"| {kind} | {' | '.join(map(str, row))} |")
    lines.append(f"| all | {' | '.join(map(str, sums))} |")
    worlds = [each for each in found.values() if each is not None]
    median = f"{statistics.median(worlds):.0f}" if worlds else "none"
    lines += ["", f"Median worlds until found, of the runs that found: {median}.", ""]
    lines += ["| wrong | found in | worlds: median | most |", "|---|---|---|---|"]
    for name in ALL:
        runs = [found[name, seed] for seed in range(seeds)]
        took = sorted(each for each in runs if each is not None)
        median = f"{statistics.median(took):.0f}" if took else "–"
        lines.append(f"| {name} | {len(took)} of {seeds} | {median} | {took[-1] if took else '–'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="which of them (default: all)")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    options = parser.parse_args()
    names = options.names or list(ALL)
    found: Found = {}
    began = time.monotonic()
    for name, seed, worlds in measure(names, options.seeds, options.processes):
        found[name, seed] = worlds
        if sys.stderr.isatty():
            print(f"\r{len(found)} of {len(names) * options.seeds}", end="", file=sys.stderr)
        if len([each for each in found if each[0] == name]) == options.seeds:
            print(name, *(found[name, each] or "-" for each in range(options.seeds)), flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    if options.write and not options.names:
        PAGE.write_text(page(found, options.seeds))


if __name__ == "__main__":
    main()
