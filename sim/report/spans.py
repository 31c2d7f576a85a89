"""When each attempt decoded what: the trace laid out in time, for timelines and pages."""

from collections.abc import Iterator
from typing import NamedTuple

from sim.case import Case
from sim.trace import Admitted, Attempt, Decoded, Trace
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
    bursts: list[list[Decoded]] = [[] for _ in attempts]
    for event in trace.events:
        if isinstance(event, Admitted):
            admitted[event.request] = event.t_ns
        elif isinstance(event, Decoded):
            bursts[event.request].append(event)
    pieces: list[list[Piece]] = [[] for _ in attempts]
    for piece in pieces_of(case, trace):
        pieces[piece.request].append(piece)
    spans = []
    for request, attempt in enumerate(attempts):
        sent_ns = attempt.sent.t_ns
        start_ns = admitted.get(request)
        ended_ns = attempt.ended[-1].t_ns if attempt.ended else None
        parts = tuple(_parts(pieces[request], bursts[request], sent_ns if start_ns is None else start_ns))
        spans.append(Span(attempt, sent_ns, start_ns, ended_ns, parts))
    return spans


def _parts(pieces: list[Piece], bursts: list[Decoded], start_ns: int) -> Iterator[Part]:
    """Neighbouring pieces of one fate are one part."""

    def at_ns(position: int) -> int:
        since_ns = start_ns
        for burst in bursts:
            if position <= burst.position:
                return since_ns
            if position < burst.position + burst.tokens:
                return since_ns + (burst.t_ns - since_ns) * (position - burst.position) // burst.tokens
            since_ns = burst.t_ns
        return since_ns

    last: Part | None = None
    for piece in sorted(pieces, key=lambda each: each.position):
        part = Part(at_ns(piece.position), at_ns(piece.position + piece.tokens), piece.tokens, piece.fate)
        if last is not None and last.fate == part.fate:
            last = Part(last.start_ns, part.end_ns, last.tokens + part.tokens, part.fate)
        else:
            if last is not None:
                yield last
            last = part
    if last is not None:
        yield last
