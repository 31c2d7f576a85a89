"""A world as one HTML page that needs nothing else: attempts and grants, budget bars, time, deviations, verdicts."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TypeAlias

from sim.budget import allowance, charged_tokens
from sim.case import Case
from sim.clock import NS_PER_S
from sim.events import FaultFired
from sim.invariants.table import INVARIANTS
from sim.ledger import TurnRecord
from sim.report.colours import FATE_COLOURS
from sim.report.messages import MESSAGE_HEADS, message_rows
from sim.report.spans import Part, Span, spans_of, take_lane
from sim.report.spelled import (
    schedule_line,
    settings_line,
    spelled_budget,
    spelled_fault,
    spelled_firings,
    spelled_grant,
    spelled_limits,
    spelled_outcomes,
)
from sim.report.turns import why_it_overran
from sim.report.violated import messages_of, turns_to_tell
from sim.verdicts import Judged
from sim.waste.ledger import FATES, LOSSES, spelled_fate, waste_of

MOST_TURNS = 200
MOST_DEVIATIONS = 300
MOST_LANES = 80
_WIDTH, _LANE, _LEFT, _TOP = 1000, 20, 92, 26
_STYLE = Path(__file__).with_name("page.css")

Place: TypeAlias = Callable[[int], float]
"""From nanoseconds to a place across the drawing."""


def page(run: Judged, title: str, origin: str = "") -> str:
    """The whole page. `title`: what the case is called; `origin`: where it comes from."""
    spans = spans_of(run.case, run.trace)
    sections = [
        _header(run, title, origin),
        _tiles(run),
        _section("In time", _timeline(run, spans)),
        _section("Responses", "".join(_turns(run, spans))),
        _messages(run),
        _section("Faults", _faults(run)) if run.case.faults else "",
        _section("Schedule", _schedule(run)),
        f"<footer>digest {run.trace.digest()} · {len(run.trace.events):,} events · {escape(_ending(run))}</footer>",
    ]
    return _PAGE.format(title=escape(title), style=_STYLE.read_text(encoding="utf-8"), body="\n".join(sections))


def _section(head: str, body: str) -> str:
    return f"<section><h2>{head}</h2>{body}</section>"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]], of: str = "") -> str:
    """Cells are HTML already. `of`: the table's class."""
    kind = f' class="{of}"' if of else ""
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _ending(run: Judged) -> str:
    end = run.trace.end
    assert end is not None
    return f"the world ended at {end.t_ns / NS_PER_S:g} s of virtual time: {end.reason}"


# Top


def _header(run: Judged, title: str, origin: str) -> str:
    verdicts = []
    for number, messages in messages_of(run.violations).items():
        statement = INVARIANTS[number].statement if number in INVARIANTS else ""
        items = "".join(f"<li>{escape(message)}</li>" for message in messages)
        verdicts.append(f'<div class="verdict"><b>{number}</b><div>{escape(statement)}<ul>{items}</ul></div></div>')
    if not verdicts:
        verdicts.append('<div class="verdict clean"><b>clean</b><div>No invariant is violated.</div></div>')
    chips = "".join(f"<span>{escape(part)}</span>" for part in settings_line(run.case, run.policies).split(" · "))
    about = f'<p class="origin">{escape(origin)}</p>' if origin else ""
    return (
        f"<header><h1>{escape(title)} <small>on {escape(run.sut.key)}</small></h1>{about}"
        f'<p class="chips">{chips}</p>{"".join(verdicts)}</header>'
    )


def _tiles(run: Judged) -> str:
    waste = waste_of(run.case, run.trace)
    tiles = [("decoded", waste.decoded.tokens, ""), ("kept", waste.kept_tokens, FATES["kept"])]
    tiles += [(loss, waste.fates[loss].tokens, FATES[loss]) for loss in LOSSES if waste.fates[loss].tokens]
    cells = "".join(
        f'<div class="tile" title="{escape(what)}"><i style="background:{FATE_COLOURS.get(name, "transparent")}"></i>'
        f"<b>{tokens:,}</b><span>{spelled_fate(name)}</span></div>"
        for name, tokens, what in tiles
    )
    share = f'<div class="tile"><b>{waste.share:.1%}</b><span>thrown away</span></div>' if waste.wasted.tokens else ""
    return f'<div class="tiles">{cells}{share}</div>'


# Time


