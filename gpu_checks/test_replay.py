"""Every kept case on a real engine, and the simulation held against what it did."""

import pytest

from gpu_checks.cases import DEFERRED, OVERRUNS, PINNED, KeptCase, overrun
from gpu_checks.engines import RealEngines
from gpu_checks.replay import RealReplay, replay
from sim.sut.interface import SutError
from sim.sut.registry import load_sut


def test_case_is_reproduced(
    kept: KeptCase, sut_name: str, engines: RealEngines, replays: list[RealReplay], pytestconfig: pytest.Config
) -> None:
    try:
        sut = load_sut(sut_name.partition("==")[0])
    except SutError as error:
        pytest.skip(str(error))
    if sut.key != sut_name:
        pytest.skip(f"kept for {sut_name}, and {sut.key} is what is here")
    full_size = pytestconfig.getoption("--full-size")
    result = replay(kept.name, kept.case, sut, engines, kept.expected.get(sut_name), full_size=full_size)
    replays.append(result)
    if result.verdict in ("not expressible", "left out"):
        pytest.skip(result.detail)
    assert result.verdict == "reproduced", result.detail


@pytest.mark.parametrize("prompt_tokens", OVERRUNS)
def test_overrun_comes_to_the_token(prompt_tokens: int, engines: RealEngines) -> None:
    deferred = replay("overrun", overrun(prompt_tokens), load_sut(DEFERRED), engines)
    pinned = replay("overrun", overrun(prompt_tokens), load_sut(PINNED), engines)
    assert (deferred.decoded_tokens, pinned.decoded_tokens) == (OVERRUNS[prompt_tokens], 256)
    assert "B1" in deferred.violated
    assert pinned.violated == ()
