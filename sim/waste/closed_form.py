"""The overrun of one response under regular aborts, in closed form, vectorised.

A response of a prompt of p tokens is aborted each time it has decoded another N, and resumed. Write P and R for
prompt_length and response_length, L for where the model would stop by itself, and M for what the server's default
allows in the end: the least of P + R − p and the room behind the prompt. Then, whatever the number of aborts,

    the first attempt decodes all there is          min(L, R, M)            if that is at most N
    the server's default holds on every resume      min(L, M)               deferred; its overrun is P − p
    what is left of the budget is pinned            min(L, R, room)         pinned, where the server honours a limit
    it is pinned and the server ignores it          min(L, M, N ⌈R / N⌉)    pinned, TensorRT-LLM: it goes on until an
                                                                            abort shows the client that R is reached

`tests/waste/test_closed_form.py` holds it against the simulated world over a grid.
"""

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sim.dialects import DIALECTS
from sim.schema import MAX_TOKENS

Client: TypeAlias = Literal["deferred", "pinned"]
Tokens: TypeAlias = NDArray[np.int64]
Like: TypeAlias = Tokens | int

NEVER = 2 * MAX_TOKENS
"""A response length that no response reaches: the model does not stop by itself."""


class Response(NamedTuple):
    """Tokens of each response: `decoded` = `kept` + `overrun`."""

    decoded: Tokens
    kept: Tokens
    overrun: Tokens


def under_regular_aborts(
    dialect: str,
    client: Client,
    *,
    prompt_tokens: Like,
    prompt_length: Like,
    response_length: Like,
    context_tokens: Like,
    abort_every_tokens: Like,
    stops_after: Like = NEVER,
) -> Response:
    """What a response decodes and keeps; arguments are broadcast against each other, lengths in tokens.

    `context_tokens` is max_model_len. A server that refuses the prompt, or has no room for a token, decodes nothing.
    """
    p, big_p, r, context, n, stop = np.broadcast_arrays(
        *(
            np.asarray(each, dtype=np.int64)
            for each in (prompt_tokens, prompt_length, response_length, context_tokens, abort_every_tokens, stops_after)
        )
    )
    rules = DIALECTS[dialect]
    room = context - p - rules.reserved_tokens
    allowance = np.minimum(big_p + r - p, room)
    honours = bool(rules.limit_keys) and client == "pinned"
    first = np.clip(r if honours else np.minimum(r, allowance), rules.least_grant, None)
    first = np.minimum(np.minimum(first, np.maximum(room, 0)), stop)
    if honours:
        decoded = first
    else:
        resumed = np.minimum(stop, np.maximum(allowance, rules.least_grant))
        if client == "pinned":
            resumed = np.minimum(resumed, n * -(-r // n))
        decoded = np.where(first <= n, first, resumed)
    refused = (p >= context) if rules.least_room is None else (p >= context) | (room < rules.least_room)
    decoded = np.where(refused, 0, decoded)
    kept = np.minimum(decoded, r)
    return Response(decoded, kept, decoded - kept)
