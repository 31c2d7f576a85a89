"""What a fault can act on: exactly what a trainer or an operator of the real system could reach."""

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from sim.engine.config import PauseMode

ControlCall = Literal["abort", "resume", "set_version"]
"""What a trainer tells a server: to end what it has (or to pause otherwise), to go on, which weights it has."""


class Stage(Protocol):
    """The servers, the balancer and the sessions of a running world, as a fault sees them.

    Replicas and sessions are numbered from 0, times are seconds. Calls travel as the trainer's own do. Those to several
    replicas are under way at once, and each comes to its end before what the first of them raised is raised.
    """

    @property
    def everyone(self) -> list[int]:
        """All replicas."""

    @property
    def registered(self) -> set[int]:
        """The replicas that the balancer has been told of."""

    def as_trainer(self) -> AbstractAsyncContextManager[Any]:
        """`async with` it: one trainer's steps take turns, and what it does is not interleaved with another's."""

    async def sleep(self, seconds: float) -> None:
        """Lets time pass."""

    async def abort_all(
        self, replicas: Sequence[int], *, reset_prefix_cache: bool, rejecting: Collection[int] = ()
    ) -> None:
        """These replicas end what they have and take nothing new until `resume`; those of `rejecting` turn away what
        arrives meanwhile, the others keep it."""

    async def pause(self, replicas: Sequence[int], mode: PauseMode, *, clear_cache: bool) -> None:
        """vLLM's pause without an abort."""

    async def resume(self, replicas: Sequence[int]) -> None:
        """These replicas go on. A call that fails is made again, a few times, unless its replica is dead: one that is
        left paused holds up everybody."""

    async def next_version(self) -> None:
        """Every replica takes the next weight version."""

    def begin_version(self) -> int:
        """There is a next weight version: its number."""

    async def set_version(self, replicas: Sequence[int], version: int) -> None:
        """These replicas take that weight version."""

    async def remove(self, replicas: Sequence[int]) -> None:
        """These replicas leave the balancer."""

    async def add(self, replicas: Sequence[int]) -> None:
        """These replicas join the balancer, whether or not they are there."""

    async def clear_sticky(self) -> str:
        """The balancer forgets which session went where; what to note where it cannot."""

    async def abort_request_of(self, session: int) -> bool:
        """A live request of the session is aborted by its id; False: there is none."""

    def fail_request_of(self, session: int) -> bool:
        """A live request of the session fails at its server; False: there is none."""

    def delay_answer(self, session: int, delay_s: float) -> None:
        """The next answer of a server to the session comes so much later."""

    def lose_answer(self, session: int, told_after_s: float) -> None:
        """In the place of the next answer of a server to the session, so much later, comes an error."""

    def crash(self, replica: int) -> bool:
        """The replica dies with all that it has; False: it is dead."""

    def restart(self, replica: int, version: int) -> None:
        """The replica is back, empty, with weights of that version."""

    def fail_control(self, replica: int, call: ControlCall, times: int, *, is_done: bool) -> None:
        """The next so many of these calls to the replica raise, having done what they say or not."""

    def cancel(self, session: int) -> bool:
        """The session's task is cancelled; False: it has ended, or not begun."""

    def delay_releases(self, delay_s: float, duration_s: float) -> None:
        """For so long from now on, what is released reaches the balancer so much later."""
