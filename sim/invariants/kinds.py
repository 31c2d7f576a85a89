"""The kinds of invariants that a world can break."""

from typing import Literal, get_args

Kind = Literal["budget", "alignment", "lifecycle", "routing", "staleness", "liveness", "waste", "harness"]

KINDS: tuple[Kind, ...] = get_args(Kind)
