"""What a reader hands over: a launch of one engine, each setting with the line it came from."""

from typing import Any, Literal

import msgspec

LaunchDialect = Literal["vllm", "verl"]

UNKNOWN = "\0"
"""Stands in a text for a part that cannot be known here: a shell variable set elsewhere, a command's output."""


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


TYPED = Place()
"""The place of a word typed on preflight's own command line."""


class Word(msgspec.Struct, frozen=True):
    """A word and where it was written: `places[0]` where its text came from, the last where it is used."""

    text: str
    places: tuple[Place, ...] = (TYPED,)

    @property
    def known(self) -> bool:
        return UNKNOWN not in self.text


class WrittenSetting(msgspec.Struct, frozen=True):
    """A setting as somebody spelled it. `places`: where the value was written first, where it is used last."""

    value: Any
    spelled: str
    places: tuple[Place, ...] = (TYPED,)


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One engine about to be started.

    `settings` are keyed by vLLM's argument name or verl's rollout setting (`engine_kwargs.vllm.X` for a pass-through);
    a key that is not there is unset. `unknown` holds those set to something that cannot be known here, `ignored` the
    engine flags that no rule speaks of.
    """

    dialect: LaunchDialect
    engine: str
    settings: dict[str, WrittenSetting]
    unknown: dict[str, WrittenSetting] = {}
    ignored: tuple[str, ...] = ()
    model: str | None = None
    allow_longer_context: bool = False
    from_vllm_config_file: bool = False
    place: Place = TYPED


class Fed(msgspec.Struct, frozen=True):
    """An environment variable handed to a script that is not at hand, so nobody can say whether it is read."""

    name: str
    text: str
    script: str
    places: tuple[Place, ...]


class Reading(msgspec.Struct):
    """What files, and the scripts they call, would launch; `errors` are sentences on what could not be read."""

    launches: list[Launch] = []
    unread: list[Fed] = []
    errors: list[str] = []
    calls: int = 0
    """Calls of scripts followed so far."""


class Collector:
    """Collects the settings of one launch as they are read: the last word on each, those not known here apart.

    A name that begins with `data:` is verl's way to set a length for an engine that does not set it itself.
    """

    def __init__(self) -> None:
        self._known: dict[str, WrittenSetting] = {}
        self._unknown: dict[str, WrittenSetting] = {}

    def drop(self, name: str) -> None:
        self._known.pop(name, None)
        self._unknown.pop(name, None)

    def put(self, name: str, value: Any, spelled: str, places: tuple[Place, ...]) -> None:
        """`value` is UNKNOWN where it cannot be known here."""
        self.drop(name)
        if value == UNKNOWN:
            self._unknown[name] = WrittenSetting(None, spelled, places)
        else:
            self._known[name] = WrittenSetting(value, spelled, places)

    def launch(self, dialect: LaunchDialect, engine: str, **more: Any) -> Launch:
        """The launch with these settings; `more` are further fields of the `Launch`."""
        settings, unknown = _data_fed(self._known), _data_fed(self._unknown)
        return Launch(dialect=dialect, engine=engine, settings=settings, unknown=unknown, **more)


def _data_fed(settings: dict[str, WrittenSetting]) -> dict[str, WrittenSetting]:
    fed = {name.removeprefix("data:"): setting for name, setting in settings.items() if name.startswith("data:")}
    return fed | {name: setting for name, setting in settings.items() if not name.startswith("data:")}
