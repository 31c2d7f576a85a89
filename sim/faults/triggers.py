"""When a fault acts: at a time, or once something has happened, which alone can be replayed on a real engine."""

from typing import Annotated, TypeAlias

from msgspec import Meta

from sim.schema import MAX_TIME_S, MAX_TOKENS, Data, Index, Seconds


class AtTime(Data, frozen=True, tag_field="on", tag="time"):
    """At a point of virtual time."""

    time_s: Seconds


class AfterTokens(Data, frozen=True, tag_field="on", tag="tokens"):
    """Once `session` has decoded `tokens` in all, over all of its requests. Can be replayed on a real engine."""

    session: Index
    tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]


class AfterSent(Data, frozen=True, tag_field="on", tag="sent"):
    """Once `session` has sent its request number `requests` (from 1) to a server. Can be replayed on a real engine."""

    session: Index
    requests: Annotated[int, Meta(ge=1, le=100_000)]


class Every(Data, frozen=True, tag_field="on", tag="every"):
    """Again and again until all sessions have ended: first after `time_s`, then `time_s` after the last was over.

    Not for ever, where it keeps them from ending: see `sim.world.bounds`.
    """

    time_s: Annotated[float, Meta(ge=1e-6, le=MAX_TIME_S)]


When: TypeAlias = AtTime | AfterTokens | AfterSent | Every
