"""What can be compared (`--policy`): a client, and how the system around it is set up, as in `pinned+partial-off`."""

from typing import Literal, NamedTuple, TypeAlias

from sim.engine.config import PauseMode
from sim.sut.frameworks import FRAMEWORKS
from sim.sut.reference.adapter import REFERENCE

Client: TypeAlias = Literal["deferred", "pinned"]

CLIENTS: dict[str, str] = {
    "deferred": "the client sets no limit and leaves it to the server (the bug)",
    "pinned": "the client pins what is left of the budget (the fix)",
}
MODIFIERS = {
    "partial-off": "an aborted response is dropped instead of resumed",
    "not-sticky": "each attempt goes to the least loaded replica, and not back to its session's",
    "cache-kept": "an update leaves the KV of older weights in place, and what goes on after it takes that over",
    "keep": "an update freezes the requests, which go on after it (vLLM's pause mode keep)",
    "wait": "an update waits until the running requests have ended (vLLM's pause mode wait)",
}
_EXCLUSIVE = (("keep", "wait"), ("keep", "partial-off"), ("wait", "partial-off"))

DEFAULT = ("deferred", "pinned")
_BASE = "pinned"


class VariantError(ValueError):
    """A variant that is not known or cannot be expressed: the message says which can."""


class Variant(NamedTuple):
    """One thing to compare. `sut`: the name of the system under test that plays the client."""

    name: str
    sut: str
    partial_rollout: bool = True
    sticky: bool = True
    reset_prefix_cache: bool = True
    pause_mode: PauseMode = "abort"

    @property
    def needs_engine(self) -> bool:
        """Whether what it does shows only where there are steps and KV."""
        return not self.reset_prefix_cache or self.pause_mode != "abort"

    @property
    def builtin_client(self) -> Client | None:
        """None for a client whose arithmetic only a simulation shows."""
        match self.sut:
            case "reference:deferred":
                return "deferred"
            case "reference:pinned":
                return "pinned"
        return None


def parse(text: str) -> Variant:
    """A client of `CLIENTS` or any SUT's name, with `MODIFIERS` after a `+`; modifiers alone are put on `pinned`."""
    words = text.split("+")
    client = _BASE if words[0] in MODIFIERS else words.pop(0)
    for word in words:
        if word not in MODIFIERS:
            raise VariantError(f"policy {text!r}: unknown {word!r}; after + come {', '.join(MODIFIERS)}")
    for one, other in _EXCLUSIVE:
        if one in words and other in words:
            raise VariantError(f"policy {text!r}: {one} and {other} exclude each other")
    framework = FRAMEWORKS.find(client.partition(":")[0])
    is_sut = framework is not None or ":" in client
    if client not in CLIENTS and not is_sut:
        known = ", ".join([*CLIENTS, *MODIFIERS])
        raise VariantError(
            f"unknown policy {text!r}; known are {known}, joined with +, or a SUT in the client's place "
            f"({', '.join(name for name in FRAMEWORKS if name != REFERENCE.name)}, MODULE:FACTORY)"
        )
    if framework not in (None, REFERENCE) and "not-sticky" in words:
        raise VariantError(
            f"policy {text!r}: {client} drives its own balancer, which is sticky; not-sticky needs another one"
        )
    sut = client if is_sut else f"reference:{client}"
    return Variant(
        text,
        sut,
        partial_rollout="partial-off" not in words,
        sticky="not-sticky" not in words,
        reset_prefix_cache="cache-kept" not in words,
        pause_mode="keep" if "keep" in words else "wait" if "wait" in words else "abort",
    )
