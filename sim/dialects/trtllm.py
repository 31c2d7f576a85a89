"""TensorRT-LLM behind verl's `TRTLLMHttpServer` (0.8.0, 0.9.0 and 0.9.1 alike)."""

from sim.dialects.defaults import PromptAllowance
from sim.dialects.dialect import Dialect

TRTLLM = Dialect(
    "trtllm",
    limit_keys=(),  # whatever the client sends is overwritten
    default=PromptAllowance(),
    stop_reasons={"stop": None, "length": None, "abort": "aborted", "refused": "aborted"},
    can_reject=True,
    pause_waits_for="admitted",
)
