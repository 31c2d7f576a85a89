"""The table of results that is committed."""

import datetime
from typing import Any

from gpu_checks.replay import RealReplay, summary
from gpu_checks.write_results import merged, section, shown

REPLAYS = [
    RealReplay("overrun", "reference:deferred", "reproduced", "", ("B1",), 304, 5),
    RealReplay("late", "reference:pinned", "not expressible", "fault 0 waits for a time"),
]


def data(device: str, vllm: str) -> dict[str, Any]:
    platform = {"device": device, "vllm": vllm, "model": "tiny"}
    return platform | {"checks": {"test_replay": {"passed": 3}}, "findings": ["one"]} | summary(REPLAYS)


def test_a_section_says_where_when_and_how_many() -> None:
    text = section(data("CPU", "0.32.0"), datetime.date(2026, 1, 2), ["--replicas", "4"])
    assert text.startswith("## CPU, vLLM 0.32.0\n\n2026-01-02, model: tiny, options: `--replicas 4`\n")
    assert "**Cases reproduced: 1 of 1.** Not expressible on a real engine: 1" in text
    assert "| test_replay | 3 | 0 | 0 |" in text
    assert "| overrun | reference:deferred | reproduced | B1 | 304 | 5 | 0 |  |" in text
    assert "- one" in text


def test_a_run_replaces_the_section_of_its_device_and_no_other() -> None:
    date = datetime.date(2026, 1, 2)
    text = merged("", section(data("CPU", "0.32.0"), date, []))
    text = merged(text, section(data("H200", "0.32.0"), date, []))
    again = merged(text, section(data("CPU", "0.32.0"), datetime.date(2026, 3, 4), []))
    assert again.count("## ") == 2
    assert again.count("2026-01-02") == 1
    assert again.count("2026-03-04") == 1
    assert merged(again, section(data("CPU", "0.32.0"), datetime.date(2026, 3, 4), [])) == again


def test_only_what_says_something_of_the_checks_is_shown() -> None:
    options = ["-q", "-W", "ignore", "--verl", "/somewhere/verl-0.9.1", "--replicas=4", "-k", "overrun", "--full-size"]
    assert shown(options) == ["--verl", "verl-0.9.1", "--replicas=4", "--full-size"]
