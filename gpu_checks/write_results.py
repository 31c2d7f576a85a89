"""Runs the checks and writes what came of them into RESULTS.md, one section for each device and vLLM.

python -m gpu_checks.write_results [options of pytest gpu_checks]
"""

import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"

OWN_OPTIONS = ("--model", "--engine-arg", "--gpu-memory-utilization", "--replicas", "--case", "--full-size", "--verl")

TITLE = """# What the checks came to

Written by `python -m gpu_checks.write_results`; each section is replaced by the next run on the same device and vLLM.
"""


def section(data: dict[str, Any], date: datetime.date, options: list[str]) -> str:
    """One run, for people."""
    lines = [
        f"## {data['device']}, vLLM {data['vllm']}",
        "",
        f"{date.isoformat()}, model: {data['model']}" + (f", options: `{' '.join(options)}`" if options else ""),
        "",
        f"**Cases reproduced: {data['reproduced']} of {data['of']}.** Not expressible on a real engine: "
        f"{data['not_expressible']}; left out for their size: {data['left_out']}.",
        "",
        "| checks | passed | failed | skipped |",
        "|---|---|---|---|",
    ]
    for name, counts in sorted(data["checks"].items()):
        cells = [str(counts.get(outcome, 0)) for outcome in ("passed", "failed", "skipped")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "| case | SUT | result | violated | decoded | attempts | past trigger | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in data["cases"]:
        ran = case["verdict"] in ("reproduced", "missed")
        figures = (case["decoded_tokens"], case["attempts"], case["overshoot_tokens"]) if ran else ("", "", "")
        violated = " ".join(case["violated"]) or ("none" if ran else "")
        cells = [case["case"], case["sut"], case["verdict"], violated, *map(str, figures), case["detail"]]
        lines.append(f"| {' | '.join(cells)} |")
    if data["findings"]:
        lines += ["", "Findings:", "", *(f"- {finding}" for finding in data["findings"])]
    return "\n".join(lines) + "\n"


def merged(text: str, new: str) -> str:
    """The file with a section put in the place of the one of the same name."""
    _, *old = text.split("\n## ")
    heading = new.partition("\n")[0]
    kept = [f"## {each}".rstrip() + "\n" for each in old if f"## {each}".partition("\n")[0] != heading]
    return "\n".join([TITLE, *sorted([*kept, new])])


def shown(options: list[str]) -> list[str]:
    """The options that say what was checked, without the folders of this machine."""
    kept: list[str] = []
    own = False
    for option in options:
        name, equals, value = option.partition("=")
        if option.startswith("-"):
            own = name in OWN_OPTIONS
            if own:
                kept.append(name + equals + Path(value).name)
        elif own:
            kept.append(Path(option).name)
    return kept


def main(options: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        code = pytest.main([str(HERE), "--results", str(path), *options])
        if not path.exists():
            print("no results: the engine never came up", file=sys.stderr)
            return int(code) or 1
        data = json.loads(path.read_text())
    text = RESULTS.read_text() if RESULTS.exists() else ""
    RESULTS.write_text(merged(text, section(data, datetime.date.today(), shown(options))))
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
