"""The frameworks whose code can be driven, by name."""

from sim.registry import Registry
from sim.sut.framework import Framework
from sim.sut.reference.adapter import REFERENCE
from sim.sut.verl.adapter import VERL

FRAMEWORKS: Registry[Framework] = Registry("framework")


def register_framework(framework: Framework) -> Framework:
    """Makes a framework known, so that its SUTs can be named. Raises `RegistrationError` for a name that is taken."""
    return FRAMEWORKS.add(framework.name, framework)


for _framework in (REFERENCE, VERL):
    register_framework(_framework)
