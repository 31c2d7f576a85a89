"""Waste on the terminal: tables, and sentences on what they mean."""

from collections.abc import Sequence
from typing import NamedTuple

from sim.report.table import table
from sim.waste.cost import S_PER_HOUR, Price, Saving
from sim.waste.ledger import FATES, LOSSES, Waste, spelled_fate
from sim.waste.what_if import Comparison, Row

_BAR_COLUMNS = 30
_MOST_SAVING_LINES = 8
"""With more update intervals than that a policy's saving is told at its best and its worst."""
_LATE_S = 1.0
"""What an update may wait, on average, without a word about it."""


# Tables


def waste_table(rows: Sequence[tuple[Sequence[str], Waste]], heads: Sequence[str], price: Price | None) -> str:
    """Ledgers, one a row: tokens, only the losses that occur, the share wasted and its bar; time where there is one."""
    losses = [loss for loss in LOSSES if any(waste.fates[loss].tokens for _, waste in rows)]
    timed = ["engine time", "of it wasted"] if price is not None else []
    with_again = any(waste.again_tokens for _, waste in rows)
    with_stale = any(waste.stale_kv_tokens for _, waste in rows)
    cached = ["prefilled again"] * with_again + ["stale KV"] * with_stale
    cells = [[*heads, "decoded", "kept", *(spelled_fate(loss) for loss in losses), "wasted", *cached, *timed, ""]]
    scale = max((waste.share for _, waste in rows), default=0.0)
    for names, waste in rows:
        line = [*names, _count(waste.decoded.tokens), _count(waste.kept_tokens)]
        line += [_count(waste.fates[loss].tokens) for loss in losses]
        line.append(f"{waste.share:.1%}")
        line += [_count(waste.again_tokens)] * with_again + [_count(waste.stale_kv_tokens)] * with_stale
        if price is not None:
            spent = price.rates_of(waste)
            decoded_s, wasted_s = spent.engine_s(waste.decoded), spent.engine_s(waste.wasted)
            line += [
                spelled_time(decoded_s),
                f"{spelled_time(wasted_s)} ({wasted_s / decoded_s:.1%})" if decoded_s else "0",
            ]
        line.append(bar(waste.share, scale))
        cells.append(line)
    return table(_right_aligned(cells, len(heads)), "  ")


def _right_aligned(cells: list[list[str]], left: int) -> list[list[str]]:
    """Numbers to the right; the first `left` columns and the bar stay."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    last = len(widths) - 1
    return [
        [cell if at < left or at == last else cell.rjust(widths[at]) for at, cell in enumerate(row)] for row in cells
    ]


def bar(share: float, most: float) -> str:
    """A share as a bar; the longest of its table fills the columns."""
    if not share:
        return "·"
    eighths = max(1, round(8 * _BAR_COLUMNS * share / most))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _count(tokens: int) -> str:
    return f"{tokens:,}"


def spelled_time(seconds: float) -> str:
    """Seconds for a person: `850 ms`, `12.3 s`, `4.1 min`, `7.25 h`."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 2 * S_PER_HOUR else f"{seconds / S_PER_HOUR:.2f} h"


# Sentences


class Group(NamedTuple):
    """What can be held against each other: the variants at one update interval. `at` spells it, "" for one response."""

    at: str
    wastes: Sequence[tuple[str, Waste]]


def saving_lines(groups: Sequence[Group], price: Price | None) -> list[str]:
    """What each later variant saves against the first, at each update interval: these are alternatives, and no sums."""
    if not groups:
        return []
    base_name, *names = [name for name, _ in groups[0].wastes]
    lines = []
    for number, name in enumerate(names, 1):
        told = {group.at: _spelled_saving(group.wastes[0][1], group.wastes[number][1], price) for group in groups}
        title = f"{name} instead of {base_name}"
        if len(set(told.values())) == 1:
            where = ", at each interval" if len(told) > 1 else ""
            lines.append(f"{title}{where}: {next(iter(told.values()))}")
            continue
        lines.append(f"{title}, with an update every")
        chosen = list(told)
        if len(told) > _MOST_SAVING_LINES:
            ranked = sorted(groups, key=lambda each: Saving.of(each.wastes[0][1], each.wastes[number][1], None))
            chosen = [ranked[-1].at, ranked[0].at]
            lines[-1] = f"{title}, at the best and the worst of {len(told)} intervals: with an update every"
        lines += [f"  {at}: {told[at]}" for at in chosen]
    return lines


