"""A report tells sessions in their order, and shows the messages that decided a violation."""

import re

from sim.case import Budget, Case, Session
from sim.faults import AbortAll, AfterTokens, AtTime, RemoveReplica
from sim.invariants.violation import Violation
from sim.report.violated import turns_to_tell
from sim.report.world import world_report
from sim.sut.reference.client import PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.registry import load_sut, sut_of
from sim.verdicts import judged

BUDGET = Budget(prompt_length=8, response_length=10, max_model_len=64)


def order(text):
    return [int(number) for number in re.findall(r"session (\d+) turn 0: prompt", text)]


def test_sessions_stand_in_their_order_though_a_later_one_breaks_something():
    case = Case(BUDGET, tuple(Session(2) for _ in range(5)), (AbortAll(AfterTokens(3, 4), 0),), replicas=5)
    run = judged(case, load_sut("reference:deferred"))
    assert {violation.session for violation in run.violations} not in ({0}, set())
    assert order(world_report(run)) == [0, 1, 2, 3, 4]


def test_of_too_many_those_in_violation_are_told_first():
    case = Case(BUDGET, tuple(Session(2) for _ in range(20)), replicas=2)
    run = judged(case, load_sut("reference:pinned"))
    told = turns_to_tell(run.trace.ledger, [Violation("B1", "x", 17), Violation("B1", "x", 11)], 4)
    assert [session for session, _ in told] == [11, 17, 0, 1]


class Ghost(LeastLoadedBalancer):
    """Sends everybody to a replica that was removed long ago."""

    def __init__(self, servers):
        super().__init__(servers)
        self.first = next(iter(servers))
        self.handle_of_first = servers[self.first]

    def acquire_server(self, request_id):
        if request_id != "session-29":
            return super().acquire_server(request_id)
        return self.first, self.handle_of_first

    def release_server(self, server_id, request_id=None):
        if request_id != "session-29":
            super().release_server(server_id, request_id)

    def get_status(self):
        raise NotImplementedError


def test_the_removal_that_decided_it_is_shown_however_long_ago_it_was():
    sessions = tuple(Session(2, arrival_s=1.0 + index) for index in range(30))
    case = Case(BUDGET, sessions, (RemoveReplica(AtTime(0.0), 0),), replicas=3)
    run = judged(case, sut_of("ghost", lambda context: PinnedClient(context.config, context.make_balancer(Ghost))))
    assert "R5" in {violation.invariant for violation in run.violations}
    text = world_report(run)
    assert "remove_servers" in text.partition("messages to the balancer")[2]
