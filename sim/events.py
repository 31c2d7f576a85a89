"""What can happen in a run: one frozen type an event.

Times are integer nanoseconds of virtual time; a *request* is numbered in the order in which requests were sent.
"""

import re
from typing import Any, Literal

import msgspec

from sim.dialects import Outcome
from sim.tokens import Ids, LogProbRuns


class _Event(msgspec.Struct, frozen=True, tag=True, gc=False):
    t_ns: int


class TurnStarted(_Event, frozen=True, tag="turn_started"):
    """A call of the client's generate begins. `prompt`: the ids that it is given; None: not noted."""

    session: int
    turn: int
    prompt_tokens: int
    prompt: Ids | None = None


class Acquired(_Event, frozen=True, tag="acquired"):
    """The balancer's choice reached the client."""

    session: int
    turn: int
    replica: int


class Sent(_Event, frozen=True, tag="sent"):
    """A client sent a request to a server. `limits`: the limits in its sampling params, by spelling.

    `prompt`: the ids of its prompt; None: not noted. Of a prompt whose ids are no integers there are none.
    """

    request: int
    session: int
    turn: int
    attempt: int
    replica: int
    prompt_tokens: int
    limits: dict[str, Any]
    prompt: Ids | None = None


class Granted(_Event, frozen=True, tag="granted"):
    """The server settled on a max_tokens; fields as in `sim.dialects.grants.Grant`."""

    request: int
    tokens: int
    rule: str
    wanted_tokens: int
    room_tokens: int


class Parked(_Event, frozen=True, tag="parked"):
    """The request waits at a closed submission gate."""

    request: int


class Admitted(_Event, frozen=True, tag="admitted"):
    """The request is in the engine."""

    request: int


class Prefilled(_Event, frozen=True, tag="prefilled"):
    """Where the KV of a request's prompt came from, said when the request leaves the engine; see
    `sim.engine.port.Prefill`. What a resume computes again is among the computed tokens of later attempts."""

    request: int
    computed_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    stale_tokens: int


class Decoded(_Event, frozen=True, tag="decoded"):
    """A run of tokens was decoded: `tokens` of them, the first at absolute position `position`."""

    request: int
    position: int
    tokens: int
    version: int


class Ended(_Event, frozen=True, tag="ended"):
    """The server is done with the request; see `Outcome`.

    `in_flight_tokens`: decoded by the step under way when the request was aborted by its id, for nobody.
    """

    request: int
    outcome: Outcome
    tokens: int
    error: str | None = None
    in_flight_tokens: int = 0


class Delivered(_Event, frozen=True, tag="delivered"):
    """The server's answer reached its caller, with this many tokens. `log_probs`: whether it brought theirs; None: not
    noted, or they are not those of the fake model."""

    request: int
    tokens: int
    log_probs: bool | None = None


class Discarded(_Event, frozen=True, tag="discarded"):
    """The server's answer found no caller (it was cancelled)."""

    request: int
    tokens: int


class Awaited(_Event, frozen=True, tag="awaited"):
    """The balancer's `async def` method for a message awaits something: its `Message` comes at the end of that, and
    others may be handled in between."""

    kind: str
    session: int | None
    turn: int | None


class Lost(_Event, frozen=True, tag="lost"):
    """The call brought its caller an error in the place of an answer, through no fault of the caller: the server failed
    or died, or the answer was lost. What was decoded for it is lost."""

    request: int
    error: str


class Message(_Event, frozen=True, tag="message"):
    """The balancer has handled a message about `replicas`.

    `loads`: its own count for each replica afterwards (None: not registered), None where it shows none;
    `total`: its get_total_inflight. `in_flight`: messages on their way to it, or begun and not handled.
    """

    kind: str
    session: int | None
    turn: int | None
    replicas: tuple[int, ...]
    loads: tuple[int | None, ...] | None
    total: int | None
    in_flight: int
    error: str | None = None


class Paused(_Event, frozen=True, tag="paused", omit_defaults=True):
    """A replica takes nothing new, and has ended its requests: their count as it reports it. With a `mode` of vLLM's
    other than `abort` it let them end (`wait`), or froze them (`keep`)."""

    replica: int
    aborted: int
    mode: Literal["abort", "wait", "keep"] = "abort"


class Resumed(_Event, frozen=True, tag="resumed"):
    replica: int


class VersionChanged(_Event, frozen=True, tag="version_changed"):
    """`stale_requests`: running requests that keep KV of older weights; `stale_kv_tokens`: tokens in it."""

    replica: int
    version: int
    stale_requests: int = 0
    stale_kv_tokens: int = 0


class Crashed(_Event, frozen=True, tag="crashed"):
    """A replica is dead, with all that it had: requests, KV, the state of its gate."""

    replica: int


class Restarted(_Event, frozen=True, tag="restarted"):
    """A replica that was dead is back, empty, with weights of this version."""

    replica: int
    version: int


class Cancelled(_Event, frozen=True, tag="cancelled"):
    """The task that runs a session was cancelled."""

    session: int


class FaultFired(_Event, frozen=True, tag="fault_fired"):
    """A fault acted; `note` says so where it found nothing to act on."""

    fault: int
    kind: str
    note: str = ""


class Logged(_Event, frozen=True, tag="logged"):
    """A warning (or worse) from the system under test."""

    logger: str
    text: str


class TurnEnded(_Event, frozen=True, tag="turn_ended"):
    """The client's generate returned, raised or was cancelled.

    `ids`: the tokens that it returned. `log_probs`: what it returned for them, as `sim.tokens.log_probs_as_runs` has
    it; None where it returned none at all. `params_changed`: how the caller's sampling params differ from before the
    call.
    """

    session: int
    turn: int
    outcome: Literal["ok", "cancelled", "error"]
    ids: Ids
    stop_reason: str | None
    min_version: int | None
    max_version: int | None
    params_changed: str | None
    error: str | None = None
    log_probs: LogProbRuns | None = None


class SessionEnded(_Event, frozen=True, tag="session_ended"):
    """An agent loop is done. `response_tokens`: model and tool tokens before its slice; `kept_tokens`: after it."""

    session: int
    outcome: Literal["ok", "cancelled", "error"]
    response_tokens: int
    kept_tokens: int
    error: str | None = None


class WorldEnded(_Event, frozen=True, tag="world_ended"):
    """`done`: everything ended; `deadlock`: nothing could go on; `horizon`: the bound of virtual time; `livelock`."""

    reason: Literal["done", "deadlock", "horizon", "livelock"]
    waiting: tuple[tuple[str, str], ...] = ()


Event = (
    TurnStarted
    | Acquired
    | Sent
    | Granted
    | Parked
    | Admitted
    | Prefilled
    | Decoded
    | Ended
    | Delivered
    | Discarded
    | Awaited
    | Lost
    | Message
    | Paused
    | Resumed
    | VersionChanged
    | Crashed
    | Restarted
    | Cancelled
    | FaultFired
    | Logged
    | TurnEnded
    | SessionEnded
    | WorldEnded
)


def spelled(error: BaseException) -> str:
    """An error as text that is the same in every process."""
    return without_addresses(f"{type(error).__name__}: {error}")


def without_addresses(text: str) -> str:
    """A text without the memory addresses that the repr of an object has."""
    return _ADDRESS.sub("…", text) if "x" in text else text


_ADDRESS = re.compile(r"0?x[0-9a-f]{8,}\b")