def _spelled_saving(base: Waste, waste: Waste, price: Price | None) -> str:
    saving = Saving.of(base, waste, price)
    fewer, again = saving.decoded_tokens, saving.prefilled_again_tokens
    line = "as many tokens decoded"
    if fewer:
        share = abs(fewer) / base.decoded.tokens if base.decoded.tokens else 0.0
        line = f"{abs(fewer):,} tokens {'fewer' if fewer >= 0 else 'more'} decoded ({share:.1%})"
    kept = -saving.kept_tokens
    line += ", as many kept" if not kept else f", {abs(kept):,} {'more' if kept > 0 else 'fewer'} kept"
    if kept and base.kept_tokens and waste.kept_tokens:
        costs = [one.decoded.tokens / one.kept_tokens for one in (base, waste)]
        line += f" (a kept token costs {costs[1]:.2f} decoded ones instead of {costs[0]:.2f})"
    if again:
        line += f", {abs(again):,} {'fewer' if again > 0 else 'more'} prefilled again"
    if waste.stale_kv_tokens:
        line += f", with {waste.stale_kv_tokens:,} tokens of KV taken over from older weights"
    if price is not None and saving.engine_s is not None and (fewer or again):
        saved_s = saving.engine_s
        line += f"; {spelled_time(abs(saved_s))} of engine time {'less' if saved_s >= 0 else 'more'}"
        line += f" ({abs(saved_s) / (price.decoding_s(base) + price.again_s(base)):.1%})"
        if price.gpus_per_replica is not None:
            line += f", {_gpu_time(abs(saved_s) * price.gpus_per_replica)}"
    return line


def _gpu_time(gpu_s: float) -> str:
    if gpu_s < 120:
        return f"{gpu_s:.3g} GPU-seconds"
    return f"{gpu_s / 60:.1f} GPU-minutes" if gpu_s < 2 * S_PER_HOUR else f"{gpu_s / S_PER_HOUR:,.2f} GPU-hours"


def wait_line(comparison: Comparison) -> str | None:
    """Where an update had to wait: what it costs to abort nothing, or to have requests queue."""
    late: dict[str, list[float]] = {}
    for row in comparison.rows:
        if row.update_wait_s is not None and row.update_tokens is not None:
            late.setdefault(row.variant, []).append(row.update_wait_s)
    waits: dict[str, list[str]] = {}
    for name, each in late.items():
        if max(each) >= _LATE_S:
            waits.setdefault(", ".join(spelled_time(wait_s) for wait_s in each), []).append(name)
    if not waits:
        return None
    is_several = max(map(len, late.values())) > 1
    by = ("; " if is_several else ", ").join(f"{spelled} ({', '.join(names)})" for spelled, names in waits.items())
    return (
        f"Weight updates were delayed on average{', interval by interval,' if is_several else ''} by {by}: an update "
        f"waits until the running responses have ended (wait), or until each request under way has its first token "
        f"(its gate)."
    )


def cap_line(groups: Sequence[Group], names: Sequence[str], prompt_length: int, prompts: Sequence[int]) -> str | None:
    """Why the overrun of a variant, of those in `names`, is the same at several intervals, or of one response."""
    caps = [max(0, prompt_length - prompt) for prompt in prompts]
    same = False
    for number, (name, _) in enumerate(groups[0].wastes if groups else ()):
        found = [group.wastes[number][1].fates["overrun"].tokens for group in groups]
        found = [tokens for tokens in found if 0 < tokens <= sum(caps)]
        repeats = len(set(found)) < len(found) or (len(prompts) == 1 and sum(caps) in found)
        same |= name in names and repeats
    if not same:
        return None
    spelled = f"{prompt_length:,} − {sum(prompts) / len(prompts):,.0f}{' on average' if len(prompts) > 1 else ''}"
    if len(prompts) == 1:
        return (
            f"The overrun is as large as it gets: at most prompt_length − prompt ({spelled}), however many the aborts."
        )
    return (
        f"Rows with the same overrun are no mistake: once aborted, a response overruns by at most "
        f"prompt_length − prompt ({spelled}), however often it is aborted again."
    )


