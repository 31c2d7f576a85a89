"""The table of all invariants, by number: the built-in ones, and those that a project adds."""

from collections.abc import Collection, Iterable

from sim.invariants import alignment, budget, harness, lifecycle, liveness, routing, siblings, staleness, waste
from sim.invariants.interface import Invariant
from sim.records import check_record
from sim.registry import Registry

INVARIANTS: Registry[Invariant] = Registry("invariant")
"""In the order in which they were registered, which is the order of verdicts."""


def register_invariant(invariant: Invariant) -> Invariant:
    """Adds an invariant, for all that judges afterwards. Raises `RegistrationError` where its number is taken, and for
    what cannot be an invariant."""
    check_record(f"invariant {getattr(invariant, 'number', '?')}", invariant, Invariant)
    return INVARIANTS.add(invariant.number, invariant)


def numbers_of(kinds: Collection[str]) -> tuple[str, ...]:
    """The numbers of the invariants of these kinds, except those that only warn."""
    return tuple(
        number
        for number, invariant in INVARIANTS.items()
        if invariant.kind in kinds and invariant.severity == "violation"
    )


def chosen(kinds: Collection[str], only: Collection[str] = (), skip: Collection[str] = ()) -> tuple[str, ...]:
    """The numbers of these kinds that are among `only`, if any is, and not among `skip`. Those that only warn are there
    where they are asked for."""
    asked_for = only or numbers_of(kinds)
    return tuple(
        number
        for number, invariant in INVARIANTS.items()
        if number in asked_for and invariant.kind in kinds and number not in skip
    )


def in_every_world(only: Collection[str] = (), skip: Collection[str] = ()) -> tuple[str, ...]:
    """What is judged in the worlds of every kind, unless something else was asked for: one that never ends is a find,
    whatever it was drawn for."""
    return tuple(number for number in ("V1",) if number not in skip and (not only or number in only))


def with_numbers(numbers: Iterable[str]) -> list[Invariant]:
    """The invariants with these numbers, each once. Raises ValueError that lists the known ones."""
    found = []
    for number in dict.fromkeys(numbers):
        if number not in INVARIANTS:
            raise ValueError(INVARIANTS.unknown(number))
        found.append(INVARIANTS[number])
    return found


for _module in (
    budget,
    siblings,
    alignment,
    lifecycle,
    routing,
    staleness,
    liveness,
    waste,
    harness,
):
    for _invariant in _module.INVARIANTS:
        register_invariant(_invariant)
