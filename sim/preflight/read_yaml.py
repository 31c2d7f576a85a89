"""Reads settings from YAML and JSON: a verl/Hydra config, a bare rollout section, or vLLM's `--config` file."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from sim.preflight import spelling, verl
from sim.preflight.launch import Launch, Place, PreflightError, Setting
from sim.preflight.read_flags import UNKNOWN, data_fed
from sim.startup import startup

_COMMON_WORDS = frozenset(("name", "mode", "dtype", "load_format", "watermark", "block_size"))
"""Keys that half of all YAML files have: alone at the top of a document they do not make it an engine's."""
_ONLY_VLLM = frozenset(startup.FLAGS) - frozenset(verl.ROLLOUT_DEFAULTS) | {"model", "served_model_name"}
_INTERPOLATION = re.compile(r"\$\{([^${}]*)\}")
_MAX_INTERPOLATIONS = 16
_NODES_MAX = 100_000


def read_yaml(text: str, file: str, env: Mapping[str, str]) -> list[Launch]:
    """The launches a YAML or JSON document describes; `env` answers `${oc.env:…}`. None found is an empty list."""
    flat = _flatten(parse(text, file), file)
    sections: dict[str, dict[str, tuple[Any, int, str]]] = {}
    for path, (value, line) in flat.items():
        normal = path.replace("-", "_")
        named = spelling.verl_path(normal)
        if named is not None:
            sections.setdefault(named[0], {})[named[1]] = (value, line, path)
        elif "." not in normal and normal in verl.ROLLOUT_DEFAULTS:
            sections.setdefault("", {})[normal] = (value, line, path)
        elif "." not in normal and (flag := spelling.vllm_flag(path)) is not None:
            # `no-enable-chunked-prefill: true` is vLLM's way to say false here.
            turned = not value if flag[1] and isinstance(value, bool) else value
            sections.setdefault("", {})[flag[0]] = (turned, line, path)
    launches = []
    for engine, section in sections.items():
        if not engine and section.keys() <= _COMMON_WORDS:
            continue
        if engine and "name" in section and _resolve(section["name"][0], flat, env) is None:
            continue  # verl's way to say that this engine is not in use
        is_vllm = engine == "" and (
            any("-" in spelled or spelled.startswith("no_") for _, _, spelled in section.values())
            or not _ONLY_VLLM.isdisjoint(path.replace("-", "_") for path in flat)
        )
        launches.append(_launch(engine, section, flat, file, env, is_vllm=is_vllm))
    return launches


def values(text: str, file: str, env: Mapping[str, str], paths: Iterable[str]) -> dict[str, Any]:
    """What a document has at these dotted paths, interpolations resolved where that is possible."""
    flat = _flatten(parse(text, file), file)
    return {path: _resolve(flat[path][0], flat, env) for path in paths if path in flat}


def parse(text: str, file: str) -> yaml.Node | None:
    """The document's nodes, which know their lines; a broken document is an error that names the line."""
    if file.endswith(".json"):
        text = text.replace("\t", " ")  # YAML has no tabs where JSON has; inside a JSON string a tab is not allowed
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else file
        raise PreflightError(f"{where}: not YAML or JSON: {getattr(error, 'problem', error)}") from None
    except RecursionError:
        raise PreflightError(f"{file}: nested too deeply to be a configuration") from None


def scalar(node: yaml.ScalarNode) -> Any:
    """A scalar's value. A YAML type that no setting has (a date, binary) stays text."""
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind in ("bool", "int", "float"):
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (ValueError, KeyError, yaml.YAMLError):
            return node.value  # tagged as a number without being one
    return node.value


