"""Which worlds of a search are run in another process as well."""

from dataclasses import dataclass

from sim import elsewhere
from sim.sut.framework import Sut

ALL_AFAR = 16
"""So many of those that are run twice; of the later ones each 2ⁿ-th, since these cost more."""


@dataclass
class Afar:
    """`due`: worlds that were run twice since the other process was ready."""

    due: int = 0

    def is_due(self, sut: Sut, target: str | None, waits: bool) -> bool:
        """Whether a world that is run twice is run there too. `target`: the invariant that is being shrunk. `waits`:
        for the other process to start; who has but seconds does not."""
        if target is not None:
            return target == "D1"
        if not (waits or elsewhere.is_ready(sut)):
            return False
        self.due += 1
        return self.due <= ALL_AFAR or self.due.bit_count() == 1
