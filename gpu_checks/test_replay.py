"""Every kept case on a real engine, and the simulation held against what it did."""

import pytest

from gpu_checks.cases import DEFERRED, FULL_SIZE, FULL_SIZE_TOKENS, OVERRUNS, PINNED, KeptCase, overrun
from gpu_checks.engines import RealEngines
from gpu_checks.replay import Replay, replay
from sim.sut.registry import SutError, load_sut


def test_case_is_reproduced(kept: KeptCase, sut_name: str, engines: RealEngines, replays: list[Replay]) -> None:
    name = sut_name.partition("==")[0]
    try:
        sut = load_sut(name)
    except SutError as error:
        pytest.skip(str(error))
    if sut.key != sut_name:
        pytest.skip(f"kept for {sut_name}, and {sut.key} is what is here")
    result = replay(kept.name, kept.case, sut, engines, kept.expected.get(sut_name))
    replays.append(result)
    if result.verdict == "not expressible":
        pytest.skip(result.detail)
    assert result.verdict == "reproduced", result.detail


@pytest.mark.parametrize("prompt_tokens", OVERRUNS)
def test_overrun_comes_to_the_token(prompt_tokens: int, engines: RealEngines) -> None:
    deferred = replay("overrun", overrun(prompt_tokens), load_sut(DEFERRED), engines)
    pinned = replay("overrun", overrun(prompt_tokens), load_sut(PINNED), engines)
    assert (deferred.decoded_tokens, pinned.decoded_tokens) == (OVERRUNS[prompt_tokens], 256)
    assert (deferred.violated, pinned.violated) == (("B1",), ())


def test_full_size_overrun(pytestconfig: pytest.Config, engines: RealEngines, replays: list[Replay]) -> None:
    if not pytestconfig.getoption("--full-size"):
        pytest.skip("takes minutes on a CPU: --full-size")
    deferred = replay("full-size overrun", FULL_SIZE, load_sut(DEFERRED), engines, ["B1"])
    pinned = replay("full-size overrun", FULL_SIZE, load_sut(PINNED), engines, [])
    replays.extend((deferred, pinned))
    assert (deferred.verdict, deferred.decoded_tokens) == ("reproduced", FULL_SIZE_TOKENS), deferred.detail
    assert (pinned.verdict, pinned.decoded_tokens) == ("reproduced", 8192), pinned.detail
