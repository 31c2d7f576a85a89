"""Reads settings from words: preflight's own arguments, a `vllm serve` command line, Hydra overrides."""

import difflib
import itertools
import shlex
from collections.abc import Iterable, Sequence

from sim.preflight import spelling, verl
from sim.preflight.launch import TYPED, UNKNOWN, Collector, Launch, Place, PreflightError, Word
from sim.startup.flags import FLAGS


def read_overrides(words: Sequence[Word]) -> list[Launch]:
    """One launch per verl engine that the Hydra overrides among `words` name."""
    engines: dict[str, Collector] = {}
    models: dict[str, str] = {}
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
        settings = engines.setdefault(engine, Collector())
        if removed:
            settings.drop(setting)
            continue
        if not equals:
            raise PreflightError(f"{word.text}: an override needs a value, {path}=…")
        value = UNKNOWN if UNKNOWN in text else spelling.typed("verl", setting, spelling.hydra_value(text), path)
        settings.put(setting, value, path, word.places)
    return [
        settings.launch("verl", engine, model=models.get(engine.rpartition(".")[0]), place=words[0].places[-1])
        for engine, settings in engines.items()
    ]


def read_vllm_words(words: Sequence[Word], place: Place = TYPED) -> Launch:
    """A launch from vLLM's own flags, with or without `vllm serve MODEL` before them."""
    settings = Collector()
    ignored: list[str] = []
    model: Word | None = None
    for word, following in itertools.zip_longest(words, words[1:]):
        if word.text == "serve" and following is not None and not following.text.startswith("-"):
            model = following
        if not word.text.startswith("-"):
            continue
        flag, equals, text = word.text.partition("=")
        if flag == "--model":
            model = Word(text, word.places) if equals else following
            continue
        named = spelling.vllm_flag(flag)
        if named is None:
            ignored += [flag] if flag.startswith("--") else []
            continue
        argument, negated = named
        if FLAGS[argument].kind is bool:
            if equals or (following is not None and following.text.lower() in ("true", "false")):
                raise PreflightError(f"{flag} takes no value; write --no-{spelling.dashed(argument)} to turn it off")
            settings.put(argument, not negated, flag, word.places)
            continue
        carrier = word if equals else following
        if carrier is None or (not equals and carrier.text.startswith("--")):
            raise PreflightError(f"{flag} needs a value")
        text = text if equals else carrier.text
        value = UNKNOWN if UNKNOWN in text else spelling.vllm_value(argument, text)
        settings.put(argument, value, flag, carrier.places)
    known_model = model.text if model is not None and model.known else None
    return settings.launch("vllm", "vllm", ignored=tuple(ignored), model=known_model, place=place)


def looks_like_override(text: str) -> bool:
    """Whether a word is a Hydra override: `key=value` with a dotted or prefixed key."""
    key, equals, _ = text.partition("=")
    return (bool(equals) and not text.startswith("-") and "." in key and "/" not in key) or text.startswith("~")


def read_words(texts: Sequence[str]) -> list[Launch]:
    """The launches that preflight's own arguments describe, in vLLM's spelling or in verl's, not in both.

    verl's settings may leave out the path: `max_model_len=4096` is `rollout.max_model_len=4096`.
    """
    texts = [f"rollout.{text}" if text.partition("=")[0] in verl.ROLLOUT_DEFAULTS else text for text in texts]
    overrides = [text for text in texts if looks_like_override(text)]
    flags = [text for text in texts if not looks_like_override(text)]
    if overrides and flags:
        raise PreflightError(f"{flags[0]} is vLLM's spelling and {overrides[0]} verl's: use one of the two")
    if not overrides:
        return [_read_typed_flags(flags)]
    for text in overrides:
        path = text.partition("=")[0].lstrip("+~")
        setting = path.rpartition(".")[2]
        if spelling.verl_path(path) is None and ".rollout." in f".{path}":
            _refuse_near_miss(path, setting, verl.ROLLOUT_DEFAULTS)
    launches = read_overrides([Word(text) for text in overrides])
    if not launches:
        allowed = ", ".join(sorted(verl.ROLLOUT_DEFAULTS))
        raise PreflightError(f"{overrides[0]}: no rollout setting; known: actor_rollout_ref.rollout.{{{allowed}}}")
    return launches


def _read_typed_flags(flags: Sequence[str]) -> Launch:
    """Like a command line in a file, but a word that means nothing is an error: it was typed just now."""
    before = ""
    for word in flags:
        if not word.startswith("-") and not before.startswith("-") and word not in ("vllm", "serve"):
            if before != "serve":
                allowed = "flags of vLLM, or verl settings like actor_rollout_ref.rollout.max_model_len=4096"
                raise PreflightError(f"{word}: expected {allowed}")
        elif word.startswith("--") and spelling.vllm_flag(word.partition("=")[0]) is None:
            name = word.partition("=")[0].lstrip("-").replace("-", "_")
            _refuse_near_miss(word, name.removeprefix("no_"), FLAGS)
        before = word
    return read_vllm_words([Word(text) for text in flags])


def _refuse_near_miss(spelled: str, name: str, known: Iterable[str]) -> None:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    if close:
        raise PreflightError(f"{spelled}: no such setting; did you mean {close[0]}?")


def read_vllm_command(text: str, file: str | None = None) -> Launch:
    """A launch from a vLLM command line kept in a file or string, continued lines included."""
    try:
        texts = shlex.split(text, comments=True)
    except ValueError as error:
        raise PreflightError(f"{file or 'command line'}: not a command line: {error}") from None
    place = Place(file, 1 if file else None)
    return read_vllm_words([Word(t, (place,)) for t in texts], place)
