"""Handles: attributes are remote methods, and what the callee does not have is told where it is asked for."""

import copy

import pytest

from sim.transport.handles import Handle


class Callee:
    limit = 3

    def ask(self, question): ...

    def _hidden(self): ...


@pytest.fixture
def sent():
    return []


@pytest.fixture
def handle(sent):
    return Handle("callee", Callee(), lambda name: lambda *args, **kwargs: sent.append((name, args, kwargs)))


def test_remote_sends_the_call(handle, sent):
    handle.ask.remote("who?", again=True)
    assert sent == [("ask", ("who?",), {"again": True})]


def test_a_method_is_made_once(handle):
    assert handle.ask is handle.ask


@pytest.mark.parametrize("name", ["no_such_method", "limit"])
def test_what_is_no_method_of_the_callee_is_an_attribute_error_at_once(handle, name):
    with pytest.raises(AttributeError) as caught:
        getattr(handle, name)
    assert str(caught.value) == f"callee.{name}: the callee has no such method; it has ask"
    assert not hasattr(handle, name)
    assert hasattr(handle, "ask")


def test_dunder_attributes_are_no_remote_methods(handle):
    with pytest.raises(AttributeError, match=r"^__wrapped__$"):
        handle.__wrapped__  # noqa: B018


def test_a_copy_of_a_handle_is_itself(handle):
    assert copy.deepcopy({"server": handle})["server"] is handle


# Of a world's balancer


def test_a_method_that_the_balancer_does_not_have_is_named(wired):
    *_, handle = wired()
    with pytest.raises(AttributeError, match=r"^balancer\.no_such_method: the balancer has no such method; it has "):
        handle.no_such_method.remote()
    assert hasattr(handle, "acquire_server")
