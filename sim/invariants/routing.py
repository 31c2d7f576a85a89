"""Routing invariants: which replica a session is sent to, and whether the balancer counts right.

They replay the messages in the order in which the balancer handled them. A replica's true load over these messages
has a lower and an upper value: requests acquired since it last joined and not yet released, and all not yet
released. A balancer may go by either; one that keeps epochs goes by the first.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from sim.case import Case
from sim.invariants.interface import Invariant, Violation
from sim.trace import Message, Trace

ERROR_RATE = 1e-9
"""Chance that R4 accuses a balancer which breaks ties evenly, for each world in which it has enough to go by."""

_FEWEST_CHOICES = 8


class Acquire(NamedTuple):
    """A request that the balancer counts, until it is released."""

    session: int
    turn: int
    epoch: int


class Choice(NamedTuple):
    """A free choice of a replica for a session, and the replicas that it had to choose among: the least loaded."""

    replica: int
    equals: frozenset[int]


@dataclass(slots=True)
class RoutingLog:
    """What a replay of the messages found."""

    r1: list[Violation] = field(default_factory=list)
    r2: list[Violation] = field(default_factory=list)
    r3: list[Violation] = field(default_factory=list)
    r5: list[Violation] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    unreleased: list[tuple[int, Acquire]] = field(default_factory=list)


class _Replay:
    def __init__(self, case: Case) -> None:
        self.sticky_router = case.router.sticky
        self.registered = set(range(case.replicas))
        self.epoch = [0] * case.replicas
        self.open: list[list[Acquire]] = [[] for _ in range(case.replicas)]
        self.session_replica: dict[int, int] = {}
        self.loosened: set[int] = set()
        self.log = RoutingLog()

    def load(self, replica: int) -> tuple[int, int]:
        """The lower and the upper value of a replica's true load."""
        acquires = self.open[replica]
        epoch = self.epoch[replica]
        if not epoch:
            return len(acquires), len(acquires)
        return sum(acquire.epoch == epoch for acquire in acquires), len(acquires)

    def handle(self, number: int, message: Message) -> None:
        if message.error is None:
            match message.kind:
                case "acquire_server":
                    self._acquire(message)
                case "release_server":
                    self._release(message)
                case "add_servers":
                    for replica in message.replicas:
                        if replica not in self.registered:
                            self.registered.add(replica)
                            self.epoch[replica] += 1
                case "remove_servers":
                    self.registered.difference_update(message.replicas)
                    self.loosened.update(
                        session for session, replica in self.session_replica.items() if replica in message.replicas
                    )
                case "clear_sticky_cache":
                    self.session_replica.clear()
        if message.loads is not None and not self.log.r3:
            self._compare(number, message)

    def _acquire(self, message: Message) -> None:
        session = message.session
        if session is None or not message.replicas:
            return
        (replica,) = message.replicas
        known = self.session_replica.get(session)
        if replica not in self.registered:
            self.log.r5.append(
                Violation("R5", f"session {session} was sent to replica {replica}, which had been removed", session)
            )
        elif known is None or known not in self.registered or session in self.loosened or not self.sticky_router:
            # Who stays where it was has not chosen, or has chosen well: a system under test may stick all the same.
            if replica != known:
                self._free_choice(session, replica, could_stay=known in self.registered)
        elif replica != known:
            self.log.r2.append(
                Violation(
                    "R2",
                    f"session {session} was on replica {known}, which lives, and was sent to replica {replica}",
                    session,
                )
            )
        self.session_replica[session] = replica
        self.loosened.discard(session)
        self.open[replica].append(Acquire(session, message.turn or 0, self.epoch[replica]))

    def _free_choice(self, session: int, replica: int, could_stay: bool) -> None:
        loads = {each: self.load(each) for each in sorted(self.registered)}
        most_allowed = min(high for _, high in loads.values())
        if loads[replica][0] > most_allowed:
            shown = ", ".join(f"{each}: {high}" for each, (_, high) in loads.items())
            self.log.r1.append(
                Violation(
                    "R1",
                    f"session {session} was sent to replica {replica} with {loads[replica][0]} requests in flight "
                    f"while the least was {most_allowed} (by replica {shown})",
                    session,
                )
            )
        if not could_stay and all(low == high for low, high in loads.values()):
            equals = frozenset(each for each, (low, _) in loads.items() if low == most_allowed)
            if len(equals) > 1 and replica in equals:
                self.log.choices.append(Choice(replica, equals))

    def _release(self, message: Message) -> None:
        if not message.replicas:
            return
        acquires = self.open[message.replicas[0]]
        for index, acquire in enumerate(acquires):
            if acquire.session == message.session:
                del acquires[index]
                return

    def _compare(self, number: int, message: Message) -> None:
        assert message.loads is not None
        least_total = most_total = 0
        for replica, shown in enumerate(message.loads):
            low, high = self.load(replica)
            if type(shown) is not int:
                continue  # not registered, or shown in a way of the balancer's own
            least_total += low
            most_total += high
            if not low <= shown <= high:
                truth = str(low) if low == high else f"{low} to {high}"
                self.log.r3.append(
                    Violation(
                        "R3",
                        f"after message {number} ({message.kind}) the balancer counts {shown} requests on replica "
                        f"{replica}; {truth} are acquired and not released",
                        message.session,
                    )
                )
                return
        if type(message.total) is int and not least_total <= message.total <= most_total:
            self.log.r3.append(
                Violation(
                    "R3",
                    f"after message {number} ({message.kind}) get_total_inflight is {message.total}; {most_total} "
                    f"requests are acquired and not released",
                    message.session,
                )
            )


