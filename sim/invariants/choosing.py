"""Which choices of a replica a routing policy allows: one rule each."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from sim.events import Delivered, Discarded, Ended, Event, Sent

ERROR_RATE = 1e-9
"""Chance that a balancer which chooses as it should is accused by a statistical test, for each world."""


class Choice(NamedTuple):
    """A session is sent to `replica`, of those that are `registered`. `left`: where it was, and rightly stays no more.

    `lowest`, `highest`: each replica's load, as `BalancerTruth` has it. `could_stay`: whether it was on one that lives.
    """

    replica: int
    registered: frozenset[int]
    left: frozenset[int]
    lowest: Sequence[int]
    highest: Sequence[int]
    could_stay: bool


class RoutingRule(Protocol):
    """What a routing policy promises of free choices."""

    def wrong(self, choice: Choice) -> str:
        """How a choice breaks the promise, to stand behind `was sent to replica N`; empty where it keeps it."""

    def equals(self, choice: Choice) -> Collection[int] | None:
        """The replicas that were as good as each other, each of which ought to be chosen as often (R4); None where that
        cannot be told."""

    def begin_anew(self) -> None:
        """The replicas have changed, sessions were forgotten, or one stayed where it was, be it by a choice or not."""


class _Unjudged:
    """Where a prefix, an id or a measure of the balancer's own decides, messages do not show what is right."""

    def wrong(self, choice: Choice) -> str:
        del choice
        return ""

    def equals(self, choice: Choice) -> Collection[int] | None:
        del choice
        return None

    def begin_anew(self) -> None:
        pass


class _LeastLoaded(_Unjudged):
    def wrong(self, choice: Choice) -> str:
        replica, lowest, highest = choice.replica, choice.lowest, choice.highest
        others = choice.registered - choice.left or choice.registered
        most_allowed = min([highest[each] for each in others])
        if lowest[replica] <= most_allowed:
            return ""
        shown = ", ".join(f"{each}: {highest[each]}" for each in sorted(choice.registered))
        return f"with {lowest[replica]} requests in flight while the least was {most_allowed} (by replica {shown})"

    def equals(self, choice: Choice) -> Collection[int] | None:
        registered, lowest, highest = choice.registered, choice.lowest, choice.highest
        if choice.could_stay or any(lowest[each] != highest[each] for each in registered):
            return None
        least = min([lowest[each] for each in registered])
        return [each for each in registered if lowest[each] == least]


class _AnyAlike(_Unjudged):
    """Each replica is as likely as the others."""

    def equals(self, choice: Choice) -> Collection[int] | None:
        return None if choice.could_stay else choice.registered


class _PowerOfTwo(_Unjudged):
    """The most loaded of n is chosen only where both draws hit it, which not every such balancer rules out: with a
    chance of 1 / n² at most.

    So it is told where that has come true too often: by a mixture of likelihood ratios, which under the promise gets as
    large as 1 / `ERROR_RATE` with that chance at most in a whole world (Ville 1939).
    """

    _CHANCES = (0.3, 0.5, 0.75, 0.999)
    """Of balancers that break the promise."""

    def __init__(self) -> None:
        self._ratios = [1.0] * len(self._CHANCES)

    def wrong(self, choice: Choice) -> str:
        most = self._most_loaded(choice)
        if most is None:
            return ""
        promised = 1 / len(choice.registered) ** 2
        hit = choice.replica == most
        for i, chance in enumerate(self._CHANCES):
            self._ratios[i] *= chance / promised if hit else (1 - chance) / (1 - promised)
        if not hit or sum(self._ratios) / len(self._ratios) < 1 / ERROR_RATE:
            return ""
        self._ratios = [1.0] * len(self._CHANCES)
        return f"with {choice.lowest[most]} requests in flight, the most of all, as so often that chance does not do it"

    def equals(self, choice: Choice) -> Collection[int] | None:
        loads = {choice.lowest[each] for each in choice.registered} | {
            choice.highest[each] for each in choice.registered
        }
        return choice.registered if len(loads) == 1 and not choice.could_stay else None

    def _most_loaded(self, choice: Choice) -> int | None:
        """The replica that is more loaded than each other; None where there is none, or it was left."""
        for most in choice.registered:
            others = choice.registered - {most}
            if others and all(choice.lowest[most] > choice.highest[other] for other in others):
                return None if most in choice.left else most
        return None


class _RoundRobin(_Unjudged):
    """As long as the replicas stay the same, each is chosen as often as the others, give or take one."""

    def __init__(self, replicas: int) -> None:
        self._chosen = [0] * replicas

    def wrong(self, choice: Choice) -> str:
        chosen = self._chosen
        chosen[choice.replica] += 1
        least = min([chosen[each] for each in choice.registered])
        if chosen[choice.replica] <= least + 1:
            return ""
        shown = ", ".join(f"{each}: {chosen[each]}" for each in sorted(choice.registered))
        self.begin_anew()
        return f"out of turn (chosen since the replicas last changed: {shown})"

    def begin_anew(self) -> None:
        self._chosen = [0] * len(self._chosen)


def rule_of(routing: str, replicas: int) -> RoutingRule:
    """The rule of a policy, for a world of so many replicas."""
    match routing:
        case "least-loaded":
            return _LeastLoaded()
        case "round-robin":
            return _RoundRobin(replicas)
        case "power-of-two":
            return _PowerOfTwo()
        case "random":
            return _AnyAlike()
    return _Unjudged()


class Excused:
    """Which sessions may leave a replica that lives: those with a request that has not been answered well, or had not
    when they asked to leave, and those that go back to where they were.

    `message_ns`: for how long a message to the balancer is under way.
    """

    def __init__(self, message_ns: int) -> None:
        self._message_ns = message_ns
        self.visited: dict[int, set[int]] = {}
        self._unanswered: dict[int, int] = {}
        """Requests under way, with their session."""
        self._ended_well: dict[int, bool] = {}
        """Of requests under way."""
        self._open: dict[int, int] = {}
        """How many requests of a session are under way."""
        self._failed: set[int] = set()
        """Sessions whose last answer was none that they wanted."""
        self._answered_ns: dict[int, int] = {}
        """When sessions had their last answer."""

    def visit(self, session: int, replica: int) -> None:
        self.visited.setdefault(session, set()).add(replica)

    def may_move(self, session: int, replica: int, now_ns: int) -> bool:
        if self._open.get(session) or session in self._failed or replica in self.visited.get(session, ()):
            return True
        answered_ns = self._answered_ns.get(session)
        return answered_ns is not None and answered_ns >= now_ns - self._message_ns

    def forget(self, session: int) -> None:
        self.visited.pop(session, None)
        self._open.pop(session, None)
        self._failed.discard(session)
        self._answered_ns.pop(session, None)

    def book(self, event: Event) -> None:
        match event:
            case Sent():
                self._unanswered[event.request] = event.session
                self._open[event.session] = self._open.get(event.session, 0) + 1
            case Ended():
                self._ended_well[event.request] = event.outcome in ("stop", "length")
            case Delivered() | Discarded():
                session = self._unanswered.pop(event.request, None)
                well = self._ended_well.pop(event.request, False)
                if session is None:
                    return
                self._answered_ns[session] = event.t_ns
                if self._open.get(session):
                    self._open[session] -= 1
                if well and isinstance(event, Delivered):
                    self._failed.discard(session)
                else:
                    self._failed.add(session)
