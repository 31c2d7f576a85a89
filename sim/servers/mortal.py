"""A server that can die and come back, and whose control calls can fail."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from sim.events import Crashed, Ended, Restarted
from sim.faults.stage import ControlCall
from sim.servers.failures import ActorDiedError, ActorUnavailableError, ServerError
from sim.servers.port import Answer, Clock, Events, RolloutServer

Result = TypeVar("Result")


@dataclass(slots=True)
class _Failure:
    call: ControlCall
    times: int
    is_done: bool


class MortalServer:
    """A replica over its lives; see `sim.servers.port.RolloutServer`. `make(version)`: the server of a new life, empty
    and with weights of that version."""

    def __init__(
        self, replica: int, make: Callable[[int], RolloutServer], clock: Clock, events: Events, version: int = 0
    ) -> None:
        self.replica = replica
        self._make = make
        self._clock = clock
        self._events = events
        self._server = make(version)
        self._death: ActorDiedError | None = None
        self._failures: list[_Failure] = []

    # What faults do to it

    @property
    def is_dead(self) -> bool:
        return self._death is not None

    def crash(self) -> None:
        """Dies, if it lives."""
        if self._death is None:
            self._death = ActorDiedError(f"replica {self.replica} is dead")
            self._server.die(self._death)
            self._events.add(Crashed(self._clock.now_ns, self.replica))

    def restart(self, version: int) -> None:
        """Is back, empty, with weights of that version."""
        self._server, self._death = self._make(version), None
        self._events.add(Restarted(self._clock.now_ns, self.replica, version))

    def fail_control(self, call: ControlCall, times: int, is_done: bool) -> None:
        """The next so many of these calls raise; `is_done`: having done what they say."""
        self._failures.append(_Failure(call, times, is_done))

    # What its callers do

    def generate(
        self, request: int, prompt_ids: Sequence[int], sampling_params: dict[str, Any], request_id: str
    ) -> "asyncio.Future[Answer]":
        if self._death is not None:
            self._events.add(Ended(self._clock.now_ns, request, "error", 0, str(self._death)))
            raise self._death
        return self._server.generate(request, prompt_ids, sampling_params, request_id)

    async def abort_all(self, *, reset_prefix_cache: bool = True, reject: bool = False) -> list[str]:
        return await self._control(
            "abort", lambda server: server.abort_all(reset_prefix_cache=reset_prefix_cache, reject=reject)
        )

    async def abort_request(self, request_id: str, *, reset_prefix_cache: bool = True) -> bool:
        return await self._control(
            None, lambda server: server.abort_request(request_id, reset_prefix_cache=reset_prefix_cache)
        )

    async def pause(self, mode: Literal["wait", "keep"], *, clear_cache: bool = True) -> None:
        await self._control("abort", lambda server: server.pause(mode, clear_cache=clear_cache))

    async def resume(self) -> None:
        await self._control("resume", lambda server: server.resume())

    @property
    def version(self) -> int:
        return self._server.version

    @property
    def is_paused(self) -> bool:
        return self._server.is_paused

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        return await self._control(
            None, lambda server: server.reset_prefix_cache(reset_running_requests=reset_running_requests)
        )

    async def set_weight_version(self, version: int) -> None:
        await self._control("set_version", lambda server: server.set_weight_version(version))

    async def _control(self, call: ControlCall | None, does: Callable[[RolloutServer], Awaitable[Result]]) -> Result:
        if self._death is not None:
            raise self._death
        failure = next((each for each in self._failures if each.call == call), None)
        if failure is not None:
            failure.times -= 1
            if not failure.times:
                self._failures.remove(failure)
            if not failure.is_done:
                raise ServerError(f"replica {self.replica} failed at {call}")
        server = self._server
        result = await does(server)
        if self._death is not None or self._server is not server:
            raise self._death or ActorDiedError(f"replica {self.replica} died meanwhile")
        if failure is not None:
            raise ActorUnavailableError(f"replica {self.replica} was lost after {call}")
        return result

    def fail_request(self, session: int, error: Exception) -> bool:
        return self._server.fail_request(session, error)

    def die(self, error: Exception) -> None:
        del error
        self.crash()

    def book(self) -> None:
        self._server.book()

    def live_request_ids(self, session: int) -> list[str]:
        return self._server.live_request_ids(session)

    @property
    def stuck(self) -> str | None:
        return None if self.is_dead else self._server.stuck
