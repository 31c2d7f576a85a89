"""What breaks an invariant."""

from typing import NamedTuple


class Violation(NamedTuple):
    """An invariant, by its number, that a run breaks: where, and the figures that show it. `balancer_message`: the
    number of the message to the balancer that it is about."""

    invariant: str
    message: str
    session: int | None = None
    balancer_message: int | None = None
