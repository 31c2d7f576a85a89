"""The table of all invariants, by number: the built-in ones, and those that a project adds."""

from collections.abc import Collection, Iterable

from sim.invariants import budget, harness, lifecycle, liveness, routing, staleness
from sim.invariants.interface import Invariant
from sim.invariants.kinds import KINDS
from sim.registry import RegistrationError, Registry

INVARIANTS: Registry[Invariant] = Registry("invariant")
"""In the order in which they were registered, which is the order of verdicts."""


def register_invariant(invariant: Invariant) -> Invariant:
    """Adds an invariant, for all that judges afterwards. Raises `RegistrationError` where its number is taken or its
    kind is not known."""
    if invariant.kind not in KINDS:
        raise RegistrationError(
            f"invariant {invariant.number} is of kind {invariant.kind!r}; known are {', '.join(KINDS)}"
        )
    return INVARIANTS.add(invariant.number, invariant)


def numbers_of(kinds: Collection[str]) -> tuple[str, ...]:
    """The numbers of the invariants of these kinds."""
    return tuple(number for number, invariant in INVARIANTS.items() if invariant.kind in kinds)


def chosen(kinds: Collection[str], only: Collection[str] = (), skip: Collection[str] = ()) -> tuple[str, ...]:
    """The numbers of these kinds that are among `only`, if any is, and not among `skip`."""
    return tuple(each for each in numbers_of(kinds) if (not only or each in only) and each not in skip)


def with_numbers(numbers: Iterable[str]) -> list[Invariant]:
    """The invariants with these numbers. Raises ValueError that lists the known ones."""
    found = []
    for number in numbers:
        if number not in INVARIANTS:
            raise ValueError(INVARIANTS.unknown(number))
        found.append(INVARIANTS[number])
    return found


for _module in (
    budget,
    lifecycle,
    routing,
    staleness,
    liveness,
    harness,
):
    for _invariant in _module.INVARIANTS:
        register_invariant(_invariant)
