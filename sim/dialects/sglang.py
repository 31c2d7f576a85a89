"""SGLang: behind verl's `SGLangHttpServer` (0.8.0, 0.9.0 and 0.9.1 alike), and with nothing in front of it."""

from sim.dialects.defaults import FixedLimit, PromptAllowance
from sim.dialects.dialect import Dialect
from sim.dialects.limits import LIMIT_KEYS, MAX_NEW_TOKENS_KEY, MAX_TOKENS_KEY

SGLANG = Dialect(
    "sglang",
    limit_keys=(MAX_NEW_TOKENS_KEY, MAX_TOKENS_KEY),
    default=PromptAllowance(),
    reserved_tokens=1,
    least_grant=0,
    least_room=0,
    unknown_keys=LIMIT_KEYS,
    stop_reasons={"stop": "stop", "length": "length", "abort": "abort", "refused": "aborted"},
    pause_waits_for="admitted",
)

PLAIN_SGLANG = Dialect(
    "plain-sglang",
    limit_keys=(MAX_NEW_TOKENS_KEY,),
    default=FixedLimit(128),
    reserved_tokens=2,
    least_grant=0,
    least_room=5,
    least_limit=0,
    refuses_beyond_context=True,
    unknown_keys=LIMIT_KEYS,
    null_is_no_limit=True,
    stop_reasons={"stop": "stop", "length": "length", "abort": "abort"},
    pause_waits_for="admitted",
)
"""The server behind `/generate` (SGLang 0.5.23). A default beyond the room is clipped, an explicit limit refused.

Its scheduler keeps back two tokens of the context, and refuses a prompt that leaves it fewer than seven.
"""
