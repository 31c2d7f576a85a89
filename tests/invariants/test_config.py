"""C1–C3 on hand-made answers; `properties/test_config.py` holds preflight and verl against them."""

import pytest
from msgspec import UNSET

from sim.invariants.config import C1, C2, C3, Netted, Started


def started(starts=True, **fields):
    return Started(starts=starts, **fields)


def test_c1_accepted_means_started():
    refused = started(False, error="no room", explicit={"max_num_seqs": 8})
    assert C1.check(True, started()) == C1.check(False, refused) == []
    assert C1.check(True, refused) == ["preflight accepts {'max_num_seqs': 8}, which is refused: no room"]
    assert C1.check(False, started(explicit={"max_num_seqs": 8})) == [
        "preflight refuses {'max_num_seqs': 8}, which starts"
    ]


CHANGED = ["max_num_seqs was set to 8 and is 4, with no word of it"]


@pytest.mark.parametrize(
    ("explicit", "final", "announced", "messages"),
    [
        (8, {"max_num_seqs": 4}, (), CHANGED),
        (8, {"max_num_seqs": 8}, (), []),
        (8, {"max_num_seqs": 4}, ("max_num_seqs",), []),
        (8, {"max_num_seqs": 4}, ("block_size",), CHANGED),
        (8, {"max_num_seqs": UNSET}, (), []),  # not an answer of this engine's
        (8, {}, (), []),
        (None, {"max_num_seqs": 4}, (), []),  # null leaves the choice to the engine
        (False, {"max_num_seqs": True}, (), ["max_num_seqs was set to False and is True, with no word of it"]),
    ],
)
def test_c2_a_value_survives_or_its_change_is_announced(explicit, final, announced, messages):
    engine = started(explicit={"max_num_seqs": explicit}, final=final, announced=frozenset(announced))
    assert C2.check(engine) == messages


RAISED = "8192 is below 32768"


@pytest.mark.parametrize(
    ("before", "after", "settings", "messages"),
    [
        (8192, 32768, {"warnings": [RAISED]}, []),
        (8192, 32768, {"warnings": ["something else", RAISED]}, []),
        (8192, 32768, {}, ["no warning names both 8192 and 32768"]),
        (8192, 32768, {"warnings": ["8192 is too small"]}, ["no warning names both 8192 and 32768"]),
        (8192, 32768, {"warnings": ["raised to 32768"]}, ["no warning names both 8192 and 32768"]),
        (
            8192,
            8192,
            {"warnings": [RAISED]},
            ["max_num_batched_tokens became 8192, not 32768: chunked prefill is off and it is too small"],
        ),
        (
            8192,
            4096,
            {"warnings": [RAISED]},
            [
                "max_num_batched_tokens was lowered from 8192 to 4096",
                "max_num_batched_tokens became 4096, not 32768: chunked prefill is off and it is too small",
            ],
        ),
        (32768, 32768, {}, []),
        (32768, 32768, {"warnings": ["beware"]}, ["a warning without a change: beware"]),
        (8192, 8192, {"chunking": True}, []),
        (8192, 8192, {"backend": "sglang"}, []),
        (
            8192,
            32768,
            {"backend": "sglang"},
            ["max_num_batched_tokens became 32768, not 8192: nothing called for it on sglang"],
        ),
        (
            8192,
            32768,
            {"chunking": True},
            ["max_num_batched_tokens became 32768, not 8192: nothing called for it on vllm"],
        ),
    ],
)
def test_c3_the_net_raises_what_is_needed_and_says_so(before, after, settings, messages):
    fields = {"backend": "vllm", "chunking": False, "context_tokens": 32768, "warnings": []} | settings
    assert C3.check(Netted(before_tokens=before, after_tokens=after, **fields)) == messages
