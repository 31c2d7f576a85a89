"""Waste on the terminal, as plain data and as CSV."""

import csv
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from sim.engine.latency import Latency
from sim.report.explain import table
from sim.waste.cost import Rates, rates
from sim.waste.ledger import FATES, LOSSES, Waste
from sim.waste.what_if import Comparison, Row

_BAR_COLUMNS = 30
_S_PER_HOUR = 3600
_LATE_S = 1.0
"""What an update may wait, on average, without a word about it."""


class Price(NamedTuple):
    """How tokens become time, where the user named a latency model: `batch` responses decode at once."""

    latency: Latency
    batch: int
    gpus_per_replica: int | None

    def rates_of(self, waste: Waste) -> Rates:
        """At the mean depth of what was decoded."""
        return rates(self.latency, self.batch, waste.decoded.depth_tokens)

    def decoding_s(self, waste: Waste) -> float:
        return self.rates_of(waste).engine_s(waste.decoded)

    def again_s(self, waste: Waste) -> float:
        """Of what was prefilled again."""
        return self.rates_of(waste).prefill_token_s * waste.again_tokens


def as_data(waste: Waste, price: Price | None) -> dict[str, Any]:
    """A ledger as plain data: tokens by name; with a latency model seconds of an engine as well."""
    data: dict[str, Any] = {
        "responses": waste.responses,
        "decoded": waste.decoded.tokens,
        "delivered": waste.delivered_tokens,
        "kept": waste.kept_tokens,
        **{loss: waste.fates[loss].tokens for loss in LOSSES},
        "wasted_share": round(waste.share, 6),
        "prefill": waste.prefill_tokens,
        "recomputed_prefill": waste.recomputed_tokens,
        "preempted_prefill": waste.preempted_tokens,
        "cached_prefill": waste.cached_tokens,
        "stale_kv": waste.stale_kv_tokens,
        "mean_depth": {fate: round(some.depth_tokens, 1) for fate, some in waste.fates.items() if some.tokens},
    }
    if price is not None:
        spent = price.rates_of(waste)
        wasted_s = spent.engine_s(waste.wasted)
        data["engine_s"] = {
            "decoded": round(spent.engine_s(waste.decoded), 3),
            "wasted": round(wasted_s, 3),
            **{fate: round(spent.engine_s(some), 3) for fate, some in waste.fates.items() if some.tokens},
            "prefilled_again": round(price.again_s(waste), 3),
        }
        if price.gpus_per_replica is not None:
            data["gpu_hours_wasted"] = round(wasted_s * price.gpus_per_replica / _S_PER_HOUR, 4)
    return data


# Tables


def waste_table(rows: Sequence[tuple[Sequence[str], Waste]], heads: Sequence[str], price: Price | None) -> str:
    """Ledgers, one a row: tokens, only the losses that occur, the share wasted and its bar; time where there is one."""
    losses = [loss for loss in LOSSES if any(waste.fates[loss].tokens for _, waste in rows)]
    timed = ["engine time", "of it wasted"] if price is not None else []
    # The caches differ: then what is prefilled again, and the price of not doing so, are part of the comparison.
    with_cache = any(waste.cached_tokens or waste.stale_kv_tokens or waste.preempted_tokens for _, waste in rows)
    cached = ["prefilled again", "stale KV"] if with_cache else []
    cells = [[*heads, "decoded", "kept", *(spelled_fate(loss) for loss in losses), "wasted", *cached, *timed, ""]]
    scale = max((waste.share for _, waste in rows), default=0.0)
    for names, waste in rows:
        line = [*names, _count(waste.decoded.tokens), _count(waste.kept_tokens)]
        line += [_count(waste.fates[loss].tokens) for loss in losses]
        line.append(f"{waste.share:.1%}")
        if with_cache:
            line += [_count(waste.again_tokens), _count(waste.stale_kv_tokens)]
        if price is not None:
            spent = price.rates_of(waste)
            decoded_s, wasted_s = spent.engine_s(waste.decoded), spent.engine_s(waste.wasted)
            line += [duration(decoded_s), f"{duration(wasted_s)} ({wasted_s / decoded_s:.1%})" if decoded_s else "0"]
        line.append(bar(waste.share, scale))
        cells.append(line)
    return table(_right_aligned(cells, len(heads)), "  ")


