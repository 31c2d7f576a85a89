"""What a server asks of an engine in virtual time.

All times are integer nanoseconds of virtual time. An engine never looks at a clock: its server asks when the next
thing will happen if nothing interferes, and tells it how late it is.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

Finish = Literal["stop", "length"]


class Prefill(NamedTuple):
    """Where the KV of a request's prompt came from, in tokens."""

    computed_tokens: int
    """At positions that the request had not come to before."""
    cached_tokens: int
    """Found in the prefix cache, at such positions."""
    recomputed_tokens: int
    """Computed once more after a preemption, at positions that it had computed, found or decoded before."""
    stale_tokens: int
    """Of those found in the prefix cache, at any admission: computed with older weights than the present."""


class Burst(NamedTuple):
    """Tokens that a request has decoded since the last burst, and how it finished, if it did."""

    request: int
    tokens: int
    finish: Finish | None
    prefill: Prefill | None = None
    """Of a request that finished, where the engine has a prefill."""


class Left(NamedTuple):
    """What an aborted request leaves behind."""

    in_flight_tokens: int
    """Tokens of the step under way, which nobody will get: 0 or 1."""
    prefill: Prefill | None


class Stale(NamedTuple):
    """What running requests hold of KV that weights older than the present computed."""

    requests: int
    kv_tokens: int


class Moment(NamedTuple):
    """When an engine has to be called next: `advance` and, if it is the `last` thing at that instant, `start`."""

    at_ns: int
    last: bool


class DecodeEngine(Protocol):
    """The engine behind a server."""

    def add(
        self,
        now_ns: int,
        request: int,
        prompt_ids: Sequence[int],
        max_tokens: int,
        stop_after: int | None,
        output_base: int | None = None,
        priority: int = 0,
    ) -> None:
        """Takes a request that ends after `max_tokens` (length), or `stop_after` (stop) if that is not later.
        `output_base`: the id of its first output token; None: they count on from the prompt. `priority`: lower wins,
        under the priority policy only."""

    def watch(self, request: int, tokens: int) -> None:
        """Makes the moment when `request` has decoded `tokens` one at which `next_moment` stops, if that is to come.
        To be called when what it has decoded is delivered: after its `add`, a burst of it or a `flush`."""

    def abort(self, request: int) -> Left:
        """Forgets a request, right after a `flush`."""

    def pause(self, now_ns: int, mode: Literal["wait", "keep"] = "wait") -> None:
        """Admits nothing more; what is added waits. What runs goes on, or with `keep` freezes. To be called between
        steps."""

    def resume(self, now_ns: int) -> None:
        """Goes on."""

    def step_end_ns(self, now_ns: int) -> int | None:
        """When the step under way ends; None between steps, which is when all but `add` and `abort` may be called."""

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forgets the KV of what is done; False, and nothing is done, while any request holds KV, unless these are to
        compute theirs once more."""

    def set_weight_version(self, version: int) -> Stale:
        """Computes with other weights from now on."""

    @property
    def stuck(self) -> str | None:
        """Why nothing will ever happen again unless something does from outside; None while that is not so."""

    def next_moment(self) -> Moment | None:
        """When something is due next; None when nothing will happen."""

    def start(self, now_ns: int) -> None:
        """All else at this instant has happened: the next step may start."""

    def advance(self, now_ns: int) -> list[Burst]:
        """What has come to a finish or a watched moment by `now_ns`. The others' tokens can wait for theirs."""

    def flush(self, now_ns: int) -> list[Burst]:
        """Everything decoded up to and including `now_ns`, in the order in which the requests were added."""
