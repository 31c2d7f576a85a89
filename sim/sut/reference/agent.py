"""The agent loop: a session's turns, with a tool's answer between them.

As verl's ToolAgentLoop does: response_length bounds model and tool tokens together, is checked after each of them,
and what goes beyond is sliced away at the end. The model writes a tool call at the end of a turn: one that is cut has
none, and is the last. A session of one turn is its SingleTurnAgentLoop.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sim.case import Turn
from sim.sut.interface import Client
from sim.tokens import TokenIds, Tokens


@dataclass(slots=True)
class Trajectory:
    """Response tokens of a session, model and tool: before and after the slice."""

    response_tokens: int = 0
    kept_tokens: int = 0


async def run_turns(
    client: Client,
    request_id: str,
    prompt_ids: Tokens,
    turns: tuple[Turn, ...],
    sampling_params: dict[str, Any],
    response_length: int,
    trajectory: Trajectory,
) -> None:
    """Runs the turns and keeps `trajectory` up to date, so that a cancelled session leaves what it had."""
    origin = prompt_ids[0]
    for number, turn in enumerate(turns):
        output = await client.generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)
        _account(trajectory, len(output.token_ids), response_length)
        last = number == len(turns) - 1
        if last or trajectory.response_tokens >= response_length or not _calls_tool(turn, len(output.token_ids)):
            break
        if turn.tool_time_s:
            await asyncio.sleep(turn.tool_time_s)
        if trajectory.response_tokens + turn.tool_tokens >= response_length:
            break
        prompt_ids = _extended(prompt_ids, output.token_ids)
        position = origin + len(prompt_ids)
        prompt_ids = _extended(prompt_ids, range(position, position + turn.tool_tokens))
        _account(trajectory, turn.tool_tokens, response_length)


def _calls_tool(turn: Turn, returned_tokens: int) -> bool:
    """Whether the model came to the end that it makes itself."""
    return turn.response_tokens is not None and returned_tokens >= turn.response_tokens


def _extended(ids: Tokens, more: Sequence[int]) -> Tokens:
    """New ids, of the kind that they were."""
    return ids + more if isinstance(ids, TokenIds) else [*ids, *more]


def _account(trajectory: Trajectory, tokens: int, response_length: int) -> None:
    trajectory.response_tokens += tokens
    trajectory.kept_tokens = min(trajectory.response_tokens, response_length)
