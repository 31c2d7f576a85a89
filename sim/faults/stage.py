"""What a fault can act on: exactly what a trainer or an operator of the real system could reach."""

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from sim.engine.config import PauseMode


class Stage(Protocol):
    """The servers, the balancer and the sessions of a running world, as a fault sees them.

    Replicas and sessions are numbered from 0, times are seconds. Calls travel as the trainer's own do, and raise what
    the callee raises.
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
        """These replicas go on."""

    async def next_version(self) -> None:
        """Every replica takes the next weight version."""

    async def remove(self, replicas: Sequence[int]) -> None:
        """These replicas leave the balancer."""

    async def add(self, replicas: Sequence[int]) -> None:
        """These replicas join the balancer, whether or not they are there."""

    async def clear_sticky(self) -> str:
        """The balancer forgets which session went where; what to note where it cannot."""

    async def abort_request_of(self, session: int) -> bool:
        """A live request of the session is aborted by its id; False: there is none."""

    def cancel(self, session: int) -> bool:
        """The session's task is cancelled; False: it has ended, or not begun."""

    def delay_releases(self, delay_s: float, duration_s: float) -> None:
        """For so long from now on, what is released reaches the balancer so much later."""
