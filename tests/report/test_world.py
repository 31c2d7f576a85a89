"""The report of a world: from the overrun's, a reader who has never seen the code names the cause."""

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from sim import corpus
from sim.case import Budget, Case, ClientView, Limit, Schedule, Session
from sim.faults import AbortAll, AfterSent, AfterTokens, AtTime, WeightUpdate
from sim.invariants.judging import Findings, Firings
from sim.invariants.violation import Violation
from sim.report.spelled import schedule_line, spelled_fault, spelled_grant
from sim.report.world import as_json, find_report, world_report
from sim.search.campaign import Find
from sim.sut.reference.client import PinnedClient
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.registry import CLEAN, load_sut, sut_of
from sim.verdicts import Judged, judged
from sim.world import run_world

CORPUS = Path(__file__).parents[2] / "properties" / "corpus"


def report(case, name="reference:deferred"):
    return world_report(judged(case, load_sut(name)))


def test_the_overrun_of_verl_is_spelled_out():
    """Each attempt's prompt, grant and why, what it decoded; their sum, the budget, the overrun, and the cause."""
    text = report(corpus.read(CORPUS / "overrun-136.json").case)
    for part in (
        "8192 = default min(8192, 2048 + 8192 − 136 = 10104)  2000     abort",
        "136 + 2000 = 2136    none        8104 = default min(8192, 2048 + 8192 − 2136 = 8104)",
        "decoded 2000 + 2000 + 2000 + 2000 + 2000 + 104 = 10104; budget 8192; overrun 1912",
        "Attempt 1 is a resume: 2000 of the 2136 tokens of its prompt were generated before the abort.",
        "allowance (2048, of which the prompt itself needs 136) and not to the response: what was used is granted",
        "not a race",
        "B1 violated: The sum generated over a response's attempts is at most its budget.",
    ):
        assert part in text


def test_the_fix_in_the_same_words():
    text = report(corpus.read(CORPUS / "overrun-136.json").case, CLEAN)
    assert "max_tokens 6192  6192 = max_tokens 6192" in text
    assert "= 8192; budget 8192" in text
    assert text.endswith("no invariant is violated")


def turn_of(case, name=CLEAN):
    trace = run_world(case, load_sut(name))
    return trace.ledger.turns()[0][1]


@pytest.mark.parametrize(
    ("case", "spelled"),
    [
        (Case(Budget(4, 10, 64), (Session(4),)), "10 = max_tokens 10"),
        (Case(Budget(4, 10, 12), (Session(4),)), "8 = max_tokens 10, clamped to the room of 8"),
        (Case(Budget(4, 10, 64), (Session(4, limit=Limit("max_new_tokens", 3)),)), "3 = max_new_tokens 3"),
    ],
)
def test_a_grant_says_why(case, spelled):
    assert spelled_grant(case, turn_of(case).attempts[0]) == spelled


def test_a_grant_of_one_where_nothing_was_left_is_raised():
    case = Case(Budget(4, 10, 64), (Session(4, limit=Limit("max_tokens", 0)),))
    attempt = turn_of(case, "reference:asks-for-nothing").attempts[0]
    assert spelled_grant(case, attempt) == "1 = max_tokens 0, raised to 1"


@pytest.mark.parametrize(
    ("fault", "spelled"),
    [
        (WeightUpdate(AfterTokens(0, 5)), "weight_update (pause_s 1) once session 0 has decoded 5 tokens"),
        (WeightUpdate(AtTime(1.5), leaving=(0, 1)), "weight_update (pause_s 1, leaving 0, 1) at 1.5 s"),
        (AbortAll(AfterSent(1, 2), 0), "abort_all (replica 0, pause_s 0) once session 1 has sent 2 requests"),
    ],
)
def test_faults_in_words(fault, spelled):
    assert spelled_fault(fault) == spelled


@pytest.mark.parametrize(
    ("schedule", "line"),
    [
        (Schedule(), "schedule: FIFO, no deviations: not a race"),
        (Schedule("random", 7), "schedule: random order, seed 7"),
        (
            Schedule("explicit", deviations=((3, 1), (9, 2))),
            "schedule: FIFO but for 2 deviations (step 3 takes callback 1, step 9 takes callback 2): a race",
        ),
    ],
)
def test_what_the_schedule_has_to_do_with_it(schedule, line):
    assert schedule_line(Case(Budget(4, 10, 64), (Session(4),), schedule=schedule)) == line


