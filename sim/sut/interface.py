"""What a system under test is: what it is given, and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sim.servers.server import FakeRolloutServer
from sim.tokens import Tokens


class SutError(ValueError):
    """A SUT that does not exist or cannot be driven: the message says which are known, or what is missing."""


class Config:
    """A verl-shaped config: attribute access, `get`, AttributeError for what is missing."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or `default` where the key is missing."""
        return self.__dict__.get(name, default)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{key}={value!r}' for key, value in self.__dict__.items())})"


@dataclass(frozen=True)
class Context:
    """What a factory gets. Handles have `.remote()` methods that return awaitables, as Ray's actor handles do.

    `make_balancer(cls)` makes a balancer of the given class (a Ray actor class is unwrapped), registers it as this
    world's balancer and returns its handle; `balancer` is the handle of a built-in one, made on first use.
    """

    config: Config
    servers: dict[str, Any]
    make_balancer: Callable[[type[Any]], Any]
    default_balancer: Callable[[], Any]

    @property
    def replica_names(self) -> list[str]:
        return list(self.servers)

    @property
    def balancer(self) -> Any:
        return self.default_balancer()


class Client(Protocol):
    """A rollout client, as verl's agent loops call it.

    Token ids and log probabilities are lists, unless it has an attribute `takes_runs` that is True: then they are
    `TokenIds` and `LogProbs` (sim.tokens), which cost nothing a token.
    """

    async def generate(
        self, request_id: str, *, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> Any:
        """Returns something with token_ids, log_probs, stop_reason and extra_fields."""


Factory = Callable[[Context], Any]


@dataclass(frozen=True)
class Sut:
    """A system under test by name.

    `key`: under which expected verdicts are kept: the name, or name==version for a package. `factory`: returns a
    client, or (client, balancer). `server_class`: the servers of its world; planted bugs may replace it.
    """

    name: str
    key: str
    factory: Factory
    server_class: type[FakeRolloutServer] = FakeRolloutServer
