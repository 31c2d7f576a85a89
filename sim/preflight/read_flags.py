"""Reads settings from words: preflight's own arguments, a `vllm serve` command line, Hydra overrides."""

import shlex
from collections.abc import Sequence

from sim.engine import startup
from sim.preflight import spelling, verl
from sim.preflight.launch import Launch, Place, PreflightError, Setting

UNKNOWN = "\0"
"""Stands in a word for a part that cannot be known here: a shell variable set elsewhere, a command's output."""

TYPED = Place()
"""The place of a word typed on preflight's own command line."""


class Word:
    """A word and where it was written: `places[0]` where its text came from, the last where it is used."""

    __slots__ = ("places", "text")

    def __init__(self, text: str, places: tuple[Place, ...] = (TYPED,)) -> None:
        self.text, self.places = text, places

    def __repr__(self) -> str:
        return f"Word({self.text!r}, {' ← '.join(map(str, self.places))})"

    @property
    def known(self) -> bool:
        return UNKNOWN not in self.text


def read_overrides(words: Sequence[Word]) -> list[Launch]:
    """One launch per verl engine that the Hydra overrides among `words` name."""
    engines: dict[str, tuple[dict[str, Setting], dict[str, Setting]]] = {}
    models: dict[str, str] = {}
    place = words[0].places[-1] if words else Place()
    for word in words:
        path, equals, text = word.text.partition("=")
        path = path.lstrip("+")
        removed = path.startswith("~")
        path = path.lstrip("~")
        if path.endswith(".model.path") and equals and word.known:
            models[path.removesuffix(".model.path")] = text
        named = spelling.verl_path(path)
        if named is None:
            continue
        engine, setting = named
        known, unknown = engines.setdefault(engine, ({}, {}))
        known.pop(setting, None)
        unknown.pop(setting, None)
        if removed:
            continue
        if not equals:
            raise PreflightError(f"{word.text}: an override needs a value, {path}=…")
        if UNKNOWN in text:
            unknown[setting] = Setting(value=None, spelled=path, places=word.places)
        else:
            value = spelling.typed("verl", setting, spelling.hydra_value(text), path)
            known[setting] = Setting(value=value, spelled=path, places=word.places)
    return [
        Launch(
            dialect="verl",
            engine=engine,
            settings=data_fed(known),
            unknown=data_fed(unknown),
            model=models.get(engine.rpartition(".")[0]),
            place=place,
        )
        for engine, (known, unknown) in engines.items()
    ]


def data_fed(settings: dict[str, Setting]) -> dict[str, Setting]:
    """`data.max_prompt_length` becomes prompt_length where that is not set itself."""
    own = {name: setting for name, setting in settings.items() if not name.startswith("data:")}
    fed = {name.removeprefix("data:"): s for name, s in settings.items() if name.startswith("data:")}
    return fed | own


def read_vllm_words(words: Sequence[Word], place: Place = TYPED) -> Launch:
    """A launch from vLLM's own flags, with or without `vllm serve MODEL` before them."""
    known: dict[str, Setting] = {}
    unknown: dict[str, Setting] = {}
    model = None
    queue = list(words)
    for position, word in enumerate(queue):
        if word.text == "serve" and position + 1 < len(queue) and not queue[position + 1].text.startswith("-"):
            model = queue[position + 1].text if queue[position + 1].known else None
        if not word.text.startswith("-"):
            continue
        flag, equals, text = word.text.partition("=")
        if flag in ("--model", "-m") and not equals and position + 1 < len(queue) and flag == "--model":
            model = queue[position + 1].text if queue[position + 1].known else None
        named = spelling.vllm_flag(flag)
        if named is None:
            continue
        argument, negated = named
        following = queue[position + 1] if position + 1 < len(queue) else None
        if startup.FLAGS[argument].kind is bool:
            if equals or (following is not None and following.text.lower() in ("true", "false")):
                off = f"--no-{argument.replace('_', '-')}"
                raise PreflightError(f"{flag} takes no value; write {off} to turn it off")
            known[argument] = Setting(value=not negated, spelled=flag, places=word.places)
            continue
        carrier = word if equals else following
        if carrier is None or (not equals and carrier.text.startswith("--")):
            raise PreflightError(f"{flag} needs a value")
        text = text if equals else carrier.text
        known.pop(argument, None)
        unknown.pop(argument, None)
        if UNKNOWN in text:
            unknown[argument] = Setting(value=None, spelled=flag, places=carrier.places)
        else:
            value = spelling.vllm_value(argument, text)
            known[argument] = Setting(value=value, spelled=flag, places=carrier.places)
    return Launch(dialect="vllm", engine="vllm", settings=known, unknown=unknown, model=model, place=place)


def looks_like_override(text: str) -> bool:
    """Whether a word is a Hydra override: `key=value` with a dotted or prefixed key."""
    key, equals, _ = text.partition("=")
    return (bool(equals) and not text.startswith("-") and "." in key and "/" not in key) or text.startswith("~")


def read_words(texts: Sequence[str]) -> list[Launch]:
    """The launches that preflight's own arguments describe, in vLLM's spelling or in verl's, not in both."""
    overrides = [text for text in texts if looks_like_override(text)]
    flags = [text for text in texts if not looks_like_override(text)]
    if overrides and flags:
        raise PreflightError(f"{flags[0]} is vLLM's spelling and {overrides[0]} verl's: use one of the two")
    if overrides:
        launches = read_overrides([Word(text) for text in overrides])
        if not launches:
            allowed = ", ".join(sorted(verl.ROLLOUT_DEFAULTS))
            raise PreflightError(f"{overrides[0]}: no rollout setting; known: actor_rollout_ref.rollout.{{{allowed}}}")
        return launches
    for word in flags:
        if word.startswith("--") and spelling.vllm_flag(word.partition("=")[0]) is None and word != "--model":
            allowed = ", ".join("--" + name.replace("_", "-") for name in startup.FLAGS)
            raise PreflightError(f"{word}: not a flag that decides a start; known: {allowed}")
    return [read_vllm_words([Word(text) for text in flags])]


def read_vllm_command(text: str, file: str | None = None) -> Launch:
    """A launch from a vLLM command line kept in a file or string, continued lines included."""
    try:
        texts = shlex.split(text, comments=True)
    except ValueError as error:
        raise PreflightError(f"{file or 'command line'}: not a command line: {error}") from None
    place = Place(file, 1 if file else None)
    return read_vllm_words([Word(t, (place,)) for t in texts], place)
