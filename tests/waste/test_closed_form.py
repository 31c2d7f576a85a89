"""The closed form of the overrun equals the simulated world, everywhere on a grid."""

import itertools

import numpy as np
import pytest

from sim.case import Budget, Case, ServerSettings, Session, Turn
from sim.faults import AfterTokens, WeightUpdate
from sim.sut.registry import load_sut
from sim.waste.closed_form import NEVER, under_regular_aborts
from sim.waste.ledger import waste_of
from sim.world import run_world

GRID = list(
    itertools.product(
        (1, 4, 9),  # prompt_length
        (1, 6, 13),  # response_length
        (12, 19, 40),  # max_model_len
        (1, 3, 4, 8, 12),  # prompt
        (1, 3, 5, 20),  # abort every … tokens
        (7, NEVER),  # the model stops after
    )
)
BOTH = ("deferred", "pinned")
DIALECTS = ("vllm", "sglang", "trtllm")


def simulated(dialect, client, point):
    prompt_length, response_length, context, prompt, every, stop = point
    case = Case(
        Budget(prompt_length, response_length, context),
        (Session(prompt, (Turn(None if stop == NEVER else stop),)),),
        tuple(WeightUpdate(AfterTokens(0, tokens), 0.0) for tokens in range(every, context, every)),
        server=ServerSettings(dialect),
    )
    waste = waste_of(case, run_world(case, load_sut(f"reference:{client}")))
    return waste.decoded.tokens, waste.kept_tokens, waste.fates["overrun"].tokens


def closed(dialect, client, points):
    columns = np.array(points, dtype=np.int64).T
    names = ("prompt_length", "response_length", "context_tokens", "prompt_tokens", "abort_every_tokens", "stops_after")
    return under_regular_aborts(dialect, client, **dict(zip(names, columns, strict=True)))


@pytest.mark.parametrize("client", BOTH)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_closed_form_is_the_simulation(dialect, client):
    # Each takes every other point, and of two neighbours in the table one the odd and one the even ones.
    first = (DIALECTS.index(dialect) + BOTH.index(client)) % 2
    points = [point for point in GRID if point[3] <= point[2]][first::2]
    response = closed(dialect, client, points)
    formula = [tuple(map(int, each)) for each in zip(*response, strict=True)]
    wrong = []
    for point, expected in zip(points, formula, strict=True):
        found = simulated(dialect, client, point)
        if found != expected:
            wrong.append((point, found, expected))
    assert not wrong, f"{len(wrong)} of {len(points)}, the first (point, simulated, closed): {wrong[:5]}"
    wastes = any(overrun > 0 for _, _, overrun in formula)
    assert wastes is (client == "deferred" or dialect == "trtllm"), "the grid has both kinds"


SEED = {"prompt_length": 2048, "response_length": 8192, "context_tokens": 32768, "abort_every_tokens": 2000}


@pytest.mark.parametrize(("prompt", "decoded", "overrun"), [(136, 10104, 1912), (92, 10148, 1956), (2048, 8192, 0)])
def test_the_numbers_of_the_report(prompt, decoded, overrun):
    assert tuple(map(int, under_regular_aborts("vllm", "deferred", prompt_tokens=prompt, **SEED))) == (
        decoded,
        8192,
        overrun,
    )
    assert tuple(map(int, under_regular_aborts("vllm", "pinned", prompt_tokens=prompt, **SEED))) == (8192, 8192, 0)


def test_a_server_that_ignores_the_limit_wastes_with_either_client():
    assert int(under_regular_aborts("trtllm", "deferred", prompt_tokens=136, **SEED).overrun) == 1912
    assert int(under_regular_aborts("trtllm", "pinned", prompt_tokens=136, **SEED).overrun) == 10000 - 8192
