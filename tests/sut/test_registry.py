"""SUT names: the built-in ones, MODULE:FACTORY, and errors that say what would have worked."""

import sys

import pytest

from sim.case import Budget, Case, Session
from sim.invariants.table import INVARIANTS
from sim.sut.interface import SutError
from sim.sut.planted import PLANTED
from sim.sut.reference.client import PinnedClient
from sim.sut.registry import CLEAN, builtin_names, load_sut, sut_of
from sim.sut.verl.adapter import VERL
from sim.world import run_world

CASE = Case(Budget(4, 10, 64), (Session(4),))


def test_every_built_in_sut_can_be_loaded_and_run():
    assert builtin_names()[0] == CLEAN == "reference:pinned"
    for name in builtin_names():
        sut = load_sut(name)
        assert (sut.name, sut.key) == (name, name)
        assert run_world(CASE, sut).is_done


def test_each_invariant_has_a_planted_bug():
    assert {planted.invariant for planted in PLANTED.values()} == set(INVARIANTS)


@pytest.mark.parametrize("name", ["", "pinned", "reference", "reference:", "reference:no-such-bug", "nonsense", ":f"])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(SutError, match="unknown SUT") as caught:
        load_sut(name)
    message = str(caught.value)
    assert repr(name) in message
    for known in (*builtin_names(), *VERL.suts, "MODULE:FACTORY"):
        assert known in message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_at_all:make", "the module 'no_such_module_at_all' cannot be imported"),
        ("json:no_such_factory", "'no_such_factory' in 'json' does not exist"),
        ("json:__name__", "'__name__' in 'json' is not callable"),
        ("json:", "unknown SUT 'json:'"),
        ("rollcage_broken:make", "the module 'rollcage_broken' cannot be imported: NameError: .*'oops'"),
        ("rollcage_unreadable:make", "the module 'rollcage_unreadable' cannot be imported: SyntaxError"),
        ("..relative:make", "the module '..relative' cannot be imported"),
    ],
)
def test_a_factory_that_cannot_be_had_is_named(name, message, tmp_path, monkeypatch):
    (tmp_path / "rollcage_broken.py").write_text("oops\n")
    (tmp_path / "rollcage_unreadable.py").write_text("def make(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SutError, match=message):
        load_sut(name)


def test_a_factory_in_the_working_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "rollcage_example.py").write_text(
        "from sim.sut.reference.client import PinnedClient\n"
        "def make(context):\n"
        "    assert context.replica_names == ['replica-0']\n"
        "    assert list(context.servers) == context.replica_names\n"
        "    return PinnedClient(context.config, context.balancer)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    sut = load_sut("rollcage_example:make")
    assert (sut.name, sut.key) == ("rollcage_example:make", "rollcage_example:make")
    assert run_world(CASE, sut).is_done
    sys.modules.pop("rollcage_example")


def test_ray_actor_classes_are_unwrapped():
    """As `ray.remote(cls)` makes them: the plain class is in the metadata."""
    from sim.sut.reference.routing import LeastLoadedBalancer

    class Metadata:
        modified_class = LeastLoadedBalancer

    class ActorClass:
        __ray_metadata__ = Metadata

    sut = sut_of("ray", lambda context: PinnedClient(context.config, context.make_balancer(ActorClass)))
    assert run_world(CASE, sut).is_done


def test_a_file_or_a_name_that_is_nearly_right_is_answered_with_the_right_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rollcage_near.py").write_text("def build(context): ...\n")
    for name in ("rollcage_near", "rollcage_near.py"):
        with pytest.raises(SutError, match="did you mean rollcage_near:FACTORY"):
            load_sut(name)
    with pytest.raises(SutError, match=r"'rollcage_near\.py' is a file; its module is needed, rollcage_near"):
        load_sut("rollcage_near.py:build")
    with pytest.raises(SutError, match=r"'bild' in 'rollcage_near' does not exist \(did you mean build\?\)"):
        load_sut("rollcage_near:bild")
    (tmp_path / "rollcage_wrong.py").write_text("\n\nimport no_such_module\n")
    with pytest.raises(SutError, match=r"No module named 'no_such_module' \(.*rollcage_wrong\.py, line 3\)"):
        load_sut("rollcage_wrong:build")
