"""What vLLM's own `--config FILE` makes of its keys before the engine arguments exist: false and null are not plain.

The file becomes a command line: null turns into the word `None`, which no flag takes, and false into `--no-…`, which
is only looked for with dashes and, before 0.28, not at all. Held against vLLM's parser in
`tests/conformance/test_startup_live.py`.
"""

from collections.abc import Mapping
from typing import Any

from sim.preflight.launch import WrittenSetting
from sim.preflight.spelling import dashed
from sim.startup.flags import FLAGS
from sim.startup.rules import RULES, Finding, Version, dotted

FALSE_SINCE: Version = (0, 28)


def forward(settings: Mapping[str, WrittenSetting], version: Version) -> tuple[dict[str, Any], list[Finding]]:
    """The engine arguments that come of a config file's settings, by the way each key is spelled."""
    passed: dict[str, Any] = {}
    found = []
    for name, setting in settings.items():
        if setting.value is None:
            why = f"vLLM reads null in a config file as the word None, which --{dashed(name)} does not take"
            found.append(RULES["null-in-config-file"].found(name, why, given=None))
        elif setting.value is False and FLAGS[name].kind is bool and not _reaches(setting.spelled, version):
            why = f"vLLM {dotted(version)} drops {setting.spelled}: false from a config file"
            remedy = f"write no-{dashed(name)}: true"
            rule = RULES["false-lost-in-config-file"]
            found.append(rule.found(name, why, given=False, becomes=True, remedy=remedy))
        else:
            passed[name] = setting.value
    return passed, found


def _reaches(spelled: str, version: Version) -> bool:
    return spelled.startswith("no") or (version >= FALSE_SINCE and "_" not in spelled)
