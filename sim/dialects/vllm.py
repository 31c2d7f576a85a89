"""vLLM: behind verl's `vLLMHttpServer` (0.8.0, 0.9.0 and 0.9.1 alike), and with nothing in front of it."""

from sim.dialects.defaults import PromptAllowance, Room
from sim.dialects.dialect import Dialect
from sim.dialects.limits import LIMIT_KEYS, MAX_TOKENS_KEY

VLLM = Dialect(
    "vllm",
    limit_keys=LIMIT_KEYS,
    default=PromptAllowance(),
    least_grant=1,
    least_room=1,
    unknown_keys=LIMIT_KEYS,  # what is left of the params goes on as keywords, and vLLM refuses what it does not know
    stop_reasons={"stop": "completed", "length": "completed", "abort": "aborted", "refused": "aborted"},
    can_reject=True,
    pause_waits_for="first token",
    can_pause_without_abort=True,
)

PLAIN_VLLM = Dialect(
    "plain-vllm",
    limit_keys=(MAX_TOKENS_KEY,),
    default=Room(),
    least_grant=1,
    least_room=1,
    least_limit=1,
    null_is_no_limit=True,
    stop_reasons={"stop": "stop", "length": "length", "abort": "abort"},
    has_gate=False,
    pause_waits_for="nothing",
    can_pause_without_abort=True,
)
"""The server behind `/inference/v1/generate` (vLLM 0.32). A limit above the room ends with length."""
