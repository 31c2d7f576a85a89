"""What an invariant is, and what its check is given to read."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sim.budget import Allowance, allowance
from sim.case import Case
from sim.events import Logged, VersionChanged, WorldEnded
from sim.invariants.kinds import Kind
from sim.invariants.pauses import PauseLog
from sim.invariants.routing_log import RoutingLog
from sim.invariants.violation import Severity, Violation
from sim.ledger import Ledger, TurnRecord
from sim.policies import Policies
from sim.registry import PluginError, blame


@dataclass(frozen=True, slots=True)
class Evidence:
    """What happened in a run, as far as invariants ask for it. The judge makes it, the same for small worlds and large.

    `ledger`: the sessions that are judged now, with all their turns and requests: each session of a run is judged once.
    `policies`: those in force. `budgets`: the `turn_budget_tokens` of the sessions of the case, in their order;
    repeated ones have the same.
    `warnings`: each different warning of the system under test so far. `stale_updates`: weight updates, since the last
    sessions were judged, that left requests running on KV of older weights. `routing`: what its messages say of the
    balancer. `pauses`: what became of its replicas' pauses. `end`: how the run ended; None while it goes on.
    `first_loads`, `factory_raised` and `budget_setting`: as of `Trace`.
    """

    case: Case
    policies: Policies
    ledger: Ledger
    budgets: Sequence[int | None]
    warnings: Collection[Logged]
    stale_updates: Sequence[VersionChanged]
    routing: RoutingLog
    pauses: PauseLog
    first_loads: Sequence[Any] | None
    end: WorldEnded | None
    factory_raised: bool
    budget_setting: str

    def budget_tokens(self, session: int) -> int | None:
        """The budget of each turn of a session; None where it has none to be held to."""
        return self.budgets[session % len(self.budgets)]

    def allowance(self, session: int, turn: TurnRecord) -> Allowance | None:
        """What a turn may use; None where there is nothing to hold it to."""
        return allowance(self.case, self.ledger, session, turn, self.policies)

    @property
    def is_done(self) -> bool:
        """Whether the run is over and everything in it came to its end."""
        return self.end is not None and self.end.reason == "done"


@dataclass(frozen=True)
class Invariant:
    """A number kept for ever, one sentence, and the check that finds where a run breaks it.

    `check` is called with the sessions that have ended since it was last called, none of which will do anything more,
    and at the end of the run with all that are left. With `scope` "run" it is called at the end only, for what no
    session shows by itself. `severity`: of what it finds; searches by kind leave those out that only warn.
    """

    number: str
    kind: Kind
    statement: str
    check: Callable[[Evidence], Iterable[Violation]]
    scope: Literal["sessions", "run"] = "sessions"
    severity: Severity = "violation"

    def broken_in(self, evidence: Evidence) -> list[Violation]:
        """What the check finds. Raises `PluginError` where a project's fails, or finds what is none of its own."""
        named = f"invariant {self.number}"
        try:
            found = list(self.check(evidence))
        except Exception as error:
            blame(error, self.check, named)
        for each in found:
            if not isinstance(each, Violation):
                raise PluginError(f"{named}: its check found {each!r}; a Violation is needed")
            if each.invariant != self.number:
                raise PluginError(
                    f"{named}: its check found a Violation of {each.invariant!r}; it may find those of {self.number!r}"
                )
        return found
