"""The frameworks whose code can be driven, by name."""

from sim.policies import PolicyError, checked
from sim.records import check_record
from sim.registry import RegistrationError, Registry
from sim.sut.framework import Framework
from sim.sut.reference.adapter import REFERENCE
from sim.sut.verl.adapter import VERL

FRAMEWORKS: Registry[Framework] = Registry("framework")


def register_framework(framework: Framework) -> Framework:
    """Makes a framework known, so that its SUTs can be named. Raises `RegistrationError` for a name that is taken, and
    for what cannot be a framework."""
    named = f"framework {getattr(framework, 'name', '?')!r}"
    check_record(named, framework, Framework)
    for sut in framework.suts:
        if sut.partition(":")[0] != framework.name:
            raise RegistrationError(
                f"{named}: suts has {sut!r}; {framework.name} or {framework.name}:VARIANT is needed"
            )
    lacking = [role for role in ("acquire", "release") if role not in framework.balancer.roles.values()]
    if lacking:
        raise RegistrationError(f"{named}: balancer.roles has no message for {' and '.join(lacking)}")
    method, face = framework.requests.method, framework.make_face
    if isinstance(face, type) and not callable(getattr(face, method, None)):
        raise RegistrationError(
            f"{named}: requests.method is {method!r}; make_face, {face.__name__}, has no such method"
        )
    try:
        checked(framework.policies, f"{named}: policies")
    except PolicyError as error:
        raise RegistrationError(str(error)) from None
    return FRAMEWORKS.add(framework.name, framework)


for _framework in (REFERENCE, VERL):
    register_framework(_framework)
