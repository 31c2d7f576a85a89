"""Reads settings from YAML and JSON: a verl/Hydra config, a bare rollout section, or vLLM's `--config` file."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import yaml

from sim.preflight import spelling, verl
from sim.preflight.launch import UNKNOWN, Collector, Launch, LaunchDialect, Place, PreflightError
from sim.startup.flags import FLAGS

_COMMON_WORDS = frozenset(("name", "mode", "dtype", "load_format", "watermark", "block_size"))
"""Keys that half of all YAML files have: alone at the top of a document they do not make it an engine's."""
_ONLY_VLLM = frozenset(FLAGS) - frozenset(verl.ROLLOUT_DEFAULTS) | {"model", "served_model_name"}
_INTERPOLATION = re.compile(r"\$\{([^${}]*)\}")
_MAX_INTERPOLATIONS = 16
_NODES_MAX = 100_000


class _Scalar(NamedTuple):
    """One of the document's scalars: the value as it stands there, its line, and its dotted path as it is spelled."""

    value: Any
    line: int
    path: str


def read_yaml(text: str, file: str, env: Mapping[str, str]) -> list[Launch]:
    """The launches a YAML or JSON document describes; `env` answers `${oc.env:…}`. None found is an empty list."""
    document = _Document(text, file, env)
    sections: dict[str, dict[str, _Scalar]] = {}
    for path, scalar in document.scalars.items():
        normal = path.replace("-", "_")
        named = spelling.verl_path(normal)
        if named is not None:
            sections.setdefault(named[0], {})[named[1]] = scalar
        elif "." not in normal and normal in verl.ROLLOUT_DEFAULTS:
            sections.setdefault("", {})[normal] = scalar
        elif "." not in normal and (flag := spelling.vllm_flag(path)) is not None:
            # `no-enable-chunked-prefill: true` is vLLM's way to say false here.
            turned = not scalar.value if flag[1] and isinstance(scalar.value, bool) else scalar.value
            sections.setdefault("", {})[flag[0]] = scalar._replace(value=turned)
    launches = []
    for engine, section in sections.items():
        if engine:
            # A null name is verl's way to say that this engine is not in use.
            if "name" not in section or document.resolved(section["name"].value) is not None:
                launches.append(_launch("verl", engine, section, document))
        elif section.keys() <= _COMMON_WORDS:
            continue
        elif any("-" in scalar.path or scalar.path.startswith("no_") for scalar in section.values()) or any(
            path.replace("-", "_") in _ONLY_VLLM for path in document.scalars
        ):
            launches.append(_launch("vllm", "vllm", section, document))
        elif own := {name: scalar for name, scalar in section.items() if name in verl.ROLLOUT_DEFAULTS}:
            launches.append(_launch("verl", "rollout", own, document))
    return launches


def values(text: str, file: str, env: Mapping[str, str], paths: Iterable[str]) -> dict[str, Any]:
    """What a document has at these dotted paths, interpolations resolved where that is possible."""
    document = _Document(text, file, env)
    return {path: document.resolved(document.scalars[path].value) for path in paths if path in document.scalars}


def _launch(dialect: LaunchDialect, engine: str, section: Mapping[str, _Scalar], document: "_Document") -> Launch:
    settings = Collector()
    for name, scalar in section.items():
        place = Place(document.file, scalar.line)
        value = document.resolved(scalar.value)
        if isinstance(value, str) and (UNKNOWN in value or value == "???"):
            value = UNKNOWN
        else:
            if dialect == "vllm" and isinstance(value, str):
                value = spelling.vllm_value(name, value)
            try:
                value = spelling.typed(dialect, name, value, scalar.path)
            except PreflightError as error:
                raise PreflightError(f"{place}: {error}") from None
        settings.put(name, value, scalar.path, (place,))
    model = document.scalars.get(f"{engine.rpartition('.')[0]}.model.path", document.scalars.get("model"))
    return settings.launch(
        dialect,
        engine,
        model=model.value if model is not None and isinstance(model.value, str) else None,
        from_vllm_config_file=dialect == "vllm",
        place=Place(document.file, min(scalar.line for scalar in section.values())),
    )


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


class _Document:
    """A document as its scalars by dotted path; `env` answers `${oc.env:…}`."""

    def __init__(self, text: str, file: str, env: Mapping[str, str]) -> None:
        self.file, self._env = file, env
        self.scalars: dict[str, _Scalar] = {}
        queue: list[tuple[str, yaml.Node | None]] = [("", parse(text, file))]
        for path, node in queue:
            if len(queue) > _NODES_MAX:  # anchors can make a small file a huge tree
                raise PreflightError(
                    f"{file}: more than {_NODES_MAX} values, anchors followed; no configuration is that big"
                )
            if isinstance(node, yaml.ScalarNode):
                self.scalars.setdefault(path, _Scalar(_value(node), node.start_mark.line + 1, path))
            elif isinstance(node, yaml.MappingNode):
                # The last of two equal keys wins, and a mapping's own keys come before those it merges in.
                own = {str(key.value): value for key, value in node.value if key.value != "<<"}
                queue += [(f"{path}.{name}" if path else name, value) for name, value in own.items()]
                queue += [(path, value) for key, value in node.value if key.value == "<<"]

    def resolved(self, value: Any) -> Any:
        """With OmegaConf's interpolations that need nothing but this document and the environment; else UNKNOWN."""
        for _ in range(_MAX_INTERPOLATIONS):
            if not isinstance(value, str) or (match := _INTERPOLATION.search(value)) is None:
                return value
            inner = self._interpolated(match[1].strip())
            whole = match.span() == (0, len(value))
            value = inner if whole else value[: match.start()] + str(inner) + value[match.end() :]
        return UNKNOWN

    def _interpolated(self, inner: str) -> Any:
        resolver, colon, rest = inner.partition(":")
        if not colon:
            return self.scalars[inner].value if inner in self.scalars else UNKNOWN
        name, comma, default = (part.strip() for part in rest.partition(","))
        if resolver == "oc.env":
            known = name in self._env or comma
            return spelling.hydra_value(self._env.get(name, default)) if known else UNKNOWN
        if resolver == "oc.select":
            there = self.scalars.get(name)
            if there is not None and there.value is not None:
                return there.value
            return spelling.hydra_value(default) if comma else None
        return spelling.hydra_value(rest) if resolver == "oc.decode" else UNKNOWN


def _value(node: yaml.ScalarNode) -> Any:
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
