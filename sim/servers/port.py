"""What a server is to the rest of a world, and what it is made from.

The simulated server is `sim.servers.server.SimulatedServer`. A real engine behind the same methods, or a server that is
wrong on purpose, takes its place: whatever makes something with the methods of `RolloutServer` from `ServerParts`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from sim.case import Budget, ServerSettings
from sim.dialects import Dialect
from sim.engine.port import DecodeEngine
from sim.events import Event
from sim.servers.gate import SubmissionGate
from sim.tokens import LogProbs, Tokens


class Clock(Protocol):
    """The event loop of a world: asyncio's, with time in integer nanoseconds."""

    @property
    def now_ns(self) -> int:
        """The present, in nanoseconds since the world began."""

    def call_at_ns(
        self, when_ns: int, callback: Callable[..., object], *args: Any, last: bool = False
    ) -> asyncio.TimerHandle:
        """`call_at`, in nanoseconds. `last`: once all else at that instant has happened."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle: ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle: ...

    def create_future(self) -> "asyncio.Future[Any]": ...

    def create_task(self, coro: Any, *, name: Any = None) -> "asyncio.Task[Any]": ...


class Events(Protocol):
    """Where a server writes down what happens: the trace of its world."""

    def add(self, event: Event, /) -> None: ...


class ModelEnds(Protocol):
    """Where the fake model stops by itself, what sessions have in common, and whose turn it is first."""

    def stop_after(self, session: int, prompt_tokens: int) -> int | None:
        """Tokens that the model still generates behind this prompt; None: it never stops."""

    def shared_prompt(self, session: int) -> tuple[int, int] | None:
        """The session that has the same first prompt, and the tokens of it; None where there is none."""

    def priority(self, session: int) -> int:
        """That of its requests."""


class Watcher(Protocol):
    """Who wants to know how many tokens a session has decoded (the faults' triggers)."""

    def next_threshold(self, session: int) -> int | None:
        """The total of decoded tokens at which it wants the session's progress exactly; None: not at all."""

    def decoded(self, session: int, tokens: int) -> None:
        """`tokens` more were decoded for the session."""

    def total(self, session: int) -> int:
        """Tokens decoded for the session so far."""


class Answer(NamedTuple):
    """What a request brings its caller: `output`, as the framework's clients know it, with so many `tokens`.

    `log_probs`: whether those of its tokens are in it; None where they are not the fake model's.
    """

    tokens: int
    output: Any
    log_probs: bool | None = None


MakeOutput = Callable[[Tokens, list[float] | LogProbs | None, str | None, int], Any]
"""(token ids, their log probabilities or None, stop reason, weight version at the end) → what the client is given."""


@dataclass(frozen=True)
class ServerParts:
    """What a server is made from. `gate` and `engine` are its own; all others are its world's."""

    replica: int
    settings: ServerSettings
    dialect: Dialect
    budget: Budget
    gate: SubmissionGate
    engine: DecodeEngine
    clock: Clock
    events: Events
    model: ModelEnds
    watcher: Watcher
    make_output: MakeOutput
    version: int = 0
    """Of its weights, to begin with."""


class RolloutServer(Protocol):
    """One replica, as its world calls it. Replicas are numbered from 0, lengths are tokens.

    Control calls end when the server has done what they say. They raise what goes wrong.
    """

    @property
    def replica(self) -> int: ...

    def generate(
        self, request: int, prompt_ids: Sequence[int], sampling_params: dict[str, Any], request_id: str
    ) -> "asyncio.Future[Answer]":
        """Generates up to its grant. `request`: the number that the transport gave the call. The limit and what else
        the server understands is taken out of `sampling_params`. Raises `Refused` and TypeError at once."""

    async def abort_all(self, *, reset_prefix_cache: bool = True, reject: bool = False) -> list[str]:
        """Ends every request with what it has, and takes no new ones until `resume`; the ids of what it ended.
        `reject`: what arrives meanwhile is turned away, where the server can, instead of waiting."""

    async def abort_request(self, request_id: str, *, reset_prefix_cache: bool = True) -> bool:
        """Ends every live request of this id at once; False: there is none."""

    async def pause(self, mode: Literal["wait", "keep"], *, clear_cache: bool = True) -> None:
        """vLLM's pause without an abort: what runs comes to its end first (`wait`) or freezes (`keep`)."""

    async def resume(self) -> None:
        """Goes on."""

    @property
    def version(self) -> int:
        """Of its weights."""

    @property
    def is_paused(self) -> bool:
        """Whether it takes no steps until `resume`."""

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Empties the cache, between steps; False where blocks of it are in use. `reset_running_requests`: what runs is
        preempted first, and computed anew."""

    async def set_weight_version(self, version: int) -> None:
        """The weights are of this version from the next step on."""

    def fail_request(self, session: int, error: Exception) -> bool:
        """A live request of the session fails with what it has; False: there is none."""

    def die(self, error: Exception) -> None:
        """Everything that it has fails, and it does nothing any more."""

    def book(self) -> None:
        """Puts on the trace what is decoded by now, where the trace needs it to the token."""

    def live_request_ids(self, session: int) -> list[str]:
        """The ids of a session's requests in the engine."""

    @property
    def stuck(self) -> str | None:
        """Why its engine will never do anything again by itself; None while that is not so."""


MakeServer = Callable[[ServerParts], RolloutServer]


class Instead:
    """A part of which some methods are others: `Instead(server, resume=mine)`. For parts that are wrong on purpose, or
    watched, or wait for their turn."""

    def __init__(self, of: Any, **methods: Any) -> None:
        self.__dict__.update(methods, of=of)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.of, name, value)
