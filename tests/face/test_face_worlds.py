"""Worlds whose servers have a face: clients of handles run in them too; where there can be none, it is told."""

import dataclasses
import sys

import pytest

from sim.case import Budget, Case, Session
from sim.invariants.judging import judge
from sim.invariants.kinds import KINDS
from sim.search.classics import classic_cases
from sim.settings import FACE_DIALECTS, Face, ServerSettings
from sim.sut.interface import SutError
from sim.sut.registry import CLEAN, load_sut
from sim.world import run_world

pytest.importorskip("h11", reason="h11 is not installed (extra http)")

FACED = ServerSettings(dialect="plain-vllm", face="vllm")


@pytest.mark.parametrize("face", FACE_DIALECTS)
def test_a_client_of_handles_is_as_clean_as_without(face: Face) -> None:
    sut = load_sut(CLEAN)
    for case in classic_cases(KINDS, dialect=FACE_DIALECTS[face], face=face):
        assert case.server.face == face
        assert judge(case, run_world(case, sut)) == []


def test_the_face_stands_before_servers_that_are_asked_to_generate() -> None:
    sut = load_sut(CLEAN)
    requests = dataclasses.replace(sut.framework.requests, method="ask")
    other = dataclasses.replace(sut, framework=dataclasses.replace(sut.framework, requests=requests))
    with pytest.raises(SutError, match="those of framework 'reference' are asked by 'ask'"):
        run_world(Case(Budget(4, 4), (Session(2),), server=FACED), other)


def test_without_h11_there_is_no_face(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(SutError, match="a face needs the package h11, which is not installed"):
        run_world(Case(Budget(4, 4), (Session(2),), server=FACED), load_sut(CLEAN))
