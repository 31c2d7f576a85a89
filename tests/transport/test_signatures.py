"""Signatures: a call that does not fit is told at once, in the caller's terms."""

import pytest

from sim.transport.signatures import signature_of


class Server:
    def generate(self, request, prompt_ids, *, limit: int = 3, **more): ...

    def stop(self): ...


def test_what_fits_passes():
    signature = signature_of("server.generate", Server().generate, num_given=1)
    signature.check(([1],), {})
    signature.check((), {"prompt_ids": [1], "limit": 4, "colour": "red"})
    signature_of("server.stop", Server().stop).check((), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "server.generate.remote(): missing a required argument: 'prompt_ids'; it takes (prompt_ids, limit=3"),
        (([1], 2), {}, "server.generate.remote([1], 2): too many positional arguments; it takes (prompt_ids, "),
        (
            ([1],),
            {"prompt_ids": [2]},
            "server.generate.remote([1], prompt_ids=[2]): multiple values for argument 'prompt_ids'; it takes",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_the_call_and_what_fits(args, kwargs, message):
    """Without what the caller does not give: the request's number."""
    signature = signature_of("server.generate", Server().generate, num_given=1)
    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            signature.check(args, kwargs)
        assert str(caught.value).startswith(message)


def test_long_arguments_are_cut_and_addresses_left_out():
    with pytest.raises(TypeError, match=r"^stop\.remote\(\[0, 1, .{53}…, <object object at …>\): too many"):
        signature_of("stop", Server().stop).check((list(range(100)), object()), {})


def test_of_a_class_there_is_one_for_all_worlds():
    assert signature_of("server.stop", Server().stop) is signature_of("server.stop", Server().stop)
    assert signature_of("server.stop", Server().stop) is not signature_of("balancer.stop", Server().stop)


def test_a_callable_that_does_not_show_what_it_takes_takes_anything():
    class Opaque:
        __signature__ = "none of your business"

        def __call__(self, *args): ...

    signature_of("server.next", Opaque()).check((1, 2), {"three": 3})


def test_nothing_is_sent_by_a_call_that_does_not_fit(wired):
    _, trace, port, handle = wired()
    for arguments, wrong in ((("a", "b"), "too many"), ((), "missing"), ((), "missing")):
        with pytest.raises(TypeError, match=rf"^balancer\.acquire_server\.remote\(.*\): {wrong}"):
            handle.acquire_server.remote(*arguments)
    assert (trace.events, port.messages_in_flight) == ([], 0)
