"""What a face has behind it: one replica, asked over the transport like any other."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sim.dialects import LIMIT_KEYS
from sim.servers.failures import CallFailed
from sim.servers.mortal import MortalServer
from sim.sut.framework import Returned
from sim.tokens import session_of
from sim.transport.handles import Handle
from sim.transport.protocol import AskedFor, RequestProtocol
from sim.transport.wire import TurnInProgress, current_turn


def _asked_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AskedFor:
    prompt_ids = kwargs.get("prompt_ids", args[0] if args else ())
    params = kwargs.get("sampling_params", args[1] if len(args) > 1 else {})
    return AskedFor(prompt_ids, {key: params[key] for key in LIMIT_KEYS if key in params})


REQUESTS = RequestProtocol("generate", _asked_for)
"""How a face asks the server behind it."""


@dataclass
class Replica:
    """`server` and the handle of it. `turn_of(session)`: the turn that a session is in, or was last; None before its
    first. A request belongs to that of its session when it arrives. `read`: what the server answers, as its framework
    has it."""

    server: MortalServer
    handle: Handle
    turn_of: Callable[[int], TurnInProgress | None]
    read: Callable[[Any], Returned]
    requests: int = 0
    """Taken so far."""
    live: dict[str, None] = field(default_factory=dict)
    """Ids of requests that have no answer yet."""

    def next_id(self) -> str:
        """For a request that brings none."""
        self.requests += 1
        return f"{self.server.replica}-{self.requests - 1}"

    async def generate(self, token_ids: Sequence[int], params: dict[str, Any], request_id: str) -> Returned:
        """Raises what the server raises, and LookupError for tokens of no session that has begun. When it is cancelled,
        the server aborts the request."""
        turn = self.turn_of(session_of(token_ids[0]))
        if turn is None:
            raise LookupError(f"token {token_ids[0]} belongs to no session that has begun")
        current_turn.set(turn)
        self.live[request_id] = None
        answer = self.handle.generate.remote(prompt_ids=token_ids, sampling_params=params, request_id=request_id)
        try:
            return self.read(await answer)
        finally:
            del self.live[request_id]
            if answer.cancelled():
                with suppress(CallFailed):  # it is dead
                    await self.server.abort_request(request_id, reset_prefix_cache=False)