def _timeline(run: Judged, spans: Sequence[Span]) -> str:
    """Replicas as bands, attempts as blocks in their lanes, faults as lines across."""
    case, trace = run.case, run.trace
    end_ns = max(1, trace.events[-1].t_ns)
    scale = (_WIDTH - _LEFT - 8) / end_ns

    def x(t_ns: int) -> float:
        return _LEFT + t_ns * scale

    blocks, bands, top, hidden = [], [], _TOP, 0
    for replica in range(case.replicas):
        lanes: list[int] = []
        mine = [span for span in spans if span.attempt.sent.replica == replica]
        for span in mine:
            until_ns = end_ns if span.ended_ns is None else span.ended_ns
            lane = take_lane(lanes, span.sent_ns, until_ns)
            if lane < MOST_LANES:
                blocks.append(_block(case, span, until_ns, top + lane * _LANE, x))
            else:
                hidden += 1
        height = min(max(1, len(lanes)), MOST_LANES) * _LANE
        band = "band odd" if replica % 2 else "band"
        bands.append(f'<rect class="{band}" x="0" y="{top - 3}" width="{_WIDTH}" height="{height + 4}" rx="3"/>')
        bands.append(f'<text x="8" y="{top + height / 2 + 3:.0f}">replica {replica}</text>')
        top += height + 8
    marks = []
    for event in trace.events:
        if isinstance(event, FaultFired):
            told = f"{spelled_fault(case.faults[event.fault])}, at {event.t_ns / NS_PER_S:g} s"
            place = x(event.t_ns)
            marks.append(
                f'<g class="mark"><title>{escape(told)}</title><line x1="{place:.1f}" x2="{place:.1f}" y1="14" '
                f'y2="{top - 6}"/><path d="M{place:.1f} 14 l-4 -7 h8 z"/></g>'
            )
    ticks = []
    for second in _ticks(end_ns / NS_PER_S):
        ticks.append(f'<text class="tick" x="{x(round(second * NS_PER_S)):.1f}" y="{top + 12}">{second:g} s</text>')
    more = f'<p class="note">{hidden} attempts beyond {MOST_LANES} lanes are not drawn.</p>' if hidden else ""
    legend = _legend({part.fate for span in spans for part in span.parts}, bool(marks))
    return (
        f'<svg class="time" viewBox="0 0 {_WIDTH} {top + 20}" role="img" aria-label="attempts in time">'
        f"{''.join(bands)}{''.join(blocks)}{''.join(marks)}{''.join(ticks)}</svg>{legend}{more}"
    )


def _block(case: Case, span: Span, until_ns: int, y: int, x: Place) -> str:
    sent = span.attempt.sent
    told = (
        f"session {sent.session} turn {sent.turn} attempt {sent.attempt}: prompt {sent.prompt_tokens}, granted "
        f"{spelled_grant(case, span.attempt)}, decoded {span.attempt.decoded_tokens}"
    )
    left, right = x(span.sent_ns), x(until_ns)
    shape = [
        f'<g><title>{escape(told)}</title><rect class="wait" x="{left:.1f}" y="{y + 5}" '
        f'width="{max(1.0, right - left):.1f}" height="{_LANE - 13}"/>'
    ]
    for part in span.parts:
        shape.append(
            f'<rect x="{x(part.start_ns):.1f}" y="{y}" width="{max(0.8, x(part.end_ns) - x(part.start_ns) - 0.6):.1f}" '
            f'height="{_LANE - 4}" rx="2" fill="{FATE_COLOURS[part.fate]}"/>'
        )
    name = f"{sent.session}.{sent.turn}.{sent.attempt}"
    first = x(span.parts[0].start_ns) if span.parts else left
    if span.parts and x(span.parts[0].end_ns) - first > 7 * len(name):
        shape.append(f'<text class="inside" x="{first + 4:.1f}" y="{y + 12}">{name}</text>')
    return "".join(shape) + "</g>"


def _ticks(end_s: float) -> Iterable[float]:
    """Up to eight round times from 0."""
    step = next(
        (base * 10**power for power in range(-6, 8) for base in (1, 2, 5) if end_s / (base * 10**power) <= 8), end_s
    )
    return [round(number * step, 9) for number in range(int(end_s / step) + 1)]


def _legend(fates: set[str], with_marks: bool) -> str:
    items = [
        f'<span><i style="background:{FATE_COLOURS[fate]}"></i>{spelled_fate(fate)}</span>'
        for fate in ("kept", *LOSSES)
        if fate in fates
    ]
    marks = '<span><i class="arrow">▾</i>fault</span>' if with_marks else ""
    return (
        f'<p class="legend">{"".join(items)}{marks}<span class="how">session.turn.attempt; point at a block for its '
        f"grant</span></p>"
    )


# Responses


def _turns(run: Judged, spans: Sequence[Span]) -> Iterable[str]:
    """As far as there is room; for those in violation there is."""
    by_request = {span.attempt.sent.request: span for span in spans}
    turns = turns_to_tell(run.trace.ledger, run.violations, MOST_TURNS)
    for session, turn in turns:
        mine = [by_request[attempt.sent.request] for attempt in turn.attempts]
        yield _turn(run, session, turn, mine)
    more = len(run.trace.ledger.turns()) - len(turns)
    if more:
        yield f'<p class="note">… and {more} more turns.</p>'


