"""Copies of messages: equal, and apart from what they are copies of."""

from sim.sut.verl.servers import TokenOutput
from sim.tokens import TokenIds
from sim.transport.copies import copied, copied_arguments


def test_copied_is_equal_and_shares_nothing_that_can_change():
    message = {
        "ids": [1, 2],
        "nested": {"list": [[1], {"a": (1, [2])}]},
        "tuple": ({"b": 1},),
        "plain": (1, "x", 2.0, True, None, b"y"),
        "empty": [],
        "set": {1, 2},
    }
    copy = copied(message)

    assert copy == message
    for path in (
        lambda m: m,
        lambda m: m["ids"],
        lambda m: m["nested"]["list"],
        lambda m: m["nested"]["list"][0],
        lambda m: m["nested"]["list"][1]["a"][1],
        lambda m: m["tuple"][0],
        lambda m: m["empty"],
        lambda m: m["set"],
    ):
        assert path(copy) is not path(message)


def test_a_copied_answer_is_its_own():
    output = TokenOutput([1, 2], [-1.0, -2.0], "stop", extra_fields={"global_steps": 3})
    copy = copied(output)
    copy.token_ids.append(3)
    copy.log_probs.append(-3.0)
    copy.extra_fields["global_steps"] = 4

    assert output == TokenOutput([1, 2], [-1.0, -2.0], "stop", extra_fields={"global_steps": 3})


def test_what_cannot_change_is_its_own_copy():
    for value in (1, "x", 2.0, True, None, b"y", TokenIds.counting_from(5, 3)):
        assert copied(value) is value


def test_keywords_are_replaced_in_the_dict_that_the_call_has():
    ids, params = [1], {"max_tokens": 3}
    keywords = {"prompt_ids": ids, "sampling_params": params, "request_id": "x"}
    (positional,) = copied_arguments((ids,), keywords)

    assert positional == ids
    assert positional is not ids
    assert keywords == {"prompt_ids": ids, "sampling_params": params, "request_id": "x"}
    assert keywords["prompt_ids"] is not ids
    assert keywords["sampling_params"] is not params
