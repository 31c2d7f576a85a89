"""What an invariant is: a number kept for ever, one sentence, and a check of a trace."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sim.case import Case
from sim.trace import Trace

Kind = Literal["budget", "lifecycle", "routing", "staleness", "liveness", "harness"]


class Violation(NamedTuple):
    """An invariant that a trace breaks: where, and the figures that show it. `balancer_message`: the number of the
    message to the balancer that it is about."""

    invariant: str
    message: str
    session: int | None = None
    balancer_message: int | None = None


@dataclass(frozen=True)
class Invariant:
    """`check` returns the violations of one trace, at most a few: the first ones tell."""

    number: str
    kind: Kind
    statement: str
    check: Callable[[Case, Trace], list[Violation]]

    @property
    def is_of_a_session(self) -> bool:
        """Whether each session can be judged by itself, once it has ended."""
        return self.kind in ("budget", "lifecycle", "staleness")
