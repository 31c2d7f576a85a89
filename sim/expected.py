"""What a kept case expects of a system under test: the violations that it shows there, each with who can meet it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from sim.invariants.table import INVARIANTS
from sim.invariants.violation import Severity, Violation
from sim.reach import Reach


class Shown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way in which a case breaks an invariant: its number, what it is about (`Violation.about`), its severity, and
    its reach (`sim.reach`), which has to be that of the case.

    With `about` and `reach` None it is a number alone, as older files have it and as people write it by hand: a
    violation, whatever it is about.
    """

    invariant: str
    about: str | None = None
    severity: Severity = "violation"
    reach: Reach | None = None

    def __str__(self) -> str:
        words = [self.about, self.severity if self.severity == "warning" else "", self.reach]
        more = "; ".join(word for word in words if word)
        return f"{self.invariant} ({more})" if more else self.invariant

    def covers(self, observed: "Shown") -> bool:
        """Whether this is what was observed, whatever is said of its reach."""
        mine, theirs = (self.invariant, self.severity), (observed.invariant, observed.severity)
        return mine == theirs and self.about in (None, observed.about)


def verdicts_of(found: Iterable[Violation], reach: Reach) -> list[Shown]:
    """What was found in a case of this reach, each way of breaking an invariant once, in their order."""
    ways = {(each.invariant, each.about, each.severity) for each in found}
    order = list(INVARIANTS)
    return [Shown(*way, reach) for way in sorted(ways, key=lambda way: (order.index(way[0]), *way[1:]))]


def numbers_in(verdicts: Iterable[Shown]) -> list[str]:
    """The invariants that are violated, each once; what is only warned of is not among them."""
    return list(dict.fromkeys(each.invariant for each in verdicts if each.severity == "violation"))


def differences(expected: Sequence[Shown], observed: Sequence[Shown]) -> list[str]:
    """What is wrong with these expectations, in words; empty where they hold. What was only warned of is no violation:
    whether it comes again decides nothing."""
    lines = [
        f"expected {each}, and it does not come"
        for each in expected
        if each.severity == "violation" and not any(each.covers(other) for other in observed)
    ]
    for each in observed:
        mine = [other for other in expected if other.covers(each)]
        if not mine and each.severity == "violation":
            lines.append(f"{each} is not expected")
        labels = {other.reach for other in mine if other.reach not in (None, each.reach)}
        lines += [f"{each.invariant} is labelled {label}, and the case's reach is {each.reach}" for label in labels]
    twice = [str(each) for each, times in Counter(expected).items() if times > 1]
    return lines + [f"{each} is expected twice" for each in twice]


def as_plain(verdict: Shown) -> Any:
    """For JSON: a number alone as it was written."""
    return verdict.invariant if verdict == Shown(verdict.invariant) else msgspec.to_builtins(verdict)


def from_plain(plain: "Shown | str") -> Shown:
    """From JSON."""
    return Shown(plain) if isinstance(plain, str) else plain
