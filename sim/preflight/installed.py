"""What the installed packages are, read from their files: nothing here imports verl or vLLM, which takes seconds.

A fork is judged by its structure, not by its version number.
"""

import ast
import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sim.preflight.launch import PreflightError
from sim.preflight.verl import Release
from sim.startup.rules import Version

_SERVER = "workers/rollout/vllm_rollout/vllm_async_server.py"
_ROLLOUT_CONFIG = "workers/config/rollout.py"
_CLI_ARGUMENTS = "workers/rollout/vllm_rollout/utils.py"


def version(*distributions: str) -> Version:
    """The version of the first of these distributions that is installed."""
    for name in distributions:
        try:
            text = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return _numbers(text.split("+")[0])
    raise PreflightError(f"{distributions[0]} is not installed here: name a version, {distributions[0]}==…")


def _numbers(text: str) -> Version:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def verl_dir() -> Path:
    """Where verl's package lies."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise PreflightError("verl is not installed here: name a version, verl==…")
    return Path(next(iter(spec.submodule_search_locations)))


def release() -> Release:
    """The installed verl, by what its code does: whether it has the net, may raise, and passes false on."""
    root = verl_dir()
    validate = _function(root / _SERVER, "_validate_configs")
    assigned = {
        target.attr
        for node in ast.walk(validate)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }
    config = _find(root / _ROLLOUT_CONFIG, "RolloutConfig")
    mutable: set[str] = set()
    for node in config.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_mutable_fields":
            mutable = set(ast.literal_eval(node.value))
    yaml_text = (root / "trainer" / "config" / "rollout" / "rollout.yaml").read_text()
    seqs = next(line for line in yaml_text.splitlines() if line.startswith("max_num_seqs:"))
    return Release(
        version=_numbers((root / "version" / "version").read_text().strip()),
        max_num_seqs=int(seqs.partition(":")[2]),
        has_net="max_num_batched_tokens" in assigned,
        batch_is_frozen="max_num_batched_tokens" not in mutable,
        forwards_false="--no-" in ast.unparse(_function(root / _CLI_ARGUMENTS, "build_cli_args_from_config")),
    )


def validate_configs(**names: Any) -> Callable[[Any], None]:
    """verl's own `_validate_configs`, compiled out of the installed file, so that vLLM need not be there.

    `names` stand in for what its module imports (`get_max_position_embeddings`, `logger`).
    """
    return _compiled(_SERVER, "_validate_configs", names)


def build_cli_args(**names: Any) -> Callable[[dict[str, Any]], list[str]]:
    """verl's own `build_cli_args_from_config`, compiled the same way."""
    return _compiled(_CLI_ARGUMENTS, "build_cli_args_from_config", names)


def _compiled(file: str, name: str, names: dict[str, Any]) -> Callable[..., Any]:
    path = verl_dir() / file
    function = _function(path, name)
    function.decorator_list = []
    # Annotations name things of modules that are not imported here, and do not matter when the function runs.
    function.returns = None
    for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        argument.annotation = None
    namespace = dict(names)
    exec(compile(ast.Module([function], []), str(path), "exec"), namespace)
    compiled: Callable[..., Any] = namespace[name]
    return compiled


def _function(path: Path, name: str) -> ast.FunctionDef:
    found = _find(path, name)
    assert isinstance(found, ast.FunctionDef), name
    return found


def _find(path: Path, name: str) -> ast.FunctionDef | ast.ClassDef:
    """The function or class called `name` in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node
    raise PreflightError(f"{path}: no {name} in it; this verl is built differently from those known here")
