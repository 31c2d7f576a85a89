"""What a search finds, and what it is not to report again."""

import msgspec

from sim.case import Case, dumps

Known = str | tuple[str, str]
"""An invariant's number; or that, and what a violation of it is about."""


class Find(msgspec.Struct, frozen=True):
    """A violation with the smallest case that shows it."""

    invariant: str
    message: str
    case: Case

    @property
    def is_race(self) -> bool:
        """Whether it needs another order of ready callbacks than FIFO."""
        return self.case.schedule.policy != "fifo"


def size_of(case: Case) -> tuple[int, int, str]:
    """Smaller is easier to read: fewer sessions and faults, then shorter JSON."""
    text = dumps(case, indent=0)
    return len(case.sessions) + len(case.faults), len(text), text
