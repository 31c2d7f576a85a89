"""The kinds of invariants that a world can break."""

from typing import Literal, get_args

Kind = Literal["budget", "lifecycle", "routing", "staleness", "liveness", "harness"]

KINDS: tuple[Kind, ...] = get_args(Kind)
