"""The engine beside the installed vLLM scheduler, step by step, on scenarios that nobody has seen before.

ROLLCAGE_LIVE_SEED (default: a fresh one, which is printed) and ROLLCAGE_LIVE_COUNT choose the scenarios.
"""

import importlib.util
import os
import random

import pytest

from tests.conformance.record import Recorder
from tests.conformance.replay import first_difference
from tests.conformance.scenarios import random_scenario

if importlib.util.find_spec("vllm") is None:
    pytest.skip(
        "the engine is compared with the real one where vLLM is installed (pip install '.[vllm]')",
        allow_module_level=True,
    )


def test_every_step_equals_that_of_the_installed_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("ROLLCAGE_LIVE_SEED", random.SystemRandom().randrange(10**9)))
    count = int(os.environ.get("ROLLCAGE_LIVE_COUNT", "200"))
    recorder = Recorder()
    with capsys.disabled():
        print(f"\nvLLM {recorder.version}, {count} scenarios, ROLLCAGE_LIVE_SEED={seed}")

    schedules = (recorder.record(random_scenario(seed, number)) for number in range(count))
    differences = [difference for schedule in schedules if (difference := first_difference(schedule)) is not None]

    assert not differences
