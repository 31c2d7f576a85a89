"""The built-in reference: the known-good client and the planted bugs, in verl's shape."""

import dataclasses

from sim.sut.framework import Sut
from sim.sut.planted import PLANTED, Planted, factory
from sim.sut.verl.adapter import VERL

CLEAN = "reference:pinned"
"""The known-good client; every other built-in is a planted bug."""


def _load(name: str) -> Sut:
    planted = Planted("") if name == CLEAN else PLANTED[name.partition(":")[2]]
    framework = dataclasses.replace(REFERENCE, trainer=planted.trainer)
    return Sut(name, name, factory(planted), framework, planted.make_server, planted.policies)


REFERENCE = dataclasses.replace(
    VERL,
    name="reference",
    suts=(CLEAN, *(f"reference:{name}" for name in PLANTED)),
    load=_load,
    policies={"budget": "turn"},
)
