"""A turn explained on the terminal: its attempts and grants with the arithmetic spelled out, against its budget."""

import itertools
from collections.abc import Sequence

from sim.budget import Allowance, allowance, charged_tokens
from sim.case import Case
from sim.dialects import PromptAllowance
from sim.ledger import Attempt, Ledger, TurnRecord
from sim.policies import Policies
from sim.report.spelled import spelled_budget, spelled_grant, spelled_limits, spelled_outcomes
from sim.report.table import table

MOST_ATTEMPTS_SHOWN = 16
_BAR_COLUMNS = 56
_ATTEMPT_HEADS = ("attempt", "replica", "prompt", "limit sent", "grant, and why", "decoded", "ended")

_Row = tuple[str, ...]


def turn_report(case: Case, ledger: Ledger, session: int, turn: TurnRecord, policies: Policies) -> str:
    """One turn: table, sum, and for an overrun the bar and the cause."""
    head = f"session {session} turn {turn.started.turn}: prompt {turn.started.prompt_tokens} tokens"
    lines = [f"{head}; {spelled_budget(case, session, policies)}"]
    if turn.attempts:
        lines.append(attempts_table(case, turn))
    allowed = allowance(case, ledger, session, turn, policies)
    lines.append("  " + _sum_line(turn, allowed))
    if allowed is not None and charged_tokens(turn, policies) > allowed.budget_tokens:
        lines += ["", budget_bar(turn, allowed.budget_tokens)]
        cause = why_it_overran(case, turn)
        if cause:
            lines += ["", cause]
    ended = turn.ended
    if ended is not None and ended.outcome != "ok":
        lines.append(f"  the client's call was cut: {ended.outcome}{f' ({ended.error})' if ended.error else ''}")
    return "\n".join(lines)


def attempts_table(case: Case, turn: TurnRecord) -> str:
    """The attempts of a turn, one a row."""
    rows = [
        (
            str(attempt.sent.attempt),
            str(attempt.sent.replica),
            _spelled_prompt(turn, attempt),
            spelled_limits(attempt),
            spelled_grant(case, attempt),
            str(attempt.decoded_tokens),
            spelled_outcomes(attempt),
        )
        for attempt in turn.attempts
    ]
    shown = _without_repeats(rows)
    laid_out = iter(table([_ATTEMPT_HEADS, *(each for each in shown if isinstance(each, tuple))], "  ").splitlines())
    return "\n".join([next(laid_out), *(f"  {each}" if isinstance(each, str) else next(laid_out) for each in shown)])


def _without_repeats(rows: Sequence[_Row]) -> list[_Row | str]:
    """Of attempts in a row that differ in their number and replica only, as a client makes that retries for ever, the
    first and how many there are; of very many others the first and the last ones."""
    shown: list[_Row | str] = []
    for _, group in itertools.groupby(rows, key=lambda row: row[2:]):
        alike = list(group)
        shown += alike if len(alike) <= 3 else [alike[0], f"… {len(alike) - 1} more attempts like this"]
    _cut_middle(shown, f"… {len(rows)} attempts in all")
    return shown


def _cut_middle(parts: list[_Row | str] | list[str], mark: str) -> None:
    """Leaves of very many the first and the last ones, with a mark between them."""
    half = MOST_ATTEMPTS_SHOWN // 2
    if len(parts) > MOST_ATTEMPTS_SHOWN:
        parts[half:-half] = [mark]


def _spelled_prompt(turn: TurnRecord, attempt: Attempt) -> str:
    first, now = turn.started.prompt_tokens, attempt.sent.prompt_tokens
    return str(now) if now == first else f"{first} + {now - first} = {now}"


def _sum_line(turn: TurnRecord, allowed: Allowance | None) -> str:
    """What was decoded, with what earlier turns used of the same budget, and how far that is beyond it."""
    used = 0 if allowed is None else allowed.used_tokens
    parts = [used] * bool(used) + [attempt.decoded_tokens for attempt in turn.attempts]
    total = sum(parts)
    summands = [str(part) for part in parts]
    _cut_middle(summands, "…")
    line = f"decoded {' + '.join(summands) or '0'}"
    if len(parts) > 1:
        line += f" = {total}"
    if allowed is not None:
        line += f"; budget {allowed.budget_tokens}"
        if total > allowed.budget_tokens:
            line += f"; overrun {total - allowed.budget_tokens}"
    return line


def budget_bar(turn: TurnRecord, budget_tokens: int) -> str:
    """The attempts drawn over the budget: decoded tokens as blocks, those beyond the budget shaded."""
    scale = _BAR_COLUMNS / max(turn.decoded_tokens, budget_tokens)
    edge = round(budget_tokens * scale)
    lines = []
    done = 0
    for attempt in turn.attempts:
        start, end = round(done * scale), round((done + attempt.decoded_tokens) * scale)
        inside = "█" * max(0, min(end, edge) - start)
        beyond = "▒" * max(0, end - max(start, edge))
        lines.append(f"  {f'attempt {attempt.sent.attempt}':<10} {' ' * start}{inside}{beyond}")
        done += attempt.decoded_tokens
    _cut_middle(lines, "  …")
    return "\n".join([f"  {'budget':<10} {'─' * edge}┤ {budget_tokens}", *lines]) + f" {done}"


def why_it_overran(case: Case, turn: TurnRecord) -> str:
    """The cause of an overrun, where the arithmetic shows it; empty where it does not."""
    first = turn.started.prompt_tokens
    for attempt in turn.attempts:
        generated = attempt.sent.prompt_tokens - first
        if attempt.grant is None or attempt.grant.rule != "default" or generated <= 0:
            continue
        sent = "sends no limit"
        if attempt.sent.limits:
            sent = f"sends {spelled_limits(attempt)} and the server ignores it"
        if not isinstance(case.server.rules.default, PromptAllowance):
            continue
        return (
            f"  Attempt {attempt.sent.attempt} is a resume: {generated} of the {attempt.sent.prompt_tokens} tokens of "
            f"its prompt were generated before the abort.\n"
            f"  The client {sent}, so the server's default holds. It charges those {generated} to the prompt\n"
            f"  allowance ({case.budget.prompt_length}, of which the prompt itself needs {first}) and not to the "
            f"response: what was used is granted anew."
        )
    return ""
