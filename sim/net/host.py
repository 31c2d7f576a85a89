"""A host of the network: its name and address, the line that leads to it, and what is wrong with it."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from sim.clock import NS_PER_S, to_ns


class Line(NamedTuple):
    """One direction between a host and everybody else; each connection has its own."""

    latency_s: float = 0.0
    bytes_per_s: float | None = None
    """None: bytes take no time."""

    @property
    def latency_ns(self) -> int:
        return to_ns(self.latency_s)

    def sending_ns(self, num_bytes: int) -> int:
        """How long they occupy it."""
        return 0 if self.bytes_per_s is None else round(num_bytes * NS_PER_S / self.bytes_per_s)


@dataclass
class Host:
    """What happens on the way to `name` and back. `StreamNetwork` changes it."""

    name: str
    address: str
    line: Line
    refuses: bool = False
    is_dark: bool = False
    """Nothing comes through, in either direction, until it is no longer so: then what is on its way does."""
    has_no_name: bool = False
    cuts_after_bytes: deque[int] = field(default_factory=deque)
    """The connections that answer next are cut after so many bytes of what they answer."""