def depth_line(waste: Waste, price: Price | None) -> str | None:
    """Why the overrun costs more than its share of tokens."""
    overrun, decoded = waste.fates["overrun"], waste.decoded
    if not overrun.tokens:
        return None
    line = (
        f"An overrun token reads {overrun.depth_tokens:,.0f} cached tokens, the mean decoded one "
        f"{decoded.depth_tokens:,.0f}"
    )
    if price is None:
        return f"{line}: it costs more than its share. --latency says how much."
    spent = price.rates_of(waste)
    dearer = spent.engine_s(overrun) / overrun.tokens / (spent.engine_s(decoded) / decoded.tokens)
    return f"{line}: it costs {dearer:.2f} × as much."


def meaning_lines(wastes: Sequence[Waste]) -> list[str]:
    """What the losses that occur mean."""
    found = [loss for loss in LOSSES if any(waste.fates[loss].tokens for waste in wastes)]
    lines = [f"{spelled_fate(loss)}: {FATES[loss]}" for loss in found]
    if any(waste.again_tokens for waste in wastes):
        lines.append("prefilled again: by resumes, after preemptions and under a cache that was cleared; not decoded")
    if any(waste.stale_kv_tokens for waste in wastes):
        lines.append("stale KV: tokens that older weights computed, taken over by what the new ones decode, each time")
    return lines


def prefill_line(groups: Sequence[Group], price: Price | None) -> str | None:
    """What was prefilled again under the first variant, at the interval at which that was most."""
    if not groups:
        return None
    most = max(groups, key=lambda group: group.wastes[0][1].again_tokens)
    name, waste = most.wastes[0]
    if not waste.again_tokens:
        return None
    at = f" with an update every {most.at}" if len(groups) > 1 else ""
    parts = [f"resumes {waste.recomputed_tokens:,}"] if waste.recomputed_tokens else []
    if waste.preempted_tokens:
        parts.append(f"preempted or frozen requests {waste.preempted_tokens:,}")
    line = f"{name} prefilled {waste.again_tokens:,} tokens again{at} ({', '.join(parts)}"
    line += f"; for the first time: {waste.prefill_tokens:,}"
    line += f", and {waste.cached_tokens:,} were found in the cache)" if waste.cached_tokens else ")"
    again_s = 0.0 if price is None else price.again_s(waste)
    return f"{line}: {spelled_time(again_s)} of engine time." if again_s else f"{line}."


# Comparisons


def spelled_interval(tokens: int | None, token_time_s: float | None = None) -> str:
    """`2,400`, or with a token time `2,400 (60 s)`."""
    if tokens is None:
        return "never"
    return f"{tokens:,}" if token_time_s is None else f"{tokens:,} ({spelled_time(tokens * token_time_s)})"


def groups_of(comparison: Comparison, token_time_s: float | None) -> list[Group]:
    """The variants at each interval that all of them have."""
    names = {row.variant for row in comparison.rows}
    return [
        Group(spelled_interval(interval, token_time_s), [(row.variant, row.waste) for row in rows])
        for interval, rows in _by_interval(comparison).items()
        if len(rows) == len(names)
    ]


def _by_interval(comparison: Comparison) -> dict[int | None, list[Row]]:
    found: dict[int | None, list[Row]] = {}
    for row in comparison.rows:
        found.setdefault(row.update_tokens, []).append(row)
    return found


def comparison_table(comparison: Comparison, price: Price | None, token_time_s: float | None) -> str:
    """The rows; an interval is spelled in seconds too where a token time is given."""
    rows: list[tuple[Sequence[str], Waste]] = []
    shown: int | None = -1
    for row in comparison.rows:
        interval = spelled_interval(row.update_tokens, token_time_s) if row.update_tokens != shown else ""
        shown = row.update_tokens
        rows.append(((interval, row.variant), row.waste))
    return waste_table(rows, ("update every", "policy"), price)


def how_line(comparison: Comparison) -> str:
    """Where the figures come from."""
    computed = sum(row.how == "computed" for row in comparison.rows)
    simulated = len(comparison.rows) - computed
    parts = []
    if computed:
        parts.append(
            f"{_rows(computed)} computed at once, {comparison.sampled:,} of their responses simulated as well: equal"
        )
    if simulated:
        parts.append(f"{_rows(simulated)} simulated")
    return "; ".join(parts)


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"
