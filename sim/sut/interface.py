"""What a system under test is: what it is given, and what it gives back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sim.policies import ATTRIBUTE, PolicyError, checked
from sim.tokens import Tokens


class SutError(ValueError):
    """A SUT that does not exist or cannot be driven: the message says which are known, or what is missing."""


@dataclass(frozen=True)
class Context:
    """What a factory gets. Handles have `.remote()` methods that return awaitables, as Ray's actor handles do.

    `config`: as the framework's clients know it. `servers`: handles by replica name.
    `make_balancer(cls)` makes a balancer of the given class (a Ray actor class is unwrapped), registers it as this
    world's balancer and returns its handle; `balancer` is the handle of a built-in one, made on first use.
    `urls`: in a world whose servers have an HTTP face, the base URLs of the replicas by name, in order. `loop`: the
    event loop; it is running when the factory is called.
    """

    config: Any
    servers: dict[str, Any]
    make_balancer: Callable[[type[Any]], Any]
    default_balancer: Callable[[], Any]
    urls: Mapping[str, str] = field(default_factory=dict)
    loop: Any = None

    @property
    def replica_names(self) -> list[str]:
        return list(self.servers)

    @property
    def balancer(self) -> Any:
        return self.default_balancer()


class Client(Protocol):
    """A rollout client, as agent loops call it.

    Token ids and log probabilities are lists, unless it has an attribute `takes_runs` that is True: then they are
    `TokenIds` and `LogProbs` (sim.tokens), which cost nothing a token.
    """

    async def generate(
        self, request_id: str, *, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> Any:
        """Returns something with token_ids, log_probs, stop_reason and extra_fields."""


Factory = Callable[[Context], Any]


def unwrapped(cls: type[Any]) -> type[Any]:
    """The plain class inside a Ray actor class; a plain class as it is."""
    metadata = getattr(cls, "__ray_metadata__", None)
    plain: type[Any] = cls if metadata is None else metadata.modified_class
    return plain


def declared_by(part: object, whose: str) -> dict[str, str]:
    """The policies (`sim.policies`) that a factory, a client or a balancer declares. Raises `SutError` for what is
    none."""
    found = getattr(part, ATTRIBUTE, None)
    if found is None:
        return {}
    try:
        return checked(found, whose)
    except PolicyError as error:
        raise SutError(str(error)) from None
