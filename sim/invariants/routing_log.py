"""What the messages to a balancer show, one by one: choices among replicas, and counts, that no policy allows."""

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from sim.case import Case
from sim.clock import to_ns
from sim.events import Awaited, Message
from sim.invariants.balancer_truth import Acquire, BalancerTruth
from sim.invariants.choosing import Choice, Excused, rule_of
from sim.invariants.violation import Violation
from sim.policies import Policies
from sim.trace import Role

_MOST_ABSENCES = 64
"""That are remembered, the latest: a request waits for one of them."""


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
    """What was found. `found`: by invariant, of R1, R2 and R5 what is new since sessions were last judged, and of R3
    the first wrong count of the run. `unreleased`: at the end of the run, the requests that are, with their replica.
    `removed`: the replicas that were removed at some time. `last_loads`: what the balancer showed last."""

    choices: Choices
    found: dict[str, list[Violation]] = field(default_factory=lambda: {"R1": [], "R2": [], "R3": [], "R5": []})
    unreleased: list[tuple[int, Acquire]] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    removed_ns: dict[int, int] = field(default_factory=dict)
    """Since when the replicas that were removed are away."""
    last_loads: Sequence[int | None] | None = None
    _away: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_MOST_ABSENCES))
    """(replica, from when, until when), of those that are back."""

    def membership(self, message: Message, role: Role | None) -> None:
        """Takes a message that removes replicas, or adds them."""
        for replica in message.replicas if message.error is None else ():
            if role == "remove":
                self.removed.add(replica)
                self.removed_ns.setdefault(replica, message.t_ns)
            elif role == "add" and replica in self.removed_ns:
                self._away.append((replica, self.removed_ns.pop(replica), message.t_ns))

    def away_ns(self, replica: int, from_ns: int, until_ns: int) -> int:
        """For how long of this time a replica was out of the balancer."""
        spans = [(start, end) for each, start, end in self._away if each == replica]
        if replica in self.removed_ns:
            spans.append((self.removed_ns[replica], until_ns))
        return sum([max(0, min(end, until_ns) - max(start, from_ns)) for start, end in spans])

    def forget_judged(self) -> None:
        """Lets go of what was new."""
        for number in ("R1", "R2", "R5"):
            self.found[number].clear()


_Begun = tuple[str, int | None, int | None]
"""Kind, session and turn of a message."""


