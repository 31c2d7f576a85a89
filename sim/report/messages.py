"""The messages to the balancer around those that break a routing invariant."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sim.events import Message
from sim.invariants.balancer_truth import BalancerTruth
from sim.invariants.table import INVARIANTS
from sim.invariants.violation import Violation
from sim.report.table import table
from sim.verdicts import Judged

MESSAGES_AROUND = 4, 5
"""Messages to the balancer that are shown before and after the one that is evidence."""
_MOST_DECISIVE = 6
"""Earlier messages that are shown of what decided it: of the session in question, and of replicas that come and go."""
_COUNTS_CHARS = 60


class MessageRow(NamedTuple):
    """A message to the balancer in a table. `marked`: the invariants that it is the evidence for."""

    marked: str
    number: str
    time: str
    kind: str
    session: str
    replica: str
    shown: str
    truth: str


MESSAGE_HEADS = MessageRow("", "message", "time", "kind", "session", "replica", "counts shown", "truth")


def message_rows(run: Judged, violations: Sequence[Violation]) -> list[MessageRow]:
    """The balancer's messages around the first violation of each routing invariant, those before it that may have
    decided it, and the last of all; what lies between is one row of dots. Counts are those of the replicas in their
    order, after the message."""
    messages = [event for event in run.trace.events if isinstance(event, Message)]
    marks: dict[int, list[str]] = {}
    wanted: set[int] = set()
    firsts = {violation.invariant: violation for violation in reversed(violations) if _is_of_routing(violation)}
    for invariant, violation in sorted(firsts.items()):
        at = violation.balancer_message
        if at is None:  # about all choices together
            wanted.update(range(sum(MESSAGES_AROUND)))
        else:
            marks.setdefault(at, []).append(invariant)
            wanted.update(range(at - MESSAGES_AROUND[0], at + MESSAGES_AROUND[1] + 1))
            wanted.update(_decisive(run, messages[:at], violation.session))
    if not wanted:
        return []
    wanted.add(len(messages) - 1)
    rows: list[MessageRow] = []
    truth, last = BalancerTruth(run.case.replicas), -1
    for number, message in enumerate(messages):
        truth.handle(message, run.trace.roles.get(message.kind))
        if number not in wanted:
            continue
        if number > last + 1:
            rows.append(MessageRow("", "…", "", "", "", "", "", ""))
        last = number
        loads = zip(truth.lowest, truth.highest, strict=True)
        rows.append(
            MessageRow(
                ", ".join(marks.get(number, ())),
                str(number),
                f"{message.t_ns / 1e9:g} s",
                message.kind if message.error is None else f"{message.kind}: {message.error}",
                "" if message.session is None else str(message.session),
                ", ".join(map(str, message.replicas)),
                "none" if message.loads is None else _listed("–" if n is None else str(n) for n in message.loads),
                _listed(str(low) if low == high else f"{low} to {high}" for low, high in loads),
            )
        )
    return rows


def _decisive(run: Judged, before: Sequence[Message], session: int | None) -> set[int]:
    """The messages before a violation that may have decided it, the last ones of each sort."""
    roles = run.trace.roles
    of_session = [i for i, message in enumerate(before) if session is not None and message.session == session]
    of_replicas = [
        i for i, message in enumerate(before) if roles.get(message.kind) in ("add", "remove", "clear_sticky")
    ]
    return {*of_session[-_MOST_DECISIVE:], *of_replicas[-_MOST_DECISIVE:]}


def message_table(run: Judged, violations: Sequence[Violation]) -> str:
    """The rows as text; empty where no routing invariant is violated."""
    rows = [row._replace(marked=f"{row.marked} →" if row.marked else "") for row in message_rows(run, violations)]
    return "messages to the balancer\n" + table([MESSAGE_HEADS, *rows], "  ") if rows else ""


def _listed(counts: Iterable[str]) -> str:
    """Counts in a line, of very many replicas the first ones."""
    text = ", ".join(counts)
    return text if len(text) <= _COUNTS_CHARS else f"{text[:_COUNTS_CHARS]}…"


def _is_of_routing(violation: Violation) -> bool:
    return violation.invariant in INVARIANTS and INVARIANTS[violation.invariant].kind == "routing"
