"""How a run can end badly: nothing can happen any more, too much happens at one instant, or time is up."""

from typing import NamedTuple


class Waiting(NamedTuple):
    """A task that waits, in words."""

    task: str
    waits_on: str
    """The coroutines that it stands in, outermost first, and what the innermost one awaits."""


class Deadlock(Exception):
    """Nothing is ready, nothing is timed, and the run is not over."""

    def __init__(self, now_ns: int, waiting: tuple[Waiting, ...]) -> None:
        self.waiting = waiting
        lines = [f"deadlock at {now_ns} ns: nothing is ready and nothing is timed"]
        lines += [f"  {task} waits on {waits_on}" for task, waits_on in waiting] or ["  no task is left"]
        super().__init__("\n".join(lines))


class StepCap(Exception):
    """Too many callbacks ran at one instant: something polls without letting time pass."""

    def __init__(self, now_ns: int, max_steps: int, ran_most: tuple[tuple[str, int], ...]) -> None:
        """`ran_most`: names of callbacks, and how often each ran lately."""
        self.ran_most = ran_most
        lines = [f"more than {max_steps} callbacks at one instant ({now_ns} ns); of the last ones ran most:"]
        lines += [f"  {count} × {name}" for name, count in ran_most]
        super().__init__("\n".join(lines))


class Horizon(Exception):
    """Virtual time would pass the loop's `until_ns`. The clock has not moved; raise it and the run can go on."""

    def __init__(self, next_ns: int, until_ns: int) -> None:
        super().__init__(f"the next event is at {next_ns} ns, past the horizon of {until_ns} ns")