def _turn(run: Judged, session: int, turn: TurnRecord, spans: Sequence[Span]) -> str:
    case = run.case
    head = f"session {session}" + (f", turn {turn.started.turn}" if len(case.session(session).turns) > 1 else "")
    head += f" · {escape(spelled_budget(case, session, run.policies))}"
    rows = []
    for span in spans:
        sent, attempt = span.attempt.sent, span.attempt
        lost = ", ".join(
            f"{part.tokens:,} {spelled_fate(part.fate)}" for part in _merged(span.parts) if part.fate != "kept"
        )
        generated = sent.prompt_tokens - turn.started.prompt_tokens
        prompt = f"{turn.started.prompt_tokens:,}" + (f" + {generated:,}" if generated else "")
        row = [
            str(sent.attempt),
            str(sent.replica),
            f"{span.sent_ns / NS_PER_S:g} s",
            prompt,
            escape(spelled_limits(attempt)),
            escape(spelled_grant(case, attempt)),
            f"{attempt.decoded_tokens:,}",
            escape(spelled_outcomes(attempt)),
            f'<span class="lost">{escape(lost)}</span>' if lost else "",
        ]
        rows.append(row)
    heads = ("attempt", "replica", "sent", "prompt", "limit sent", "grant, and why", "decoded", "ended", "lost")
    table = _table(heads, rows, "attempts") if rows else '<p class="note">No request was sent.</p>'
    cause = why_it_overran(case, turn) if _overruns(run, session, turn) else ""
    why = f'<p class="why">{escape(" ".join(cause.split()))}</p>' if cause else ""
    return f"<article><h3>{head}</h3>{_budget_bar(run, session, turn, spans)}{table}{why}</article>"


def _overruns(run: Judged, session: int, turn: TurnRecord) -> bool:
    allowed = allowance(run.case, run.trace.ledger, session, turn, run.policies)
    return allowed is not None and charged_tokens(turn, run.policies) > allowed.left_tokens


def _merged(parts: Sequence[Part]) -> list[Part]:
    """One part a fate."""
    found: dict[str, Part] = {}
    for part in parts:
        before = found.get(part.fate)
        found[part.fate] = part if before is None else part._replace(tokens=before.tokens + part.tokens)
    return list(found.values())


def _budget_bar(run: Judged, session: int, turn: TurnRecord, spans: Sequence[Span]) -> str:
    """The tokens of the attempts end to end, over what the budget leaves to this turn."""
    allowed = allowance(run.case, run.trace.ledger, session, turn, run.policies)
    left = None if allowed is None else max(0, allowed.left_tokens)
    total = turn.decoded_tokens
    most = max(total, left or 0)
    if not most:
        return ""
    blocks = []
    for span in spans:
        inner = "".join(
            f'<i style="width:{100 * part.tokens / most:.3f}%;background:{FATE_COLOURS[part.fate]}" '
            f'title="attempt {span.attempt.sent.attempt}: {part.tokens:,} {part.fate}"></i>'
            for part in span.parts
            if part.fate != "in_flight"  # nobody got it, so it is none of the response's tokens
        )
        blocks.append(inner + "<u></u>")
    edge = ""
    if left is not None:
        side = " left" if left > 0.7 * most else ""
        edge = f'<b class="edge{side}" style="left:{100 * left / most:.3f}%"><em>budget {left:,}</em></b>'
    track = f'<div class="track"><div class="tokens">{"".join(blocks)}</div>{edge}</div>'
    return f'<div class="bar">{track}<span class="sum">{total:,} decoded</span></div>'


# Bottom


def _messages(run: Judged) -> str:
    """The balancer's messages around what breaks a routing invariant."""
    rows = [[escape(cell) for cell in row] for row in message_rows(run, run.violations)]
    return _section("Messages to the balancer", _table(MESSAGE_HEADS, rows)) if rows else ""


def _faults(run: Judged) -> str:
    firings = enumerate(spelled_firings(run.case, run.trace))
    rows = [(str(index), escape(fault), at or "did not fire", escape(note)) for index, (fault, at, note) in firings]
    return _table(("fault", "what", "fired at", ""), rows)


def _schedule(run: Judged) -> str:
    """Where the order of ready callbacks left FIFO."""
    line = f"<p>{escape(schedule_line(run.case))}.</p>"
    if not run.deviations:
        return line
    shown = run.deviations[:MOST_DEVIATIONS]
    cells = "".join(f"<span><b>{deviation.step} →</b>{deviation.pick}</span>" for deviation in shown)
    more = len(run.deviations) - len(shown)
    rest = f'<p class="note">… and {more:,} more.</p>' if more else ""
    head = f"{len(run.deviations):,} deviations: at this step → this callback in line ran in place of the first (0)"
    return f'{line}<p class="note">{head}</p><div class="deviations">{cells}</div>{rest}'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · rollcage</title><style>{style}</style></head>
<body><main>
{body}
</main></body></html>
"""
