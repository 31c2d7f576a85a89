"""Waste as pictures: against the update interval for each policy, and one response in time. Needs matplotlib."""

import io
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sim.clock import NS_PER_S
from sim.files import write_bytes
from sim.report.colours import FATE_COLOURS
from sim.report.spans import Part, Span
from sim.waste.ledger import FATES, spelled_fate
from sim.waste.what_if import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
_LINE_COLOURS = ("#d1434b", "#3d6fa3", "#e8a33d", "#5a9367", "#8c6bb1", "#4d4d4d")
_MARKERS = "osD^vP"
_TITLE_COLUMNS = 120
_INK, _FAINT = "#22272e", "#8a939c"


class PlotError(ValueError):
    """A picture that cannot be drawn: the message says what is missing."""


class Story(NamedTuple):
    """One response under one policy."""

    variant: str
    spans: Sequence[Span]


def check_plot(path: Path) -> None:
    """Raises `PlotError` for a suffix that is not known, or where matplotlib is missing: before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise PlotError(f"--plot {path}: {path.suffix or 'no suffix'} is not known; {', '.join(SUFFIXES)} are")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PlotError("--plot needs matplotlib, which is not installed: pip install matplotlib") from None


def draw(
    path: Path,
    inputs: Iterable[Path],
    rows: Sequence[Row],
    stories: Sequence[Story],
    about: str,
    of_story: str,
    token_time_s: float | None = None,
) -> None:
    """Writes the picture: the waste of `rows` over their update intervals, if there are several, above `stories`. The
    intervals are in tokens, or in seconds where a token time is given."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: F401 - registers itself
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    intervals = {row.update_tokens for row in rows}
    with_lines = len(intervals) > 1
    heights = ([3.3] if with_lines else []) + [0.25 + 0.42 * len(stories)]
    figure = Figure(
        figsize=(9, sum(heights) + 0.9 * len(heights) + 0.4),
        dpi=150,
        layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12),
    )
    panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    wrapped = "\n".join(part for line in about.splitlines() for part in textwrap.wrap(line, _TITLE_COLUMNS))
    figure.suptitle(wrapped, fontsize=9, color=_FAINT)
    if with_lines:
        _draw_lines(panels[0], rows, token_time_s)
        panels[0].set_title("Decoded and thrown away", loc="left", fontsize=11, color=_INK)
    _draw_stories(panels[-1], stories, of_story)
    drawn, suffix = io.BytesIO(), path.suffix.lower()
    figure.savefig(drawn, format=suffix[1:], metadata={"Date": None} if suffix == ".svg" else None)
    write_bytes(path, drawn.getvalue(), inputs)


def _plain(axes: "Axes") -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)
    axes.tick_params(colors=_INK, length=0, labelsize=9, pad=6)