def _flatten(node: yaml.Node | None, file: str) -> dict[str, tuple[Any, int]]:
    """Dotted path → (value, line) for every scalar below mappings. Anchors can make a small file a huge tree."""
    flat: dict[str, tuple[Any, int]] = {}
    queue: list[tuple[str, yaml.Node | None]] = [("", node)]
    for path, here in queue:
        if len(queue) > _NODES_MAX:
            raise PreflightError(
                f"{file}: more than {_NODES_MAX} values, anchors followed; no configuration is that big"
            )
        if isinstance(here, yaml.ScalarNode):
            flat.setdefault(path, (scalar(here), here.start_mark.line + 1))
        elif isinstance(here, yaml.MappingNode):
            # The last of two equal keys wins, and a mapping's own keys come before those it merges in.
            own = {str(key.value): value for key, value in here.value if key.value != "<<"}
            queue += [(f"{path}.{name}" if path else name, value) for name, value in own.items()]
            queue += [(path, value) for key, value in here.value if key.value == "<<"]
    return flat


def _launch(
    engine: str,
    section: Mapping[str, tuple[Any, int, str]],
    flat: Mapping[str, tuple[Any, int]],
    file: str,
    env: Mapping[str, str],
    *,
    is_vllm: bool,
) -> Launch:
    known: dict[str, Setting] = {}
    unknown: dict[str, Setting] = {}
    dialect = "vllm" if is_vllm else "verl"
    for name, (raw, line, spelled) in section.items():
        if dialect == "verl" and name.removeprefix("data:") not in verl.ROLLOUT_DEFAULTS and "." not in name:
            continue
        value = _resolve(raw, flat, env)
        places = (Place(file, line),)
        if isinstance(value, str) and (UNKNOWN in value or value == "???"):
            unknown[name] = Setting(value=None, spelled=spelled, places=places)
            continue
        if is_vllm and isinstance(value, str):
            value = spelling.vllm_value(name, value)
        known[name] = Setting(value=_typed(dialect, name, value, spelled, places[0]), spelled=spelled, places=places)
    path = flat.get(f"{engine.rpartition('.')[0]}.model.path", flat.get("model", (None, 0)))[0]
    first = min(setting.places[0].line or 0 for setting in (*known.values(), *unknown.values()))
    return Launch(
        dialect="vllm" if is_vllm else "verl",
        engine=engine or ("vllm" if is_vllm else "rollout"),
        settings=data_fed(known),
        unknown=data_fed(unknown),
        model=path if isinstance(path, str) else None,
        from_vllm_config_file=is_vllm,
        place=Place(file, first),
    )


def _typed(dialect: str, name: str, value: Any, spelled: str, place: Place) -> Any:
    try:
        return spelling.typed(dialect, name, value, spelled)
    except PreflightError as error:
        raise PreflightError(f"{place}: {error}") from None


def _resolve(value: Any, flat: Mapping[str, tuple[Any, int]], env: Mapping[str, str]) -> Any:
    """OmegaConf interpolations that need nothing but this document and the environment; others become UNKNOWN."""
    for _ in range(_MAX_INTERPOLATIONS):
        if not isinstance(value, str) or (match := _INTERPOLATION.search(value)) is None:
            return value
        inner = _interpolated(match[1].strip(), flat, env)
        whole = match.span() == (0, len(value))
        value = inner if whole else value[: match.start()] + str(inner) + value[match.end() :]
    return UNKNOWN


def _interpolated(inner: str, flat: Mapping[str, tuple[Any, int]], env: Mapping[str, str]) -> Any:
    resolver, colon, rest = inner.partition(":")
    if not colon:
        return flat[inner][0] if inner in flat else UNKNOWN
    name, comma, default = (part.strip() for part in rest.partition(","))
    if resolver == "oc.env":
        if name in env:
            return spelling.hydra_value(env[name])
        return spelling.hydra_value(default) if comma else UNKNOWN
    if resolver == "oc.select":
        if name in flat and flat[name][0] is not None:
            return flat[name][0]
        return spelling.hydra_value(default) if comma else None
    if resolver == "oc.decode":
        return spelling.hydra_value(rest)
    return UNKNOWN