def routing_log(case: Case, trace: Trace) -> RoutingLog:
    """The replay of all messages, made once for a trace."""
    return trace.derived(_replayed, case)


def _replayed(trace: Trace, case: Case) -> RoutingLog:
    replay = _Replay(case)
    number = 0
    for event in trace.events:
        if type(event) is Message:
            replay.handle(number, event)
            number += 1
    for replica, acquires in enumerate(replay.open):
        replay.log.unreleased.extend((replica, acquire) for acquire in acquires)
    return replay.log


def check_least_loaded(case: Case, trace: Trace) -> list[Violation]:
    """R1."""
    return routing_log(case, trace).r1


def check_sticky(case: Case, trace: Trace) -> list[Violation]:
    """R2."""
    return routing_log(case, trace).r2


def check_counts(case: Case, trace: Trace) -> list[Violation]:
    """R3."""
    log = routing_log(case, trace)
    if log.r3 or not trace.is_done:
        return log.r3
    return [
        Violation(
            "R3",
            f"at rest replica {replica} still counts a request of session {acquire.session}, whose turn "
            f"{acquire.turn} ended well",
            acquire.session,
        )
        for replica, acquire in log.unreleased
        if trace.ledger.turn_outcome(acquire.session, acquire.turn) == "ok"
    ]


def check_spread(case: Case, trace: Trace) -> list[Violation]:
    """R4. Under even ties a replica's number of choices is a sum of independent draws (a Poisson binomial).

    A Case whose router takes the first of equals asks for a favourite; it is not judged.
    """
    choices = routing_log(case, trace).choices
    if len(choices) < _FEWEST_CHOICES or case.router.tie_break == "first":
        return []
    threshold = ERROR_RATE / (2 * case.replicas)
    for replica in range(case.replicas):
        chances = [1 / len(choice.equals) for choice in choices if replica in choice.equals]
        chosen = sum(choice.replica == replica for choice in choices)
        deviation = math.sqrt(sum(chance * (1 - chance) for chance in chances))
        if abs(chosen - sum(chances)) <= 1 + 2 * deviation:
            continue  # nowhere near the threshold; the exact tails cost a square of the number of choices
        at_most, at_least = _tails(chances, chosen)
        if min(at_most, at_least) < threshold:
            how = "never" if chosen == 0 else f"{chosen} times"
            return [
                Violation(
                    "R4",
                    f"replica {replica} was chosen {how} in {len(chances)} choices among equally loaded replicas; "
                    f"{sum(chances):.1f} were expected, and chance alone gives this once in "
                    f"{1 / max(min(at_most, at_least), 1e-300):.0e} worlds",
                )
            ]
    return []


def _tails(chances: list[float], observed: int) -> tuple[float, float]:
    """P(X ≤ observed) and P(X ≥ observed) for a sum of independent draws with these chances."""
    distribution = [1.0]
    for chance in chances:
        wider = [0.0] * (len(distribution) + 1)
        for count, weight in enumerate(distribution):
            wider[count] += weight * (1 - chance)
            wider[count + 1] += weight * chance
        distribution = wider
    return sum(distribution[: observed + 1]), sum(distribution[observed:])


def check_removed(case: Case, trace: Trace) -> list[Violation]:
    """R5."""
    return routing_log(case, trace).r5


def check_slot_returned(case: Case, trace: Trace) -> list[Violation]:
    """R7."""
    if not trace.is_done:
        return []
    violations = []
    for replica, acquire in routing_log(case, trace).unreleased:
        outcome = trace.ledger.turn_outcome(acquire.session, acquire.turn)
        if outcome in ("cancelled", "error"):
            violations.append(
                Violation(
                    "R7",
                    f"session {acquire.session} turn {acquire.turn} ended ({outcome}) and its slot on replica "
                    f"{replica} was never given back",
                    acquire.session,
                )
            )
    return violations


INVARIANTS = (
    Invariant(
        "R1",
        "routing",
        "A new session's replica is among the least loaded over the messages delivered to the balancer.",
        check_least_loaded,
    ),
    Invariant("R2", "routing", "A session sticks to its replica while that lives.", check_sticky),
    Invariant(
        "R3",
        "routing",
        "The balancer's counters equal the truth over the messages delivered to it, are never negative, and 0 at rest.",
        check_counts,
    ),
    Invariant(
        "R4",
        "routing",
        f"Equal load is spread: no replica starves and none is the favourite (error rate {ERROR_RATE:g} a world).",
        check_spread,
    ),
    Invariant("R5", "routing", "No session is sent to a removed replica.", check_removed),
    Invariant("R7", "routing", "A cancelled or failed call gives its slot back.", check_slot_returned),
)
