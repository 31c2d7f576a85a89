"""Waste as plain data and as CSV."""

import csv
import io
from collections.abc import Iterator
from typing import Any

from sim.waste.cost import S_PER_HOUR, Price, Saving
from sim.waste.ledger import LOSSES, Waste
from sim.waste.what_if import Comparison, Row


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
            data["gpu_hours_wasted"] = round(wasted_s * price.gpus_per_replica / S_PER_HOUR, 6)
    return data


def comparison_csv(comparison: Comparison, price: Price | None) -> str:
    """One line a row, the losses in columns, and what it saves against the first policy at the same interval."""
    text = io.StringIO()
    columns = ["policy", "update_every_tokens", "how", "responses", "decoded", "delivered", "kept", *LOSSES]
    columns += ["wasted_share", "prefill", "recomputed_prefill", "preempted_prefill", "cached_prefill", "stale_kv"]
    if price is not None:
        columns += ["engine_s", "engine_s_wasted"]
    savings = ["decoded", "kept", "prefilled_again", *(["engine_s"] if price is not None else [])]
    columns += [f"saved_{saving}" for saving in savings]
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row, data in _rows_data(comparison, price):
        data |= {"policy": row.variant} | {
            f"saved_{saving}": tokens for saving, tokens in data.get("saved", {}).items()
        }
        if price is not None:
            data |= {"engine_s_wasted": data["engine_s"]["wasted"], "engine_s": data["engine_s"]["decoded"]}
        writer.writerow(data)
    return text.getvalue()


def comparison_data(comparison: Comparison, price: Price | None) -> dict[str, Any]:
    """Under `policies` for each name its rows, `by_update_interval`. No sums: the intervals are alternatives."""
    policies: dict[str, Any] = {}
    for row, data in _rows_data(comparison, price):
        policies.setdefault(row.variant, {"by_update_interval": []})["by_update_interval"].append(data)
    return {"policies": policies, "sampled": comparison.sampled, "interrupted": comparison.interrupted}


def _rows_data(comparison: Comparison, price: Price | None) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Each row as plain data; under `saved` what it saves against the first policy at the same interval."""
    first = {row.update_tokens: row for row in reversed(comparison.rows)}
    for row in comparison.rows:
        data = {"update_every_tokens": row.update_tokens, "how": row.how, **as_data(row.waste, price)}
        if row.update_wait_s is not None:
            data["update_wait_s"] = round(row.update_wait_s, 3)
        base = first[row.update_tokens]
        if base is not row:
            saving = Saving.of(base.waste, row.waste, price)
            data["saved"] = {
                "decoded": saving.decoded_tokens,
                "kept": saving.kept_tokens,
                "prefilled_again": saving.prefilled_again_tokens,
            }
            if saving.engine_s is not None:
                data["saved"]["engine_s"] = round(saving.engine_s, 3)
        yield row, data
