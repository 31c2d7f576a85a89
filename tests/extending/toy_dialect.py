"""A kind of server of its own: `double`, which assumes twice the response for a request that sets no limit.

A client that leaves the limit to it overruns without any abort; one that says what is left does not.
"""

from dataclasses import dataclass

from sim.dialects import LIMIT_KEYS, Dialect, register_dialect


@dataclass(frozen=True)
class Double:
    """Twice the response's length."""

    def terms(self, lengths, prompt_tokens):
        return (2 * lengths.response_length + 0 * prompt_tokens,)

    def spelled(self, lengths, prompt_tokens):
        return f"2 × {lengths.response_length}"


register_dialect(
    Dialect(
        "double",
        limit_keys=LIMIT_KEYS,
        default=Double(),
        least_grant=1,
        least_room=1,
        stop_reasons={"stop": "completed", "length": "completed", "abort": "aborted"},
        pause_waits_for="nothing",
    )
)
