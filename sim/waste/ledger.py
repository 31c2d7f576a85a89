"""The ledger of waste: what became of each decoded token, from the trace alone.

Every token that was decoded has exactly one fate, so that the fates of a trace add up to what it decoded. `FATES`
names them in their precedence: a token that is two things is the one that comes first.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from sim.budget import allowance, returned_tokens
from sim.case import Case
from sim.clock import NS_PER_S, to_ns
from sim.events import Cancelled, Decoded, Ended, Event, FaultFired, VersionChanged
from sim.faults import WeightUpdate
from sim.ledger import Attempt, SessionRecord, TurnRecord
from sim.policies import in_force
from sim.tokens import first_token
from sim.trace import Trace

FATES: Mapping[str, str] = {
    "duplicate": "decoded once more at a position that the response has already (a retry)",
    "zombie": "decoded after the caller was cancelled",
    "dropped": "of a response that was aborted and never resumed",
    "overrun": "decoded beyond the budget of the response",
    "sliced": "delivered, then cut: by the agent loop's slice, or with a session that failed or was cancelled",
    "discarded": "decoded for an answer whose caller was gone",
    "in_flight": "decoded by the step that was under way when its request was aborted by its id",
    "kept": "in the trajectory that the agent loop handed over",
}
"""Fate → what it means. In this order the first that applies holds."""

LOSSES = tuple(fate for fate in FATES if fate != "kept")


def spelled_fate(fate: str) -> str:
    """As a person reads it."""
    return fate.replace("_", " ")


class Tally(NamedTuple):
    """`tokens` of one kind, and the sum of their KV depths: the cached tokens that decoding each of them read."""

    tokens: int = 0
    kv_tokens: int = 0

    @property
    def depth_tokens(self) -> float:
        """Mean KV depth; 0 where there are no tokens."""
        return self.kv_tokens / self.tokens if self.tokens else 0.0


def tally(position: int, tokens: int) -> Tally:
    """The tally of `tokens` in a row, the first at absolute position `position`: a token reads all before it."""
    return Tally(tokens, tokens * position + tokens * (tokens - 1) // 2)


def total(*tallies: Tally) -> Tally:
    """Of several kinds together."""
    return Tally(sum(each.tokens for each in tallies), sum(each.kv_tokens for each in tallies))


@dataclass(slots=True)
class Waste:
    """The ledger's sums: `fates` holds a tally for each of `FATES`.

    Prefill is counted apart, by the positions of a turn: `prefill_tokens` at positions that it had not come to before,
    in whichever attempt; `recomputed_tokens` where an earlier attempt had computed, found in the cache or decoded
    them; `preempted_tokens` where the same request had (a preemption, or a cache that was cleared under it).
    `cached_tokens` were found in the prefix cache instead. Without an engine a resume computes its whole prompt, as
    the servers clear their cache with an abort (verl's `reset_prefix_cache=True`).

    `stale_kv_tokens`: taken over from older weights, in the prefix cache or by a request that ran on, each time.
    """

    responses: int = 0
    delivered_tokens: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    preempted_tokens: int = 0
    cached_tokens: int = 0
    stale_kv_tokens: int = 0
    fates: dict[str, Tally] = field(default_factory=lambda: dict.fromkeys(FATES, Tally()))

    @property
    def decoded(self) -> Tally:
        return total(*self.fates.values())

    @property
    def wasted(self) -> Tally:
        return total(*(self.fates[loss] for loss in LOSSES))

    @property
    def again_tokens(self) -> int:
        """Prefilled again, by resumes and after preemptions."""
        return self.recomputed_tokens + self.preempted_tokens

    @property
    def kept_tokens(self) -> int:
        return self.fates["kept"].tokens

    @property
    def share(self) -> float:
        """Wasted tokens of the decoded ones, 0 to 1."""
        decoded = self.decoded.tokens
        return self.wasted.tokens / decoded if decoded else 0.0

    def count(self, fate: str, some: Tally) -> None:
        self.fates[fate] = total(self.fates[fate], some)


class Piece(NamedTuple):
    """Tokens in a row that share a fate: `tokens` of `request`, the first at absolute position `position`."""

    session: int
    turn: int
    request: int
    position: int
    tokens: int
    fate: str


class _Stretch(NamedTuple):
    """A run of decoded tokens, and what the trace says of all of them."""

    start: int
    end: int
    request: int
    delivered: bool
    orphaned: bool
    """Decoded after its session was cancelled."""
    in_flight: bool = False
    """By the step under way when its request was aborted."""


def waste_of(case: Case, trace: Trace) -> Waste:
    """The sums of a whole trace."""
    waste = Waste()
    for piece in pieces_of(case, trace):
        waste.count(piece.fate, tally(piece.position, piece.tokens))
    for _, turn in trace.ledger.turns():
        waste.responses += 1
        reached = 0
        for attempt in turn.attempts:
            if attempt.delivered is not None:
                waste.delivered_tokens += min(attempt.delivered.tokens, attempt.decoded_tokens)
            reached = _count_prefill(case, attempt, waste, reached)
    waste.stale_kv_tokens += sum(each.stale_kv_tokens for each in trace.events if isinstance(each, VersionChanged))
    decoded = sum(
        attempt.decoded_tokens + sum(ended.in_flight_tokens for ended in attempt.ended)
        for attempt in trace.ledger.attempts
    )
    assert waste.decoded.tokens == decoded, f"the fates add up to {waste.decoded.tokens} of {decoded} decoded tokens"
    return waste


def _count_prefill(case: Case, attempt: Attempt, waste: Waste, reached: int) -> int:
    """Books where the KV of an attempt's prompt came from. `reached`: so many positions of its turn, from the first,
    had KV in the attempts before it; returned with this one's."""
    prefilled = attempt.prefilled
    computed_tokens, end = 0, 0
    if prefilled is not None:
        computed_tokens = prefilled.computed_tokens
        # What is found in the cache lies before what is computed, as KV rests on all before it.
        end = prefilled.cached_tokens + computed_tokens
        waste.preempted_tokens += prefilled.recomputed_tokens
        waste.cached_tokens += prefilled.cached_tokens
        waste.stale_kv_tokens += prefilled.stale_tokens
    elif case.server.engine is None and attempt.decoded_tokens:
        # Without a first token nobody can say how far its prefill came.
        computed_tokens = end = attempt.sent.prompt_tokens
    first_tokens = min(computed_tokens, max(0, end - reached))
    waste.prefill_tokens += first_tokens
    waste.recomputed_tokens += computed_tokens - first_tokens
    if attempt.decoded_tokens:
        end = attempt.sent.prompt_tokens + attempt.decoded_tokens
    return max(reached, end)


def mean_update_wait_s(case: Case, trace: Trace) -> float:
    """How late the new weights came, in seconds, on average over the weight updates of a trace: what an update waited
    for before its pause began. 0 where there were none."""
    asked_ns: list[int] = []
    waits_ns: dict[int, int] = {}
    for event in trace.events:
        if isinstance(event, FaultFired) and isinstance(case.faults[event.fault], WeightUpdate) and not event.note:
            asked_ns.append(event.t_ns + to_ns(getattr(case.faults[event.fault], "pause_s", 0.0)))
        elif isinstance(event, VersionChanged):
            waits_ns[event.version] = event.t_ns - asked_ns[event.version - 1]
    return sum(waits_ns.values()) / len(waits_ns) / NS_PER_S if waits_ns else 0.0


def pieces_of(case: Case, trace: Trace) -> Iterator[Piece]:
    """Every decoded token of a trace with its fate, turn by turn."""
    stretches = _stretches(trace)
    for session, turn in trace.ledger.turns():
        yield from _turn_pieces(
            case, trace, session, turn, [s for a in turn.attempts for s in stretches[a.sent.request]]
        )


def _stretches(trace: Trace) -> list[list[_Stretch]]:
    """For each request what it decoded, cut where its delivered part ends and where its session was cancelled."""
    attempts = trace.ledger.attempts
    found: list[list[_Stretch]] = [[] for _ in attempts]
    undelivered = [0 if a.delivered is None else a.delivered.tokens for a in attempts]
    """Tokens of the answer that are still to be accounted for: an answer holds the first that were decoded."""
    cancelled: set[int] = set()
    for event in _decoding(trace.events):
        if isinstance(event, Cancelled):
            cancelled.add(event.session)
            continue
        request = event.request
        orphaned = attempts[request].sent.session in cancelled
        if isinstance(event, Ended):
            start = attempts[request].sent.prompt_tokens + event.tokens
            end = start + event.in_flight_tokens
            found[request].append(_Stretch(start, end, request, False, orphaned, in_flight=True))
            continue
        middle, end = event.position + min(event.tokens, undelivered[request]), event.position + event.tokens
        undelivered[request] -= middle - event.position
        if middle > event.position:
            found[request].append(_Stretch(event.position, middle, request, True, orphaned))
        if end > middle:
            found[request].append(_Stretch(middle, end, request, False, orphaned))
    return found


def _decoding(events: Iterable[Event]) -> Iterator[Decoded | Cancelled | Ended]:
    for event in events:
        if isinstance(event, Decoded | Cancelled) or (isinstance(event, Ended) and event.in_flight_tokens):
            yield event


def _turn_pieces(
    case: Case, trace: Trace, session: int, turn: TurnRecord, stretches: list[_Stretch]
) -> Iterator[Piece]:
    prompt_tokens = turn.started.prompt_tokens
    allowed = allowance(case, trace.ledger, session, turn, in_force(case.policies, {}))
    limit = None if allowed is None else prompt_tokens + max(0, allowed.left_tokens)
    kept = _kept_ranges(case, trace.ledger.sessions[session], session, turn)
    dropped = _is_dropped(case, trace, session, turn)
    returned = turn.ended is not None and turn.ended.outcome == "ok"

    def fate(position: int, stretch: _Stretch) -> str:
        if stretch.orphaned and not returned:
            return "zombie"
        if dropped:
            return "dropped"
        if limit is not None and position >= limit:
            return "overrun"
        if stretch.in_flight:
            return "in_flight"
        if any(start <= position < end for start, end in kept):
            return "kept"
        return "sliced" if stretch.delivered else "discarded"

    for stretch in stretches:
        # No retry, though the resume decodes its position once more.
        if stretch.in_flight:
            assert stretch.end == stretch.start + 1, "a step decodes one token of a request"
            yield Piece(session, turn.started.turn, stretch.request, stretch.start, 1, fate(stretch.start, stretch))
    stretches = [stretch for stretch in stretches if not stretch.in_flight]
    cuts = {cut for stretch in stretches for cut in (stretch.start, stretch.end)}
    cuts.update(cut for ends in kept for cut in ends)
    if limit is not None:
        cuts.add(limit)
    waiting = sorted(stretches, key=lambda stretch: stretch.start, reverse=True)
    here: list[_Stretch] = []
    ordered = sorted(cuts)
    for start, end in pairwise(ordered):
        here = [stretch for stretch in here if stretch.end > start]
        while waiting and waiting[-1].start <= start:
            here.append(waiting.pop())
        if not here:
            continue
        # Of several tokens at one position the one that can still be of use counts, and of equals the last.
        real = max(here, key=lambda stretch: (stretch.delivered, not stretch.orphaned, stretch.request))
        for stretch in here:
            name = fate(start, stretch) if stretch is real else "duplicate"
            yield Piece(session, turn.started.turn, stretch.request, start, end - start, name)


def _kept_ranges(case: Case, record: SessionRecord, session: int, turn: TurnRecord) -> list[tuple[int, int]]:
    """The positions of a turn's tokens that are in the trajectory which the agent loop handed over.

    A session that failed or was cancelled hands over nothing. The slice is verl's: model and tool tokens since the
    first prompt, up to response_length.
    """
    if turn.ended is None or turn.ended.outcome != "ok" or record.ended is None or record.ended.outcome != "ok":
        return []
    before = turn.started.prompt_tokens - record.turns[0].started.prompt_tokens
    left = max(0, case.budget.response_length - before)
    origin = first_token(session)
    ranges = []
    for first_id, count in turn.ended.ids:
        taken = min(count, left)
        left -= taken
        if taken:
            ranges.append((first_id - origin, first_id - origin + taken))
    return ranges


def _is_dropped(case: Case, trace: Trace, session: int, turn: TurnRecord) -> bool:
    """Whether the response ended with an abort that its client knew of, short of its budget, and was not resumed."""
    last = turn.attempts[-1] if turn.attempts else None
    if last is None or last.delivered is None or not last.ended or last.ended[-1].outcome not in ("abort", "refused"):
        return False
    returned = turn.ended is not None and turn.ended.outcome == "ok"
    tokens = returned_tokens(turn) if returned else turn.decoded_tokens
    allowed = allowance(case, trace.ledger, session, turn, in_force(case.policies, {}))
    left = None if allowed is None else allowed.left_tokens - tokens
    room = case.server.rules.room_tokens(case.budget, turn.started.prompt_tokens + tokens)
    return (left is None or left > 0) and room > 0
