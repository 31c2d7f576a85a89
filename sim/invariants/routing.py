"""Routing invariants: which replica a session is sent to, and whether the balancer counts right.

They go by the messages in the order in which the balancer handled them (`sim.invariants.routing_log`), so that what is
still on its way is nobody's fault.
"""

import math
from collections import Counter
from collections.abc import Iterator

from sim.invariants.balancer_truth import Acquire
from sim.invariants.choosing import ERROR_RATE
from sim.invariants.interface import Evidence, Invariant
from sim.invariants.violation import Violation
from sim.ledger import Ledger

_FEWEST_CHOICES = 8
_MOST_EXACT_CHOICES = 1000
"""The exact tails cost a square of the number of choices."""


def check_least_loaded(evidence: Evidence) -> list[Violation]:
    """Whether each session that was free to go anywhere went where the routing policy has it: by default to a replica
    with the fewest requests in flight."""
    return evidence.routing.found["R1"]


def check_sticky(evidence: Evidence) -> list[Violation]:
    """Whether each session stayed where it was, where its KV is cached, as long as its replica lived."""
    return evidence.routing.found["R2"]


def check_counts(evidence: Evidence) -> Iterator[Violation]:
    """Whether the balancer's counts were right after every message: a drift sends requests the wrong way for ever.

    A count that is right may still never come back to 0: at rest no request of a turn that ended well may be left. (R7
    is about the others.) Counts of a balancer's own kind are at rest what they were at the start.
    """
    miscounted = evidence.routing.found["R3"]
    yield from miscounted
    if miscounted or not evidence.is_done:
        return
    if evidence.policies.own_counts and not evidence.routing.unreleased:
        yield from _away_from_start(evidence)
    for replica, acquire in evidence.routing.unreleased:
        if evidence.ledger.turn_outcome(acquire.session, acquire.turn) == "ok":
            yield Violation(
                "R3",
                f"at rest replica {replica} still counts a request of session {acquire.session}, whose turn "
                f"{acquire.turn} ended well",
                acquire.session,
                acquire.number,
                about="at rest",
            )


def _away_from_start(evidence: Evidence) -> Iterator[Violation]:
    shown = zip(evidence.first_loads or (), evidence.routing.last_loads or (), strict=False)
    for replica, (first, last) in enumerate(shown):
        if not (isinstance(first, int | float) and isinstance(last, int | float)):
            continue  # it is not registered, or shows what is no number
        if not math.isclose(first, last, abs_tol=1e-6):
            yield Violation(
                "R3",
                f"at rest the balancer's count of replica {replica} is {last}; it was {first} at the start, and all "
                f"that was acquired is released",
                about="at rest",
            )


def check_spread(evidence: Evidence) -> Iterator[Violation]:
    """Whether each replica is chosen about as often as even ties have it: one that starves, or takes all, is a
    bottleneck that no count of requests shows.

    Under even ties a replica's number of choices is a sum of independent draws (a Poisson binomial). A Case whose
    router takes the first of equals asks for a favourite; it is not judged.
    """
    case, choices = evidence.case, evidence.routing.choices
    if choices.total < _FEWEST_CHOICES or case.router.tie_break == "first":
        return
    threshold = ERROR_RATE / (2 * case.replicas)
    for replica in range(case.replicas):
        offered, chosen = choices.offered[replica], choices.chosen[replica]
        expected = sum(times / equals for equals, times in offered.items())
        deviation = math.sqrt(sum(times / equals * (1 - 1 / equals) for equals, times in offered.items()))
        if abs(chosen - expected) <= 1 + 2 * deviation:
            continue  # nowhere near the threshold
        chance = chance_of(offered, chosen, exact=offered.total() <= _MOST_EXACT_CHOICES)
        if chance < threshold:
            how = "never" if chosen == 0 else f"{chosen} times"
            yield Violation(
                "R4",
                f"replica {replica} was chosen {how} in {offered.total()} choices among equally loaded replicas; "
                f"{expected:.1f} were expected, and chance alone gives this once in "
                f"{1 / max(chance, 1e-300):.0e} worlds",
            )
            return


def chance_of(offered: Counter[int], chosen: int, *, exact: bool) -> float:
    """The smaller of P(X ≤ chosen) and P(X ≥ chosen) under even ties, or an upper bound of it that costs nothing.

    `offered`: how often a replica was among how many equals.
    """
    if exact:
        return min(_tails([1 / equals for equals in offered.elements()], chosen))
    # Hoeffding 1963, theorem 1, for independent draws of any chances with this mean.
    total = offered.total()
    share, mean = chosen / total, sum(times / equals for equals, times in offered.items()) / total
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


def check_removed(evidence: Evidence) -> list[Violation]:
    """Whether a session was sent to a replica that had been removed: nobody answers there, or with old weights."""
    return evidence.routing.found["R5"]


def check_slot_returned(evidence: Evidence) -> Iterator[Violation]:
    """Whether a call that did not end well gave back what it had acquired: a slot that is lost makes its replica look
    loaded for ever. Only a run that came to its end can tell; until then the release may be on its way."""
    if not evidence.is_done:
        return
    for replica, acquire in evidence.routing.unreleased:
        outcome = evidence.ledger.turn_outcome(acquire.session, acquire.turn)
        if outcome in ("cancelled", "error"):
            how = "failed" if outcome == "error" else f"was cancelled {_where_cut(evidence.ledger, acquire)}"
            yield Violation(
                "R7",
                f"session {acquire.session} turn {acquire.turn} {how}, and its slot on replica {replica} was never "
                f"given back",
                acquire.session,
                acquire.number,
                about=how,
            )


def _where_cut(ledger: Ledger, acquire: Acquire) -> str:
    """Where a call was when it was cancelled: as far as what it acquired this slot for had come."""
    attempts = ledger.sessions[acquire.session].turns[acquire.turn].attempts
    if acquire.ordinal >= len(attempts):
        return "while it acquired a server"
    if attempts[acquire.ordinal].delivered is not None:
        return f"after attempt {acquire.ordinal} had been answered"
    return "while it decoded"


INVARIANTS = (
    Invariant(
        "R1",
        "routing",
        "A new session's replica is the one that the routing policy says: by default among the least loaded over the "
        "messages delivered to the balancer.",
        check_least_loaded,
    ),
    Invariant("R2", "routing", "A session sticks to its replica while that lives.", check_sticky),
    Invariant(
        "R3",
        "routing",
        "The balancer's counters equal the truth over the messages delivered to it, are never negative, and 0 at rest.",
        check_counts,
        scope="run",
    ),
    Invariant(
        "R4",
        "routing",
        f"Equal load is spread: no replica starves and none is the favourite (error rate {ERROR_RATE:g} a world).",
        check_spread,
        scope="run",
    ),
    Invariant("R5", "routing", "No session is sent to a removed replica.", check_removed),
    Invariant("R7", "routing", "A cancelled or failed call gives its slot back.", check_slot_returned, scope="run"),
)
