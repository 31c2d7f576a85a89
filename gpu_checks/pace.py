"""A logits processor that only takes its time: around the tokens that a case's triggers wait for.

It runs in the engine's process. A trigger is seen in another process, some steps after its token was sampled; with
steps of 2 ms a short response would be over before the abort arrives. Slowing down the few steps at a trigger makes the
engine deliver a token or two past it, instead of dozens. No logit is touched.
"""

import time
from typing import Any

from gpu_checks.engines import SLOW_AT
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

SLOW_STEP_S = 0.04
"""Long enough for a word from the front end to arrive in time on a busy machine."""


class Pace(AdapterLogitsProcessor):
    """See the module."""

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