def test_many_turns_are_cut_and_those_in_violation_stay():
    sessions = tuple(Session(4, arrival_s=float(index)) for index in range(15))
    case = Case(Budget(8, 10, 64), sessions, (WeightUpdate(AfterTokens(14, 5)),))
    text = report(case)
    assert text.index("session 14 turn 0") < text.index("session 0 turn 0") < text.index("session 10 turn 0")
    assert "session 11 turn 0" not in text
    assert "… and 3 more turns" in text


def test_a_fault_that_did_not_fire_says_so():
    assert "did not fire" in report(Case(Budget(4, 10, 64), (Session(4),), (AbortAll(AfterTokens(0, 60), 0),)))


def test_a_find_that_does_not_show_itself_again_is_reported_as_it_was_seen():
    case = Case(Budget(4, 10, 64), (Session(4),))
    text = find_report(judged(case, load_sut(CLEAN)), Find("D1", "two runs differ", case), set())
    assert text.endswith("D1 violated: The same case gives the same digest.\n  two runs differ")


def test_as_json_has_the_digest_and_the_attempts():
    case, sut = Case(Budget(4, 10, 64), (Session(4),)), load_sut(CLEAN)
    trace = run_world(case, sut)
    findings = Findings(events=len(trace.events), end=trace.end)
    findings.add([Violation("B1", "much", 0)])
    data = as_json(Judged(case, sut, trace, findings, (), 0))
    assert (data["digest"], data["events"]) == (trace.digest(), len(trace.events))
    assert data["attempts"][0]["grant_tokens"] == data["attempts"][0]["decoded_tokens"] == 10
    assert data["violations"] == [{"invariant": "B1", "message": "much", "session": 0, "severity": "violation"}]


# What the client under test did


class RaisingClient(PinnedClient):
    async def generate(self, request_id, **kwargs):
        output = await super().generate(request_id, **kwargs)
        return self.finished(output)

    def finished(self, output):
        return {}["boom"]


class RetryingClient(PinnedClient):
    """Takes no answer for one."""

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        while True:
            await self.attempt(request_id, prompt_ids, dict(sampling_params))
            await asyncio.sleep(1)


def report_of(client, case):
    sut = sut_of("mine", lambda context: client(context.config, context.balancer))
    return world_report(judged(case, sut))


ONE = Case(Budget(4, 10), (Session(4),))


def test_what_the_client_raised_is_on_top_with_the_last_lines_of_its_traceback():
    lines = report_of(RaisingClient, ONE).splitlines()
    assert lines[0] == "your client raised KeyError: 'boom' (session 0 turn 0)"
    assert [line.strip() for line in lines[2:6:2]] == ["return self.finished(output)", 'return {}["boom"]']
    assert [line.rsplit(" ", 1)[1] for line in lines[1:5:2]] == ["generate", "finished"]
    assert all(__file__ in line for line in lines[1:5:2])
    assert lines[5:7] == ["", "mine"]


def test_what_the_balancer_raised_is_not_put_on_the_client():
    class Closed(LeastLoadedBalancer):
        def choose(self):
            raise RuntimeError("closed")

    sut = sut_of("mine", lambda context: PinnedClient(context.config, context.make_balancer(Closed)))
    text = world_report(judged(ONE, sut))
    assert "the client's call was cut: error (RuntimeError: closed)" in text
    assert "your client raised" not in text


def test_an_exception_and_its_place_do_not_change_the_digest():
    """The place is that of a file on this machine."""
    sut = sut_of("mine", lambda context: RaisingClient(context.config, context.balancer))
    trace = run_world(ONE, sut)
    before = trace.digest()
    assert trace.raised.pop((0, 0))
    assert trace.digest() == before
    assert __file__ not in str(trace.events)


def test_attempts_without_end_are_told_once_and_counted():
    lines = report_of(RetryingClient, ONE).splitlines()
    attempts = lines.index(next(line for line in lines if line.startswith("  attempt  replica")))
    assert lines[attempts + 1].startswith("  0        0        4       none        10 = default")
    assert lines[attempts + 2].startswith("  … ")
    assert lines[attempts + 2].endswith(" more attempts like this")
    assert lines[attempts + 3].endswith("never")
    assert lines[attempts + 4].startswith("  decoded 10 + 10 + ")
    assert len(lines) < 50
    assert max(map(len, lines)) < 180


def test_very_many_attempts_that_differ_are_cut_in_the_middle():
    updates = tuple(AbortAll(AfterTokens(0, tokens), 0) for tokens in range(1, 30))
    text = report(Case(Budget(60, 40), (Session(4),), updates))
    assert "  … 30 attempts in all" in text
    rows = [line.split()[0] for line in text.splitlines() if line.endswith(("abort", "length"))]
    assert rows == [str(number) for number in (*range(8), *range(22, 30))]