class RoutingWatch:
    """Follows the messages in the order in which the balancer handled them, and keeps the log.

    `policies` say which choices are free, and among which replicas; `sim.invariants.choosing` has the rule of each.
    """

    def __init__(self, case: Case, policies: Policies) -> None:
        self.truth = BalancerTruth(case.replicas)
        self.log = RoutingLog(Choices(case.replicas))
        self._begun: dict[_Begun, deque[int]] = {}
        """Messages that the balancer has begun to handle, and awaits something for: when it began, by `_turns`."""
        self._turns = 0
        """How often a message was begun so, or handled."""
        self._policies = policies
        self._may_move = policies.sticky == "no"
        self._draws_each_time = self._may_move and policies.routing == "round-robin"
        self.excused: Excused | None = None
        if policies.sticky == "fail-over" or policies.hedged == "yes":
            self.excused = Excused(to_ns(case.transport.balancer_delay_s))
        """To be told of requests, where that is judged."""
        self._rule = rule_of(policies.routing, case.replicas)
        self._epoch = 0
        """How often the replicas changed, or sessions were forgotten."""
        self._placed: dict[int, int] = {}
        """Under hashing, for each session the epoch in which it was sent where it is."""

    def begin(self, message: Awaited) -> None:
        """Takes a message that the balancer has begun to handle, and has not come to the end of."""
        self._turns += 1
        began = -1 if self._begun else self._turns
        self._begun.setdefault((message.kind, message.session, message.turn), deque()).append(began)

    def _was_alone(self, message: Message) -> bool:
        """Whether no other message was handled, or begun to be, while this one was."""
        key = message.kind, message.session, message.turn
        began = self._turns
        if key in self._begun:
            began = self._begun[key].popleft()
            if not self._begun[key]:
                del self._begun[key]
        alone = began == self._turns and not self._begun
        self._turns += 1
        return alone

    def forget(self, session: int) -> None:
        """Lets go of a session of which nothing more will come."""
        self.truth.forget(session)
        self._placed.pop(session, None)
        if self.excused is not None:
            self.excused.forget(session)

    def handle(self, message: Message, role: Role | None) -> None:
        """Takes the next message; `role` as in `BalancerTruth.handle`."""
        truth, number = self.truth, self.truth.num_messages
        if not self._was_alone(message):
            # What it knew when it chose, and what it counts meanwhile, depends on how far it was with the others.
            truth.handle(message, role)
            return
        if message.error is None and role is not None and role != "release":
            if role == "acquire":
                if message.session is not None and message.replicas:
                    self._look_at_choice(number, message.session, message.replicas[0], message.t_ns)
            else:
                self._change_members(message, role)
        truth.handle(message, role)
        if message.loads is not None:
            self.log.last_loads = message.loads
            if not self.log.found["R3"] and not self._policies.own_counts:
                exact = truth.lowest == truth.highest == list(message.loads)
                if not (exact and message.total == sum(truth.highest)):
                    wrong = self._miscount(message.loads, message.total)
                    if wrong:
                        self._find("R3", f"after message {number} ({message.kind}) {wrong}", message.session, number)

    def _change_members(self, message: Message, role: Role) -> None:
        self._epoch += 1
        self._rule.begin_anew()
        self.log.membership(message, role)
        if role == "clear_sticky" and self.excused is not None:
            self.excused.visited.clear()

    def _find(self, invariant: str, text: str, session: int | None, number: int) -> None:
        self.log.found[invariant].append(Violation(invariant, text, session, number))

    def _look_at_choice(self, number: int, session: int, replica: int, now_ns: int) -> None:
        """Whether a session may be sent to a replica, as things stand before it is."""
        truth = self.truth
        known = truth.session_replica.get(session)
        if self._policies.routing == "hash":
            placed = self._placed.get(session)
            self._placed[session] = self._epoch
            bound = placed == self._epoch and not self._may_move
        else:
            bound = not self._may_move and truth.is_bound(session)
        excused, left = False, frozenset[int]()
        if self.excused is not None:
            excused = self.excused.may_move(session, replica, now_ns)
            excused |= self._policies.hedged == "yes" and truth.has_open(session)  # its first is still out
            left = frozenset(self.excused.visited.get(session, ()))
            self.excused.visit(session, replica)
        if replica not in truth.registered:
            if self._policies.removal == "at once" or known != replica:
                what = "had been removed" if self._policies.removal == "at once" else "drains, and it was not there"
                self._find("R5", f"session {session} was sent to replica {replica}, which {what}", session, number)
            self._rule.begin_anew()
        elif (replica == known or replica in left) and not self._draws_each_time:
            if not bound:  # who stays where it was has not chosen, or has chosen well
                self._rule.begin_anew()
        elif bound and not excused:
            text = f"session {session} was on replica {known}, which lives, and was sent to replica {replica}"
            self._find("R2", text, session, number)
        else:
            self._look_at_free_choice(number, session, replica, left, could_stay=known in truth.registered)

    def _look_at_free_choice(
        self, number: int, session: int, replica: int, left: frozenset[int], *, could_stay: bool
    ) -> None:
        truth, registered = self.truth, self.truth.registered
        choice = Choice(replica, frozenset(registered), left, truth.lowest, truth.highest, could_stay)
        wrong = self._rule.wrong(choice)
        if wrong:
            self._find("R1", f"session {session} was sent to replica {replica} {wrong}", session, number)
        equals = self._rule.equals(choice)
        if equals is not None and len(equals) > 1 and replica in equals:
            self.log.choices.add(replica, equals)

    def _miscount(self, loads: Sequence[int | None], total: int | None) -> str:
        """How the counts that the balancer shows differ from the true ones; empty where they do not."""
        least_total = most_total = 0
        drains = self._policies.removal == "drains"
        for replica, shown in enumerate(loads):
            low, high = self.truth.lowest[replica], self.truth.highest[replica]
            if type(shown) is not int:
                most_total += high if drains else 0
                continue  # not registered, or shown in a way of the balancer's own
            least_total += low
            most_total += high
            if not low <= shown <= high:
                truth = str(low) if low == high else f"{low} to {high}"
                return (
                    f"the balancer counts {shown} requests on replica {replica}; {truth} are acquired and not released"
                )
        if type(total) is int and not least_total <= total <= most_total:
            return f"the balancer's total is {total}; {most_total} requests are acquired and not released"
        return ""
