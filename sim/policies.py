"""Policies: what holds where the field disagrees on what is right, so that a right design is judged by its own word.

A system under test declares some of them (`rollcage_policies`, a dict of text), a flag may say otherwise, and a Case
has a say where its own settings steer one. What nobody says is as the first value of each key has it.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

ATTRIBUTE = "rollcage_policies"
"""Under this name a factory, a client or a balancer declares its policies."""

BudgetPolicy = Literal["turn", "trajectory", "trajectory-assistant", "turn+trajectory"]

MEANINGS: dict[str, dict[str, str]] = {
    "budget": {
        "turn": "response_length limits one call of generate",
        "trajectory": "it limits all turns of a session, with the tools' tokens between them",
        "trajectory-assistant": "it limits what the model generates in all turns; the tools' tokens are free",
        "turn+trajectory": "a caller's own limit is one turn's, and response_length limits the trajectory besides",
    },
    "after_abort": {
        "resume": "an aborted response goes on where it was cut",
        "drop": "what was aborted may be thrown away: the call ends with it, without it, or begins anew",
        "restart": "the response begins anew, and only the new one counts",
        "raise": "the call may fail with an exception",
    },
    "routing": {
        "least-loaded": "a new session goes where the fewest requests are in flight",
        "affinity": "it goes where its prefix is cached",
        "hash": "its id says where it goes, the same as long as the replicas are the same",
        "session": "each session is placed somewhere once, and stays",
        "round-robin": "replicas are chosen in turn",
        "power-of-two": "of two replicas drawn at random the less loaded one is chosen",
        "random": "each replica is as likely as the others",
        "custom": "by a measure of the balancer's own, which its counts show",
        "none": "nothing is promised",
    },
    "sticky": {
        "yes": "a session stays on its replica while that lives",
        "no": "each request chooses anew",
        "fail-over": "it stays while it is answered there, may leave a request behind, and come back to where it was",
    },
    "removal": {
        "at once": "a removed replica gets no more requests",
        "drains": "a removed replica keeps the sessions that it has, and gets no new one",
    },
    "counts": {
        "requests": "a balancer's counts are requests acquired and not released",
        "custom": "they are of its own kind, and are back at their start when all is answered",
    },
    "hedged": {
        "no": "one request of a turn at a time",
        "yes": "a turn may ask several replicas for the same and keep one answer: the others are declared waste",
    },
    "fail_fast": {
        "no": "a call fails only where a server or the balancer failed it",
        "yes": "it may also raise where nothing is left to ask for, or where its replica has left or aborted it",
    },
    "default_limit": {
        "server": "without a usable response_length the limit is left to the server",
        "own": "the client sends a limit of its own then",
    },
    "explicit_limit": {
        "as given": "a caller's own limit takes the place of response_length, be it lower or higher",
        "capped": "it holds up to response_length",
    },
    "fallback_warning": {
        "each": "each client warns of a response_length that it cannot use",
        "once": "one warning a process is enough: a world without one is no offence",
    },
}
"""Each key's values, what holds by default first."""


class PolicyError(ValueError):
    """A key or value that is no policy: the message says what is allowed."""


@dataclass(frozen=True)
class Policies:
    """The policies that a run is judged by; each field is a key of `MEANINGS`, its default the first value there.

    `declared`: the keys that the system under test, or a flag, says something about.
    """

    budget: BudgetPolicy = "turn"
    after_abort: Literal["resume", "drop", "restart", "raise"] = "resume"
    routing: Literal[
        "least-loaded", "affinity", "hash", "session", "round-robin", "power-of-two", "random", "custom", "none"
    ] = "least-loaded"
    sticky: Literal["yes", "no", "fail-over"] = "yes"
    removal: Literal["at once", "drains"] = "at once"
    counts: Literal["requests", "custom"] = "requests"
    hedged: Literal["no", "yes"] = "no"
    fail_fast: Literal["no", "yes"] = "no"
    default_limit: Literal["server", "own"] = "server"
    explicit_limit: Literal["as given", "capped"] = "as given"
    fallback_warning: Literal["each", "once"] = "each"
    declared: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def keeps_one_answer(self) -> bool:
        """Whether some of what was delivered for a turn is rightly not in its response."""
        return self.hedged == "yes" or self.sticky == "fail-over" or self.after_abort in ("drop", "restart")

    @property
    def own_counts(self) -> bool:
        """Whether a balancer's counts are its own affair."""
        return self.counts == "custom" or self.routing == "custom"

    def spelled(self) -> list[str]:
        """Those that are declared, or other than by default, as `key=value`."""
        return [
            f"{key}={value}"
            for key in MEANINGS
            if (value := getattr(self, key)) != next(iter(MEANINGS[key])) or key in self.declared
        ]

    def alternatives(self) -> Iterable[tuple[str, "Policies"]]:
        """Each policy that differs from these in one key, as `key=value`, with that declared."""
        for key, values in MEANINGS.items():
            for value in values:
                if value != getattr(self, key):
                    change: dict[str, Any] = {key: value, "declared": self.declared | {key}}
                    yield f"{key}={value}", replace(self, **change)


def in_force(by_case: Mapping[str, str], declared: Mapping[str, str]) -> Policies:
    """What holds: what is declared, else what the Case says (`Case.policies`)."""
    said = {**by_case, **declared}
    if said.get("after_abort") == "resume" and "after_abort" in by_case:
        said["after_abort"] = by_case["after_abort"]  # partial rollout is off, and its client sees it
    if said.get("routing") == "none" and "sticky" not in declared:
        said["sticky"] = "no"
    return Policies(**said, declared=frozenset(declared))  # type: ignore[arg-type]  # both are checked


def checked(declared: object, whose: str) -> dict[str, str]:
    """Policies as somebody declares them. Raises `PolicyError` that says whose they are and what is allowed."""
    if not isinstance(declared, Mapping):
        raise PolicyError(f"{whose}: {ATTRIBUTE} is {declared!r}: a dict of keys and values is needed")
    for key, value in declared.items():
        if key not in MEANINGS:
            close = difflib.get_close_matches(str(key), MEANINGS, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise PolicyError(f"{whose}: there is no policy {key!r}{hint} (allowed are {', '.join(MEANINGS)})")
        if not isinstance(value, str) or value not in MEANINGS[key]:
            raise PolicyError(f"{whose}: policy {key} is {value!r} (allowed are {', '.join(MEANINGS[key])})")
    return dict(declared)


def parsed(texts: Iterable[str], whose: str = "--policy") -> Mapping[str, str]:
    """Policies from `KEY=VALUE` each; a value of `budget` may stand alone. Raises `PolicyError`."""
    given: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals and text in MEANINGS["budget"]:
            key, value = "budget", text
        elif not equals and key not in MEANINGS:
            raise PolicyError(
                f"{whose} {text!r}: KEY=VALUE is needed (keys are {', '.join(MEANINGS)}), or a value of budget "
                f"({', '.join(MEANINGS['budget'])})"
            )
        if given.get(key, value) != value:
            raise PolicyError(f"{whose} {key} is given as {given[key]!r} and as {value!r}")
        given |= checked({key: value}, whose)
    return MappingProxyType(given)


assert all(list(get_args(get_type_hints(Policies)[key])) == list(values) for key, values in MEANINGS.items())