# Evidence for routing


def shown_messages(text):
    """The table's rows, cell by cell."""
    lines = text.split("messages to the balancer\n")[1].split("\n\n")[0].splitlines()
    return [" ".join(line.split()) for line in lines]


def test_the_messages_around_a_wrong_count_are_shown_and_the_wrong_one_is_marked():
    rows = shown_messages(report(corpus.read(CORPUS / "added-while-live.json").case, "reference:zeroes-count"))
    assert rows[0] == "message time kind session replica counts shown truth"
    assert "R3 → 10 0.15 s add_servers 0 0, 5 5, 5" in rows
    assert rows[-2:] == ["…", "31 0.88 s rest 0, 0 0, 0"]
    assert sum("→" in row for row in rows) == 1


def test_a_replica_that_was_removed_has_no_count():
    rows = shown_messages(
        report(corpus.read(CORPUS / "removed-under-session.json").case, "reference:routes-to-removed")
    )
    assert "R5 → 3 1.02 s acquire_server 0 0 –, 0 1, 0" in rows


def test_for_a_favourite_the_first_messages_are_shown():
    rows = shown_messages(report(corpus.read(CORPUS / "ties-in-a-row.json").case, "reference:favourite"))
    assert rows[1] == "0 0 s acquire_server 0 0 1, 0, 0, 0 1, 0, 0, 0"
    assert not any("→" in row for row in rows)


def test_where_no_routing_invariant_is_violated_there_are_no_messages():
    assert "messages to the balancer" not in report(corpus.read(CORPUS / "overrun-136.json").case)
    assert "messages to the balancer" not in report(corpus.read(CORPUS / "added-while-live.json").case, CLEAN)


# Whose budget


@pytest.mark.parametrize(
    ("session", "budget", "told"),
    [
        (Session(2), Budget(4, 10), "budget 10 (response_length)"),
        (Session(2, limit=Limit("max_tokens", 2)), Budget(4, 10), "budget 2 (the caller's max_tokens)"),
        (Session(2, limit=Limit("both", 0)), Budget(4, 10), "budget 0 (the caller's max_tokens and max_new_tokens)"),
        (
            Session(2),
            Budget(4, 10, client_view=ClientView()),
            "no budget (this world's config lacks response_length, on purpose)",
        ),
        (
            Session(2),
            Budget(4, 10, client_view=ClientView(-1)),
            "no budget (this world's config has response_length -1, on purpose)",
        ),
    ],
)
def test_a_session_says_what_its_budget_is_and_whose(session, budget, told):
    assert f"session 0 turn 0: prompt 2 tokens; {told}\n" in report(Case(budget, (session,)), CLEAN)


def test_a_session_says_that_its_budget_is_that_of_all_turns():
    run = judged(Case(Budget(4, 10), (Session(2),)), load_sut(CLEAN, {"budget": "trajectory"}))
    assert "session 0 turn 0: prompt 2 tokens; budget 10 (response_length, of all turns)\n" in world_report(run)


def test_one_origin_of_exceptions_is_told_once():
    class Failing(PinnedClient):
        async def generate(self, request_id, **kwargs):
            raise KeyError(request_id)

    failing = sut_of("failing", lambda context: Failing(context.config, context.balancer))
    told = set()
    finds = [Find(number, "", Case(Budget(4, 10), (Session(2),))) for number in ("A9", "A1")]
    first, second = (find_report(judged(find.case, failing), find, told) for find in finds)
    assert "raise KeyError(request_id)" in first
    assert "raise KeyError(request_id)" not in second
    assert second.startswith(
        "your client raised KeyError: 'session-0' (session 0 turn 0)\n  from the same place as above"
    )


def test_a_large_world_tells_what_went_wrong_when_faults_fired():
    case = Case(Budget(8, 10, 64), (Session(2),), (AbortAll(AtTime(0.5), 0), AbortAll(AtTime(0.7), 0)), repeat=2)
    run = judged(case, load_sut(CLEAN))
    firings = {0: Firings(3, 5, Counter({"RuntimeError: no room": 2})), 1: Firings(1, 5)}
    text = world_report(dataclasses.replace(run, findings=Findings(faults=firings)))
    assert "0.5 s (2 of 3 times RuntimeError: no room)\n" in text
    assert "0.7 s\n" in text
