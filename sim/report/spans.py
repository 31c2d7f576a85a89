"""When each attempt decoded what: the trace laid out in time, for timelines and pages."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sim.case import Case
from sim.events import Admitted, Decoded, Resumed
from sim.ledger import Attempt
from sim.trace import Trace
from sim.waste.ledger import Piece, pieces_of


class Part(NamedTuple):
    """A stretch of an attempt whose tokens share a fate."""

    start_ns: int
    end_ns: int
    tokens: int
    fate: str


class Span(NamedTuple):
    """An attempt in time: sent, in the engine (None: never), ended (None: not at all); its tokens by fate."""

    attempt: Attempt
    sent_ns: int
    admitted_ns: int | None
    ended_ns: int | None
    parts: tuple[Part, ...]


def spans_of(case: Case, trace: Trace) -> list[Span]:
    """The attempts in the order sent. Times between two bursts are spread evenly over their tokens."""
    attempts = trace.ledger.attempts
    admitted: dict[int, int] = {}
    resumed_ns: list[list[int]] = [[] for _ in range(case.replicas)]
    bursts: list[list[Decoded]] = [[] for _ in attempts]
    for event in trace.events:
        if isinstance(event, Admitted):
            admitted[event.request] = event.t_ns
        elif isinstance(event, Decoded):
            bursts[event.request].append(event)
        elif isinstance(event, Resumed):
            resumed_ns[event.replica].append(event.t_ns)
    pieces: list[list[Piece]] = [[] for _ in attempts]
    for piece in pieces_of(case, trace):
        pieces[piece.request].append(piece)
    spans = []
    for request, attempt in enumerate(attempts):
        sent_ns = attempt.sent.t_ns
        start_ns = admitted.get(request)
        ended_ns = attempt.ended[-1].t_ns if attempt.ended else None
        begin_ns = sent_ns if start_ns is None else start_ns
        parts = tuple(_parts(pieces[request], bursts[request], begin_ns, resumed_ns[attempt.sent.replica]))
        spans.append(Span(attempt, sent_ns, start_ns, ended_ns, parts))
    return spans


def take_lane(lanes: list[int], start_ns: int, end_ns: int) -> int:
    """The first lane that is free at `start_ns`, taken until `end_ns`. `lanes`: until when each is taken."""
    lane = next((number for number, free_ns in enumerate(lanes) if free_ns <= start_ns), len(lanes))
    lanes[lane : lane + 1] = [end_ns]
    return lane


def _parts(pieces: list[Piece], bursts: list[Decoded], start_ns: int, resumed_ns: Sequence[int]) -> Iterator[Part]:
    """Neighbouring pieces of one fate are one part, unless the replica was paused between them."""
    begun_ns = []
    for burst in bursts:
        later = bisect_right(resumed_ns, burst.t_ns)
        begun_ns.append(max(start_ns, resumed_ns[later - 1]) if later else start_ns)
        start_ns = burst.t_ns

    def at_ns(position: int, *, end: bool) -> int:
        """When the token at `position` was begun, or with `end` when the one before it was there."""
        since_ns = begun_ns[0] if begun_ns else start_ns
        for burst, begin_ns in zip(bursts, begun_ns, strict=True):
            done = position - burst.position
            if done < 0 or (end and not done):
                return since_ns
            if done < burst.tokens + end:
                return begin_ns + (burst.t_ns - begin_ns) * done // burst.tokens
            since_ns = burst.t_ns
        return since_ns

    last: Part | None = None
    for piece in sorted(pieces, key=lambda each: each.position):
        begin_ns, end_ns = at_ns(piece.position, end=False), at_ns(piece.position + piece.tokens, end=True)
        part = Part(begin_ns, end_ns, piece.tokens, piece.fate)
        if last is not None and last.fate == part.fate and last.end_ns == part.start_ns:
            last = Part(last.start_ns, part.end_ns, last.tokens + part.tokens, part.fate)
        else:
            if last is not None:
                yield last
            last = part
    if last is not None:
        yield last
