"""Routing invariants: which replica a session is sent to, and whether the balancer counts right.

They replay the messages in the order in which the balancer handled them. A replica's true load over these messages
has a lower and an upper value: requests acquired since it last joined and not yet released, and all not yet
released. A balancer may go by either; one that keeps epochs goes by the first.
"""

import math
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from sim.case import Case
from sim.invariants.interface import Invariant, Violation
from sim.trace import Message, Trace

ERROR_RATE = 1e-9
"""Chance that R4 accuses a balancer which breaks ties evenly, for each world in which it has enough to go by."""

_FEWEST_CHOICES = 8
_MOST_EXACT_CHOICES = 1000
"""The exact tails cost a square of the number of choices."""


class Acquire(NamedTuple):
    """A request that the balancer counts, until it is released."""

    session: int
    turn: int
    epoch: int
    number: int
    """Of the message."""
    ordinal: int
    """Among those of its turn."""


class Choices:
    """Free choices of a replica among several that were equally and least loaded, counted."""

    def __init__(self, replicas: int) -> None:
        self.total = 0
        self.chosen = [0] * replicas
        self.offered: list[Counter[int]] = [Counter() for _ in range(replicas)]
        """For each replica, how often it was among how many equals."""

    def add(self, replica: int, equals: Collection[int]) -> None:
        self.total += 1
        self.chosen[replica] += 1
        for each in equals:
            self.offered[each][len(equals)] += 1


@dataclass(slots=True)
class RoutingLog:
    """What a replay of the messages found."""

    choices: Choices
    r1: list[Violation] = field(default_factory=list)
    r2: list[Violation] = field(default_factory=list)
    r3: list[Violation] = field(default_factory=list)
    r5: list[Violation] = field(default_factory=list)
    unreleased: list[tuple[int, Acquire]] = field(default_factory=list)


class Replay:
    """Takes the messages one by one. What it keeps grows with the requests that are not released, and the sessions
    that were not forgotten, alone."""

    def __init__(self, case: Case) -> None:
        self.log = RoutingLog(Choices(case.replicas))
        self._sticky_router = case.router.sticky
        self._registered = set(range(case.replicas))
        self._epoch = [0] * case.replicas
        self._open: list[dict[int, deque[Acquire]]] = [{} for _ in range(case.replicas)]
        """Acquired and not released, by session."""
        self._lowest = [0] * case.replicas
        """The lower and the upper values of the replicas' true loads."""
        self._highest = [0] * case.replicas
        self._session_replica: dict[int, int] = {}
        self._loosened: set[int] = set()
        self._num_messages = 0
        self._acquires: dict[int, tuple[int, int]] = {}
        """For each session its last turn that acquired, and how often that did."""

    def truth(self) -> list[tuple[int, int]]:
        """The lower and the upper value of each replica's true load."""
        return list(zip(self._lowest, self._highest, strict=True))

    def has_open(self, session: int) -> bool:
        """Whether a request of the session is acquired and not released."""
        return any(session in acquires for acquires in self._open)

    def forget(self, session: int) -> None:
        """Nothing more will come of this session."""
        self._session_replica.pop(session, None)
        self._loosened.discard(session)
        self._acquires.pop(session, None)

    def finish(self) -> RoutingLog:
        """The log, when all messages are handled."""
        for replica, sessions in enumerate(self._open):
            acquires = sorted((acquire for each in sessions.values() for acquire in each), key=attrgetter("number"))
            self.log.unreleased.extend((replica, acquire) for acquire in acquires)
        return self.log

    def handle(self, message: Message) -> None:
        """Takes the next message."""
        number = self._num_messages
        self._num_messages += 1
        if message.error is None:
            match message.kind:
                case "acquire_server":
                    self._acquire(number, message)
                case "release_server":
                    self._release(message)
                case "add_servers":
                    for replica in message.replicas:
                        if replica not in self._registered:
                            self._registered.add(replica)
                            self._epoch[replica] += 1
                            self._lowest[replica] = 0
                case "remove_servers":
                    self._registered.difference_update(message.replicas)
                    self._loosened.update(
                        session for session, replica in self._session_replica.items() if replica in message.replicas
                    )
                case "clear_sticky_cache":
                    self._session_replica.clear()
        if message.loads is not None and not self.log.r3:
            exact = self._lowest == self._highest == list(message.loads)
            if not (exact and message.total == sum(self._highest)):
                self._compare(number, message)

    def _acquire(self, number: int, message: Message) -> None:
        session = message.session
        if session is None or not message.replicas:
            return
        (replica,) = message.replicas
        known = self._session_replica.get(session)
        if replica not in self._registered:
            self.log.r5.append(
                Violation(
                    "R5", f"session {session} was sent to replica {replica}, which had been removed", session, number
                )
            )
        elif known is None or known not in self._registered or session in self._loosened or not self._sticky_router:
            # Who stays where it was has not chosen, or has chosen well: a system under test may stick all the same.
            if replica != known:
                self._free_choice(number, session, replica, could_stay=known in self._registered)
        elif replica != known:
            self.log.r2.append(
                Violation(
                    "R2",
                    f"session {session} was on replica {known}, which lives, and was sent to replica {replica}",
                    session,
                    number,
                )
            )
        self._session_replica[session] = replica
        self._loosened.discard(session)
        turn = message.turn or 0
        last_turn, times = self._acquires.get(session, (turn, 0))
        ordinal = times if last_turn == turn else 0
        self._acquires[session] = turn, ordinal + 1
        acquire = Acquire(session, turn, self._epoch[replica], number, ordinal)
        self._open[replica].setdefault(session, deque()).append(acquire)
        self._lowest[replica] += 1
        self._highest[replica] += 1

    def _free_choice(self, number: int, session: int, replica: int, could_stay: bool) -> None:
        lowest, highest = self._lowest, self._highest
        most_allowed = min([highest[each] for each in self._registered])
        if lowest[replica] > most_allowed:
            shown = ", ".join(f"{each}: {highest[each]}" for each in sorted(self._registered))
            self.log.r1.append(
                Violation(
                    "R1",
                    f"session {session} was sent to replica {replica} with {lowest[replica]} requests in flight "
                    f"while the least was {most_allowed} (by replica {shown})",
                    session,
                    number,
                )
            )
        if not could_stay and all(lowest[each] == highest[each] for each in self._registered):
            equals = [each for each in self._registered if lowest[each] == most_allowed]
            if len(equals) > 1 and replica in equals:
                self.log.choices.add(replica, equals)

    def _release(self, message: Message) -> None:
        if not message.replicas:
            return
        replica, session = message.replicas[0], message.session
        acquires = None if session is None else self._open[replica].get(session)
        if not acquires:
            return
        acquire = acquires.popleft()
        if not acquires and session is not None:
            del self._open[replica][session]
        self._highest[replica] -= 1
        self._lowest[replica] -= acquire.epoch == self._epoch[replica]

    def _compare(self, number: int, message: Message) -> None:
        assert message.loads is not None
        least_total = most_total = 0
        for replica, shown in enumerate(message.loads):
            low, high = self._lowest[replica], self._highest[replica]
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
                        number,
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
                    number,
                )
            )


