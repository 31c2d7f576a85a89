"""Warnings are heard wherever they go, in each world, and nothing of `logging` and `warnings` is changed for good."""

import logging
import sys
import warnings

import pytest

from sim.case import Budget, Case, ClientView, Session
from sim.invariants.judging import judge
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import sut_of
from sim.world import run_world

ODD = Case(Budget(4, 10, client_view=ClientView()), (Session(2),))
TEXT = "response_length is missing"


def by_a_logger_that_does_not_propagate():
    logger = logging.getLogger("mine.alone")
    logger.propagate = False
    logger.warning(TEXT)


def by_a_logger_with_a_handler_of_its_own():
    logger = logging.getLogger("mine.handler")
    if not logger.handlers:
        logger.propagate = False
        logger.addHandler(logging.StreamHandler(sys.stderr))
    logger.warning(TEXT)


def by_the_root_logger():
    logging.warning(TEXT)


def by_the_module_warnings():
    warnings.warn(TEXT, stacklevel=1)


def by_a_runtime_warning():
    warnings.warn(TEXT, RuntimeWarning, stacklevel=2)


def by_an_error():
    logging.getLogger("mine").error("%s, and that is bad", TEXT)


WAYS = [
    by_a_logger_that_does_not_propagate,
    by_a_logger_with_a_handler_of_its_own,
    by_the_root_logger,
    by_the_module_warnings,
    by_a_runtime_warning,
    by_an_error,
]


def warning(say, set_up=lambda: None):
    class Warning_(PinnedClient):
        def report_fallback(self, configured):
            say()

    def build(context):
        set_up()
        return Warning_(context.config, context.balancer)

    return sut_of("warning", build)


@pytest.mark.parametrize("say", WAYS)
@pytest.mark.parametrize(
    "set_up",
    [lambda: None, lambda: logging.basicConfig(force=True), lambda: logging.basicConfig(force=True, stream=sys.stdout)],
    ids=["as it is", "basicConfig", "basicConfig to a stream"],
)
@pytest.mark.parametrize("filter_", ["default", "once", "ignore", "error"])
def test_a_warning_is_heard_in_every_world_and_printed_in_none(say, set_up, filter_, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter(filter_)
        for _ in range(3):
            assert judge(ODD, run_world(ODD, warning(say, set_up))) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("say", [lambda: None, lambda: logging.getLogger("mine").info(TEXT)], ids=["nothing", "info"])
def test_what_is_no_warning_is_none(say):
    sut = warning(say, lambda: logging.basicConfig(level=logging.DEBUG, force=True))
    assert [each.invariant for each in judge(ODD, run_world(ODD, sut))] == ["B8"]


@pytest.mark.parametrize("category", [DeprecationWarning, ResourceWarning])
def test_what_python_does_not_show_is_not_heard(category):
    sut = warning(lambda: warnings.warn(TEXT, category, stacklevel=1))
    assert [each.invariant for each in judge(ODD, run_world(ODD, sut))] == ["B8"]


def test_what_was_set_up_before_is_in_force_afterwards(capsys):
    root = logging.getLogger()
    mine = logging.StreamHandler(sys.stderr)
    before = root.handlers[:], root.level, root.manager.disable
    root.addHandler(mine)
    try:
        set_up = lambda: (logging.basicConfig(force=True, level=logging.ERROR), logging.disable(logging.CRITICAL))  # noqa: E731
        run_world(ODD, warning(by_the_root_logger, set_up))
        assert root.handlers == [*before[0], mine]
        assert (root.level, root.manager.disable) == before[1:]
        logging.getLogger("afterwards").warning("heard again")
    finally:
        root.removeHandler(mine)
    assert "heard again" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="again"):
        warnings.warn("again", stacklevel=1)
