"""The classes of the installed verl package: its own client and load balancer, with no Ray cluster.

They are found by name and shape, not by version number, so that a fork works, and wherever they have moved inside the
package. Known homes, looked at first: the client in `verl.workers.rollout.llm_server` (0.9.0, 0.9.1) or
`verl.experimental.fully_async_policy.fully_async_rollouter` (0.8.0), the balancer in `verl.workers.rollout.router`
(0.9.1) or `…llm_server` (0.8.0, a Ray actor class; 0.9.0).
"""

import importlib
import importlib.metadata
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.sut.framework import Framework, Sut
from sim.sut.interface import Client, Context, SutError, unwrapped

_CLIENTS = {"verl": "FullyAsyncLLMServerClient", "verl:plain": "LLMServerClient"}
_BALANCER = "GlobalRequestLoadBalancer"
_HOMES = (
    "verl.workers.rollout.llm_server",
    "verl.workers.rollout.router",
    "verl.experimental.fully_async_policy.fully_async_rollouter",
)
_INSTALL = "in a clone, with Python below 3.13: pip install '.[verl]', or uv run --python 3.12 --extra verl …"
_BALANCER_METHODS = ("acquire_server", "release_server", "add_servers", "remove_servers", "get_status")


def load(name: str, framework: Framework) -> Sut:
    """The installed verl as a SUT: `verl` with the client that resumes, `verl:plain` with the one that does not.

    Raises `SutError` that names the missing package, class or method.
    """
    try:
        package = importlib.import_module("verl")
    except ImportError as error:
        missing = _missing(error)
        if missing is None:
            raise SutError(f"SUT {name!r}: verl cannot be imported: {error}") from error
        if missing == "verl":
            raise SutError(f"SUT {name!r} needs the package verl, which is not installed: {_INSTALL}") from error
        raise _lacks(name, missing) from error
    client = _find(name, package, _CLIENTS[name])
    generate = getattr(client, "generate", None)
    parameters = inspect.signature(generate).parameters if generate is not None else {}
    for parameter in ("request_id", "prompt_ids", "sampling_params"):
        if parameter not in parameters:
            raise SutError(f"SUT {name!r} cannot be driven: {_CLIENTS[name]}.generate has no parameter {parameter!r}")
    balancer = _find(name, package, _BALANCER)
    plain_balancer = unwrapped(balancer)
    for method in _BALANCER_METHODS:
        if not callable(getattr(plain_balancer, method, None)):
            raise SutError(f"SUT {name!r} cannot be driven: {_BALANCER} has no method {method!r}")

    def make(context: Context) -> Client:
        made: Client = client(config=context.config, load_balancer_handle=context.make_balancer(balancer))
        return made

    return Sut(name, f"{name}=={_version(package)}", make, framework)


def _missing(error: ImportError) -> str | None:
    """The package that is not installed; None where it is something else."""
    return error.name.partition(".")[0] if isinstance(error, ModuleNotFoundError) and error.name else None


def _lacks(name: str, package: str) -> SutError:
    return SutError(f"SUT {name!r}: verl is installed, and the package {package}, which it imports, is not: {_INSTALL}")


def _find(name: str, package: Any, wanted: str) -> Any:
    """A class of verl: in its known homes, else wherever the package's source defines it."""
    failures, missing = [], None
    for home in itertools.chain(_HOMES, _definitions(package, wanted)):
        try:
            found = getattr(importlib.import_module(home), wanted, None)
        except ImportError as error:
            failures.append(f"{home}: {error}")
            if _missing(error) not in (None, "verl"):
                missing = missing or _missing(error)
            continue
        if found is not None:
            return found
        failures.append(f"{home}: not there")
    if missing is not None:
        raise _lacks(name, missing)
    raise SutError(f"SUT {name!r} cannot be driven: no {wanted} in verl ({'; '.join(failures)})")


def _definitions(package: Any, wanted: str) -> Iterator[str]:
    """The modules of a package whose source defines a class of that name; looked for when it is asked for them."""
    definition = re.compile(rf"^class {wanted}\b", re.MULTILINE)
    for folder in map(Path, getattr(package, "__path__", ())):
        for file in sorted(folder.rglob("*.py")):
            if definition.search(file.read_text(encoding="utf-8", errors="replace")):
                parts = (package.__name__, *file.relative_to(folder).with_suffix("").parts)
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _version(package: Any) -> str:
    version = getattr(package, "__version__", None)
    return version if isinstance(version, str) else importlib.metadata.version("verl")