def routing_log(case: Case, trace: Trace) -> RoutingLog:
    """The replay of all messages of a trace."""
    return trace.derived(log_of, case)


def log_of(trace: Trace, case: Case) -> RoutingLog:
    """The replay; to be taken with `Trace.derived`, so that it is made once."""
    replay = Replay(case)
    for event in trace.events:
        if type(event) is Message:
            replay.handle(event)
    return replay.finish()


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
            acquire.number,
        )
        for replica, acquire in log.unreleased
        if trace.ledger.turn_outcome(acquire.session, acquire.turn) == "ok"
    ]


def check_spread(case: Case, trace: Trace) -> list[Violation]:
    """R4. Under even ties a replica's number of choices is a sum of independent draws (a Poisson binomial).

    A Case whose router takes the first of equals asks for a favourite; it is not judged.
    """
    choices = routing_log(case, trace).choices
    if choices.total < _FEWEST_CHOICES or case.router.tie_break == "first":
        return []
    threshold = ERROR_RATE / (2 * case.replicas)
    for replica in range(case.replicas):
        offered, chosen = choices.offered[replica], choices.chosen[replica]
        expected = sum(times / equals for equals, times in offered.items())
        deviation = math.sqrt(sum(times / equals * (1 - 1 / equals) for equals, times in offered.items()))
        if abs(chosen - expected) <= 1 + 2 * deviation:
            continue  # nowhere near the threshold
        chance = _chance(offered, chosen, expected)
        if chance < threshold:
            how = "never" if chosen == 0 else f"{chosen} times"
            return [
                Violation(
                    "R4",
                    f"replica {replica} was chosen {how} in {offered.total()} choices among equally loaded replicas; "
                    f"{expected:.1f} were expected, and chance alone gives this once in "
                    f"{1 / max(chance, 1e-300):.0e} worlds",
                )
            ]
    return []


def _chance(offered: Counter[int], chosen: int, expected: float) -> float:
    """The smaller of P(X ≤ chosen) and P(X ≥ chosen) under even ties; of many choices, an upper bound of it."""
    total = offered.total()
    if total <= _MOST_EXACT_CHOICES:
        return min(_tails([1 / equals for equals in offered.elements()], chosen))
    # Hoeffding 1963, theorem 1, for independent draws of any chances with this mean.
    share, mean = chosen / total, expected / total
    divergence = sum(p * math.log(p / q) for p, q in ((share, mean), (1 - share, 1 - mean)) if p)
    return math.exp(-total * divergence)


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
            how = "failed" if outcome == "error" else f"was cancelled {_where_cut(trace, acquire)}"
            violations.append(
                Violation(
                    "R7",
                    f"session {acquire.session} turn {acquire.turn} {how}, and its slot on replica {replica} was never "
                    f"given back",
                    acquire.session,
                    acquire.number,
                )
            )
    return violations


def _where_cut(trace: Trace, acquire: Acquire) -> str:
    """Where a call was when it was cancelled: as far as what it acquired this slot for had come."""
    attempts = trace.ledger.sessions[acquire.session].turns[acquire.turn].attempts
    if acquire.ordinal >= len(attempts):
        return "while it acquired a server"
    if attempts[acquire.ordinal].delivered is not None:
        return f"after attempt {acquire.ordinal} had been answered"
    return "while it decoded"


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
