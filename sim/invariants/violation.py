"""What breaks an invariant."""

from typing import Literal, NamedTuple

Severity = Literal["violation", "warning"]


class Violation(NamedTuple):
    """An invariant, by its number, that a run breaks: where, and the figures that show it.

    `balancer_message`: the number of the message to the balancer that it is about. `severity`: a warning says what is
    lost where nobody can be blamed for it, and changes no exit code. `about`: a few words that tell one way of breaking
    it from others, the same in every world.
    """

    invariant: str
    message: str
    session: int | None = None
    balancer_message: int | None = None
    severity: Severity = "violation"
    about: str = ""