def _draw_lines(axes: "Axes", rows: Sequence[Row], token_time_s: float | None) -> None:
    """A line a policy, named at its end; policies that waste the same share one name."""
    given = sorted({row.update_tokens for row in rows if row.update_tokens is not None})
    places: dict[int | None, int] = {tokens: place for place, tokens in enumerate(given)}
    labels = [f"{tokens:,}" if token_time_s is None else f"{tokens * token_time_s:.6g}" for tokens in given]
    if any(row.update_tokens is None for row in rows):
        places[None] = len(given)
        labels.append("never")
    names = list(dict.fromkeys(row.variant for row in rows))
    ends: dict[float, list[tuple[str, str]]] = {}
    for number, name in enumerate(names):
        mine = sorted((places[row.update_tokens], 100 * row.waste.share) for row in rows if row.variant == name)
        colour = _LINE_COLOURS[number % len(_LINE_COLOURS)]
        xs, ys = zip(*mine, strict=True)
        marker = _MARKERS[number % len(_MARKERS)]
        axes.plot(xs, ys, color=colour, marker=marker, markersize=5, linewidth=2, clip_on=False, zorder=3)
        ends.setdefault(round(ys[-1], 3), []).append((name, colour))
    _name_lines(axes, ends, len(labels) - 1)
    step = -(-len(labels) // 12)
    axes.set_xticks(range(0, len(labels), step), labels[::step])
    unit = "tokens that a response decodes" if token_time_s is None else "seconds"
    axes.set_xlabel(f"{unit} between two weight updates", fontsize=9, color=_INK)
    axes.set_ylabel("share of all decoded tokens", fontsize=9, color=_INK)
    axes.yaxis.set_major_formatter(lambda percent, _: f"{percent:g} %")
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.15, len(labels) - 1 + 0.02 * len(labels))
    axes.grid(axis="y", color="#e4e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    _plain(axes)


def _name_lines(axes: "Axes", ends: dict[float, list[tuple[str, str]]], x: int) -> None:
    """Names beside the ends of the lines, pushed apart where they would overlap."""
    top = max([axes.get_ylim()[1], *ends])
    line = 0.06 * top
    edge = -0.4 * line
    for height in sorted(ends):
        names = ends[height]
        half = line * len(names) / 2
        at = max(height, edge + half)
        edge = at + half
        leads = {"arrowstyle": "-", "color": _FAINT, "linewidth": 0.6, "shrinkA": 2, "shrinkB": 4, "relpos": (0, 0.5)}
        axes.annotate(
            "\n".join(name for name, _ in names),
            (x, height),
            xytext=(x + 0.035 * (x + 1), at),
            textcoords="data",
            arrowprops=leads,
            va="center",
            fontsize=9,
            color=names[0][1] if len(names) == 1 else _INK,
            annotation_clip=False,
        )


def _draw_stories(axes: "Axes", stories: Sequence[Story], title: str) -> None:
    """A row a policy, a block an attempt, coloured by what became of its tokens."""
    seen: dict[str, None] = {}
    spans = [span for story in stories for span in story.spans]
    sent_ns = min((span.sent_ns for span in spans), default=0)
    end_s = (max((part.end_ns for span in spans for part in span.parts), default=1) - sent_ns) / NS_PER_S
    for row, story in enumerate(stories):
        parts = [part for span in story.spans for part in span.parts]
        for part in parts:
            seen[part.fate] = None
            start_s, width_s = (part.start_ns - sent_ns) / NS_PER_S, (part.end_ns - part.start_ns) / NS_PER_S
            axes.barh(row, width_s, 0.52, start_s, color=FATE_COLOURS[part.fate], edgecolor="white", linewidth=0.8)
        last_s = (max((part.end_ns for part in parts), default=sent_ns) - sent_ns) / NS_PER_S
        axes.text(last_s + 0.012 * end_s, row, _spelled_sum(parts), va="center", fontsize=9, color=_INK)
    axes.set_yticks(range(len(stories)), [story.variant for story in stories])
    axes.set_ylim(len(stories) - 0.5, -0.62)
    axes.set_xlim(0, end_s * 1.2)
    axes.set_xlabel("virtual seconds since it was sent", fontsize=9, color=_INK, loc="left")
    axes.set_title(title, loc="left", fontsize=11, color=_INK)
    handles = [
        axes.barh(0, 0, color=FATE_COLOURS[fate], label=spelled_fate(fate))
        for fate in ("kept", *FATES)
        if seen.pop(fate, 1) is None
    ]
    if handles:
        axes.legend(
            handles=handles,
            loc="upper right",
            bbox_to_anchor=(1, 0),
            borderaxespad=2.2,
            ncols=len(handles),
            frameon=False,
            fontsize=9,
        )
    _plain(axes)


def _spelled_sum(parts: Sequence[Part]) -> str:
    """`10,104 = 8,192 + 1,912`: the tokens by fate, in the order of the blocks."""
    sums: dict[str, int] = {}
    for part in parts:
        sums[part.fate] = sums.get(part.fate, 0) + part.tokens
    total = f"{sum(sums.values()):,}"
    return total if len(sums) < 2 else f"{total} = {' + '.join(f'{tokens:,}' for tokens in sums.values())}"
