"""What a fault is: plain data in a Case that says when it acts, and an action on what a trainer can reach."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from sim.faults.stage import Stage
from sim.faults.triggers import AfterSent, AfterTokens, When
from sim.schema import CaseError, Data


class Surroundings(Protocol):
    """What a fault has to fit: the Case that it stands in."""

    @property
    def num_sessions(self) -> int: ...

    @property
    def replicas(self) -> int: ...

    @property
    def server(self) -> Any: ...


class NamedIndex(NamedTuple):
    """A session or replica that a fault names, and the field that does."""

    field: str
    number: int
    kind: str


class Fault(Data, frozen=True, tag_field="fault"):
    """A kind of fault is a subclass of its own, with a `tag` by which Cases name it, registered with
    `sim.faults.register_fault`."""

    at: When

    def named(self) -> Iterator[NamedIndex]:
        """The sessions and replicas that it names."""
        for kind in ("session", "replica"):
            index = getattr(self, kind, None)
            if index is not None:
                yield NamedIndex(kind, index, kind)
        if isinstance(self.at, AfterTokens | AfterSent):
            yield NamedIndex("at.session", self.at.session, "session")

    def check(self, where: str, case: Surroundings) -> None:
        """Raises `CaseError` where it does not fit its Case. `where`: what it is called there, such as `faults[0]`."""
        counts = {"session": case.num_sessions, "replica": case.replicas}
        for field, number, kind in self.named():
            count = counts[kind]
            if number >= count:
                raise CaseError(f"{where}.{field} is {number}: there is no such {kind}, allowed are 0 to {count - 1}")

    @property
    def idle_s(self) -> float:
        """For how long nobody may get on because of it, each time."""
        return 0.0

    def lasts_s(self, replicas: int) -> float:
        """How long it may take, each time, with so many replicas."""
        del replicas
        return self.idle_s

    @property
    def late_s(self) -> float:
        """By how much something may come later because of it."""
        return 0.0

    async def act(self, stage: Stage) -> str:
        """Does it, now. Returns a note where there is something to say, as that there was nothing to act on."""
        raise NotImplementedError
