"""What a reader hands over: a launch of one engine, each setting with the line it came from."""

from typing import Any, Literal

import msgspec

Dialect = Literal["vllm", "verl"]


class PreflightError(Exception):
    """Something could not be read. The message names the thing, its value and what is allowed."""


class Place(msgspec.Struct, frozen=True):
    """A line of a file; both None for something typed on preflight's own command line."""

    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return "command line"
        return self.file if self.line is None else f"{self.file}:{self.line}"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting as somebody spelled it. `places`: where the value was written first, where it is used last."""

    value: Any
    spelled: str
    places: tuple[Place, ...] = (Place(),)


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One engine about to be started.

    `settings` are keyed by vLLM's argument name or verl's rollout setting (`engine_kwargs.vllm.X` for a pass-through);
    a key that is not there is unset. `unknown` holds those set to something that cannot be known here, `ignored` the
    engine flags that no rule speaks of.
    """

    dialect: Dialect
    engine: str
    settings: dict[str, Setting]
    unknown: dict[str, Setting] = {}
    ignored: tuple[str, ...] = ()
    model: str | None = None
    allow_longer_context: bool = False
    from_vllm_config_file: bool = False
    place: Place = Place()