def spelled_fate(fate: str) -> str:
    return fate.replace("_", " ")


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


def duration(seconds: float) -> str:
    """Seconds for a person: `850 ms`, `12.3 s`, `4.1 min`, `7.25 h`."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 2 * _S_PER_HOUR else f"{seconds / _S_PER_HOUR:.2f} h"


# Sentences


def saving_lines(totals: Sequence[tuple[str, Waste]], price: Price | None) -> list[str]:
    """What each later policy saves against the first."""
    if len(totals) < 2:
        return []
    base_name, base = totals[0]
    lines = []
    for name, waste in totals[1:]:
        fewer = base.decoded.tokens - waste.decoded.tokens
        share = abs(fewer) / base.decoded.tokens if base.decoded.tokens else 0.0
        line = f"{name} instead of {base_name}: {abs(fewer):,} tokens {'fewer' if fewer >= 0 else 'more'} decoded"
        if not fewer:
            line = f"{name} instead of {base_name}: as many tokens decoded"
        else:
            line += f" ({share:.1%})"
        kept = waste.kept_tokens - base.kept_tokens
        line += ", as many kept" if not kept else f", {abs(kept):,} {'more' if kept > 0 else 'fewer'} kept"
        if kept and base.kept_tokens and waste.kept_tokens:
            costs = [one.decoded.tokens / one.kept_tokens for one in (base, waste)]
            line += f" (a kept token costs {costs[1]:.2f} decoded ones instead of {costs[0]:.2f})"
        again = base.again_tokens - waste.again_tokens
        if again:
            line += f", {abs(again):,} {'fewer' if again > 0 else 'more'} prefilled again"
        if waste.stale_kv_tokens:
            line += f", with {waste.stale_kv_tokens:,} tokens of KV taken over from older weights"
        if price is not None and (fewer or again):
            saved_s = price.decoding_s(base) + price.again_s(base) - price.decoding_s(waste) - price.again_s(waste)
            line += f"; {duration(abs(saved_s))} of engine time {'less' if saved_s >= 0 else 'more'}"
            line += f" ({abs(saved_s) / (price.decoding_s(base) + price.again_s(base)):.1%})"
            if price.gpus_per_replica is not None:
                line += f", {_gpu_hours(abs(saved_s) * price.gpus_per_replica)}"
        lines.append(line)
    return lines


def _gpu_hours(gpu_s: float) -> str:
    hours = gpu_s / _S_PER_HOUR
    return f"{hours:,.2f} GPU-hours" if hours >= 0.01 else "less than 0.01 GPU-hours"


def wait_line(comparison: Comparison) -> str | None:
    """Where an update had to wait: what it costs to abort nothing, or to have requests queue."""
    late: dict[str, list[float]] = {}
    for row in comparison.rows:
        if row.update_wait_s is not None and row.update_tokens is not None:
            late.setdefault(row.policy, []).append(row.update_wait_s)
    waits: dict[str, list[str]] = {}
    for name, each in late.items():
        if max(each) >= _LATE_S:
            waits.setdefault(", ".join(duration(wait_s) for wait_s in each), []).append(name)
    if not waits:
        return None
    by = "; ".join(f"{', '.join(names)}: new weights came late, by {spelled}" for spelled, names in waits.items())
    return (
        f"{by} on average. An update waits for the running responses (wait), or until each request has its first token "
        f"(the gate of vLLM's server)."
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
    if any(waste.cached_tokens or waste.stale_kv_tokens or waste.preempted_tokens for waste in wastes):
        lines.append(
            "prefilled again: by resumes, after preemptions, and under a cache that was cleared; no decode loss"
        )
    if any(waste.stale_kv_tokens for waste in wastes):
        lines.append("stale KV: tokens that older weights computed, taken over by what the new ones decode, each time")
    return lines


def prefill_line(name: str, waste: Waste, price: Price | None) -> str | None:
    """What was prefilled again under the policy `name`."""
    if not waste.again_tokens:
        return None
    parts = [f"resumes {waste.recomputed_tokens:,}"] if waste.recomputed_tokens else []
    if waste.preempted_tokens:
        parts.append(f"preempted or frozen requests {waste.preempted_tokens:,}")
    line = f"Apart from that, {name} prefilled {waste.again_tokens:,} tokens again ({', '.join(parts)}"
    line += f"; first prompts: {waste.prefill_tokens:,}"
    line += f", and {waste.cached_tokens:,} were found in the cache)" if waste.cached_tokens else ")"
    again_s = 0.0 if price is None else price.again_s(waste)
    return f"{line}: {duration(again_s)} of engine time." if again_s else f"{line}."


# Comparisons


def spelled_interval(tokens: int | None, token_time_s: float | None = None) -> str:
    """`2,400`, or with a token time `2,400 (60 s)`."""
    if tokens is None:
        return "never"
    return f"{tokens:,}" if token_time_s is None else f"{tokens:,} ({duration(tokens * token_time_s)})"


def totals(comparison: Comparison) -> list[tuple[str, Waste]]:
    """The sums of each policy over the intervals that every policy has."""
    names = list(dict.fromkeys(row.policy for row in comparison.rows))
    sums = {name: Waste() for name in names}
    for rows in _by_interval(comparison).values():
        if len(rows) == len(names):
            for row in rows:
                sums[row.policy].add(row.waste)
    return list(sums.items())


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
        rows.append(((interval, row.policy), row.waste))
    return waste_table(rows, ("update every", "policy"), price)


def how_line(comparison: Comparison) -> str:
    """Where the figures come from."""
    computed = sum(row.how == "computed" for row in comparison.rows)
    simulated = len(comparison.rows) - computed
    parts = []
    if computed:
        parts.append(
            f"{computed} rows computed at once, {comparison.sampled:,} of their responses simulated as well: equal"
        )
    if simulated:
        parts.append(f"{simulated} rows simulated")
    return "; ".join(parts)


def comparison_csv(comparison: Comparison, price: Price | None) -> str:
    """One line a row, the losses in columns."""
    text = io.StringIO()
    columns = ["policy", "update_every_tokens", "how", "responses", "decoded", "delivered", "kept", *LOSSES]
    columns += ["wasted_share", "prefill", "recomputed_prefill", "preempted_prefill", "cached_prefill", "stale_kv"]
    if price is not None:
        columns += ["engine_s", "engine_s_wasted"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in comparison.rows:
        data = as_data(row.waste, price) | {"policy": row.policy, "how": row.how}
        data["update_every_tokens"] = "" if row.update_tokens is None else row.update_tokens
        if price is not None:
            data |= {"engine_s_wasted": data["engine_s"]["wasted"], "engine_s": data["engine_s"]["decoded"]}
        writer.writerow([data[column] for column in columns])
    return text.getvalue()


def comparison_data(comparison: Comparison, price: Price | None) -> dict[str, Any]:
    """Under `policies` for each name its sums, and under `by_update_interval` its rows."""
    policies: dict[str, Any] = {}
    for name, waste in totals(comparison):
        rows = [
            {
                "update_every_tokens": row.update_tokens,
                "how": row.how,
                **as_data(row.waste, price),
                **({} if row.update_wait_s is None else {"update_wait_s": round(row.update_wait_s, 3)}),
            }
            for row in comparison.rows
            if row.policy == name
        ]
        policies[name] = {**as_data(waste, price), "by_update_interval": rows}
    return {"policies": policies, "sampled": comparison.sampled, "interrupted": comparison.interrupted}
