"""Logits processors that run in the engine's process, and touch nothing unless a request asks for it.

`Pace` only takes its time around the tokens that a case's triggers wait for. A trigger is seen in another process, some
steps after its token was sampled; with steps of 2 ms a short response would be over before the abort arrives. With the
few steps at a trigger slowed down, the abort falls into the step that follows it.

`Script` writes the output of a request: the schedule of a step depends on tokens where prefixes are cached, and random
weights write the same for everybody.
"""

import time
from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from gpu_checks.extra_args import OUTPUT_BASE, SLOW_AT

SLOW_STEP_S = 0.04
"""Long enough for a word from the front end to arrive in time on a busy machine."""


class Pace(AdapterLogitsProcessor):
    """Slow steps at the output tokens (from 0) listed in `extra_args`."""

    def is_argmax_invariant(self) -> bool:
        # It would be skipped for greedy requests otherwise.
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        slow_at = frozenset((params.extra_args or {}).get(SLOW_AT, ()))
        if not slow_at:
            return None

        def take_time(output_ids: list[int], logits: Any) -> Any:
            if len(output_ids) in slow_at:
                time.sleep(SLOW_STEP_S)
            return logits

        return take_time


class Script(AdapterLogitsProcessor):
    """Output token p of a request is the base in its `extra_args`, plus p."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        base = (params.extra_args or {}).get(OUTPUT_BASE)
        if base is None:
            return None

        def write(output_ids: list[int], logits: Any) -> Any:
            logits.fill_(float("-inf"))
            logits[base + len(output_ids)] = 0.0
            return logits

        return write


PROCESSORS = [f"{__name__}:{processor.__name__}" for processor in (Pace, Script)]
"""As vLLM's engine wants to be told of them."""
