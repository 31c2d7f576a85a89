"""Prints verdicts: text for people, one JSON object for machines."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from sim.preflight.check import Assessed, Verdict
from sim.preflight.launch import Fed
from sim.preflight.memory import RaiseCost
from sim.preflight.spelling import show
from sim.startup.rules import RULES, dotted

LEVELS = ("refused", "changed", "risky")
"""The levels that make an offender, the worst first. A note is none."""
_FINAL = ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill", "enable_prefix_caching")


class Offender(msgspec.Struct, frozen=True, kw_only=True):
    """One line of one file that a rule bites on, over all launches it takes part in."""

    judged: Assessed
    targets: tuple[str, ...]
    engines: tuple[str, ...]


def offenders(verdicts: Sequence[Verdict]) -> list[Offender]:
    """Each offending line once for each rule, the worst level first, then by file and line."""
    found: dict[tuple[Any, ...], Offender] = {}
    for verdict in verdicts:
        for judged in verdict.judged:
            if judged.finding.level not in LEVELS:
                continue
            key = (judged.places[0], judged.finding.rule, judged.finding.setting)
            engines = found[key].engines if key in found else ()
            engines = tuple(dict.fromkeys((*engines, f"{verdict.launch.engine} at {verdict.launch.place}")))
            found[key] = Offender(judged=judged, targets=verdict.targets, engines=engines)

    def rank(offender: Offender) -> tuple[Any, ...]:
        place = offender.judged.places[0]
        return (LEVELS.index(offender.judged.finding.level), place.file or "", place.line or 0)

    return sorted(found.values(), key=rank)


def as_text(verdicts: Sequence[Verdict], *, unread: Sequence[Fed] = (), errors: Sequence[str] = ()) -> str:
    """The report for people; the last line is the verdict."""
    lines: list[str] = []
    found = offenders(verdicts)
    for offender in found:
        lines += [*_offender_lines(offender), ""]
    for fed in unread:
        lines += [f"note     {fed.places[0]}  {fed.name}={fed.text}", f"         handed to {fed.script}, not here", ""]
    if len(verdicts) == 1 and (of_launch := _launch_lines(verdicts[0])):
        lines += [*of_launch, ""]
    lines += [f"not read {error}" for error in errors]
    lines.append(_summary(verdicts, found, errors))
    return "\n".join(lines)


def _offender_lines(offender: Offender) -> list[str]:
    judged = offender.judged
    found = judged.finding
    lines = [f"{found.level:<8} {judged.places[0]}  {judged.spelled}"]
    if found.condition is not None:
        lines.append(f"  if      {found.condition}")
    lines += [
        f"  rule    {found.rule} ({found.stage}; {_dates(found.rule)}{', '.join(offender.targets)})",
        f"  why     {found.why}",
    ]
    if found.given is not UNSET or found.becomes is not UNSET:
        arrow = "" if found.becomes is UNSET else f" → {show(found.becomes)}"
        lines.append(f"  value   {found.setting}: {show(found.given)}{arrow}")
    lines += [f"  via     {place}" for place in judged.places[1:]]
    if judged.cost is not None:
        lines.append(f"  cost    {cost_in_words(judged.cost)}")
    lines.append(f"  remedy  {found.remedy}")
    return lines


def _dates(rule_id: str) -> str:
    """The releases a rule of vLLM belongs to, where it has not always been there."""
    rule = RULES.get(rule_id)
    if rule is None:
        return ""
    since = f"from vllm {dotted(rule.since)} on; " if rule.since > (0,) else ""
    return since + (f"before vllm {dotted(rule.until)}; " if rule.until else "")


def cost_in_words(cost: RaiseCost) -> str:
    """The price of a raise, per rank."""
    words = [f"raising by {cost.extra_tokens} tokens"]
    if cost.activation_bytes is None:
        words.append("activation memory not estimated: the model's sizes are not known")
    else:
        words.append(f"about {_gib(cost.activation_bytes)} more activation memory a rank")
    if cost.kv_tokens_lost is not None:
        words.append(f"room for {cost.kv_tokens_lost} tokens of KV cache gone with it")
    if cost.kv_bytes_full_context is not None:
        words.append(f"one request of full length needs {_gib(cost.kv_bytes_full_context)} of KV cache")
    return "; ".join(words)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"


def _launch_lines(verdict: Verdict) -> list[str]:
    notes = [j for j in verdict.judged if j.finding.level == "note"]
    lines = [f"note     {j.places[0]}  {j.spelled}: {j.finding.why}" for j in notes]
    if verdict.refused:
        return lines
    values = ", ".join(f"{name} {show(verdict.final[name])}" for name in _FINAL if name in verdict.final)
    return [*lines, f"final    {values}"]


def _summary(verdicts: Sequence[Verdict], found: Sequence[Offender], errors: Sequence[str]) -> str:
    refused = sum(verdict.refused for verdict in verdicts)
    launches = f"{len(verdicts)} launch{'es' if len(verdicts) != 1 else ''}"
    counts = ", ".join(f"{n} {level}" for level in LEVELS if (n := sum(o.judged.finding.level == level for o in found)))
    tail = f"; {len(errors)} not read" if errors else ""
    verdict = f"would be refused: {refused} of {launches}" if refused else f"would start: {launches}"
    return f"{verdict} ({counts or 'nothing to say'}){tail}"


def as_json(verdicts: Sequence[Verdict], *, unread: Sequence[Fed] = (), errors: Sequence[str] = ()) -> dict[str, Any]:
    """The same as data. `verdict` is `starts` or `refused`."""
    return {
        "verdict": "refused" if any(verdict.refused for verdict in verdicts) else "starts",
        "launches": [_launch(verdict) for verdict in verdicts],
        "offenders": [
            {"launches": list(o.engines), "targets": list(o.targets), **_finding(o.judged)} for o in offenders(verdicts)
        ],
        "unread": [{"name": f.name, "value": f.text, "script": f.script, "place": str(f.places[0])} for f in unread],
        "errors": list(errors),
    }


def _launch(verdict: Verdict) -> dict[str, Any]:
    return {
        "engine": verdict.launch.engine,
        "dialect": verdict.launch.dialect,
        "place": str(verdict.launch.place),
        "targets": list(verdict.targets),
        "verdict": "refused" if verdict.refused else "starts",
        "final": {name: "unset" if value is UNSET else value for name, value in verdict.final.items()},
        "findings": [_finding(judged) for judged in verdict.judged],
    }


def _finding(judged: Assessed) -> dict[str, Any]:
    found = judged.finding
    # Unset is told by the key's absence: null is a value of its own here.
    values = {"given": found.given, "becomes": found.becomes}
    return {
        "level": found.level,
        "rule": found.rule,
        "stage": found.stage,
        "setting": found.setting,
        "spelled": judged.spelled,
        "places": msgspec.to_builtins(judged.places),
        "why": found.why,
        "remedy": found.remedy,
        "condition": found.condition,
        "cost": msgspec.to_builtins(judged.cost),
        **{name: value for name, value in values.items() if value is not UNSET},
    }
