"""The sessions of a world: each begins in its turn, runs its agent loop, and makes room for the next."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from sim.case import Case, Limit, explicit_limit, params_owner
from sim.events import SessionEnded, spelled
from sim.servers.port import Clock
from sim.sut.reference.agent import Trajectory, run_turns
from sim.tokens import TokenIds, Tokens, first_token
from sim.trace import Trace
from sim.transport.wire import TurnInProgress, current_turn
from sim.world.client import ObservedClient

MakeParams = Callable[[Limit | None], dict[str, Any]]


class Sessions:
    """`live`: the tasks of those that live. `all_ended`: done when none is left, nor to come."""

    def __init__(self, case: Case, client: ObservedClient, clock: Clock, trace: Trace, make_params: MakeParams) -> None:
        self.live: dict[int, asyncio.Task[None]] = {}
        self.all_ended: asyncio.Future[None] = clock.create_future()
        self._case = case
        self._client = client
        self._clock = clock
        self._trace = trace
        self._to_begin: Iterator[int] = iter(range(case.num_sessions))
        self._params = _CallersParams(case, make_params)

    def begin(self) -> None:
        """Begins as many as may live at once."""
        for _ in range(self._case.most_live_sessions):
            self._begin_next()

    def begin_no_more(self) -> None:
        """Those that have not begun never will."""
        self._to_begin = iter(())

    def _begin_next(self) -> None:
        index = next(self._to_begin, None)
        if index is None:
            if not self.live and not self.all_ended.done():
                self.all_ended.set_result(None)
            return
        task = self._clock.create_task(self._run(index, self._params.lend(index)), name=f"session {index}")
        self.live[index] = task

        def ended(task: "asyncio.Task[None]") -> None:
            del self.live[index]
            self._client.end_session(index)
            self._params.take_back(index)
            if task.cancelled():  # before its first step, so that it could not say so itself
                self._trace.add(SessionEnded(self._clock.now_ns, index, "cancelled", 0, 0))
            self._begin_next()

        task.add_done_callback(ended)

    async def _run(self, index: int, params: dict[str, Any]) -> None:
        session = self._case.session(index)
        trajectory = Trajectory()
        outcome: Any = "ok"
        text: str | None = None
        try:
            if session.arrival_s:
                await asyncio.sleep(session.arrival_s)
            current_turn.set(TurnInProgress(index, -1))
            prompt_ids: Tokens = TokenIds.counting_from(first_token(index), session.prompt_tokens)
            if not self._client.takes_runs:
                prompt_ids = list(prompt_ids)
            response_length = self._case.budget.response_length
            await run_turns(
                self._client, f"session-{index}", prompt_ids, session.turns, params, response_length, trajectory
            )
        except asyncio.CancelledError:
            outcome = "cancelled"
        except Exception as error:
            outcome, text = "error", spelled(error)
        self._trace.add(
            SessionEnded(self._clock.now_ns, index, outcome, trajectory.response_tokens, trajectory.kept_tokens, text)
        )


class _CallersParams:
    """One params object a session; sessions that share one are lent the owner's, until all of them have ended."""

    def __init__(self, case: Case, make_params: MakeParams) -> None:
        self._case = case
        self._make_params = make_params
        self._sharers = Counter([params_owner(case, index) for index in range(len(case.sessions))])
        """How many sessions have one session's params."""
        self._lent: dict[int, tuple[dict[str, Any], list[int]]] = {}
        """By their owner: shared params, and how many sessions have not given them back."""

    def lend(self, session: int) -> dict[str, Any]:
        owner = params_owner(self._case, session)
        if owner in self._lent:
            return self._lent[owner][0]
        params = self._make_params(explicit_limit(self._case, owner))
        num_sharers = self._sharers[owner % len(self._case.sessions)]
        if num_sharers > 1:
            self._lent[owner] = params, [num_sharers]
        return params

    def take_back(self, session: int) -> None:
        owner = params_owner(self._case, session)
        if owner in self._lent:
            left = self._lent[owner][1]
            left[0] -= 1
            if not left[0]:
                del self._lent[owner]
