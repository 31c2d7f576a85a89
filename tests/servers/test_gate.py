"""The gate in front of an engine: what arrives between an abort and its resume.

Read off verl's sources. Where its versions differ, it is here:

- vLLM's server has no gate in 0.8.0 and 0.9.0: what arrives at a paused engine waits in it until the resume, and a
  second abort ends it with 0 tokens. 0.9.1 has a gate: what arrives parks in front of it, or is turned away at once
  when the abort says `reject_request`; the abort itself waits, for at most 60 s, until every request past the gate
  has brought its first token.
- SGLang's tokenizer manager parks what arrives, in every version, and has no way to turn it away.
- TensorRT-LLM's server parks in every version, and turns away since 0.9.1.

Without verl, vLLM has no gate (what arrives at a paused engine waits in it) and its pause waits for nothing, while
SGLang's tokenizer manager parks as it does behind verl.
"""

import asyncio

import pytest

from sim.clock import to_ns
from sim.dialects import DIALECTS
from sim.events import Admitted, Ended, Parked, Paused, Resumed
from sim.servers.gate import SubmissionGate
from sim.servers.server import ADMISSION_WAIT_S
from tests.servers.bench import limit_of_10

GATED = pytest.mark.parametrize("dialect", ["vllm", "sglang", "trtllm", "plain-sglang"])
WITHOUT_GATE = pytest.mark.parametrize(
    "settings",
    [{"submission_gate": False}, {"dialect": "plain-vllm"}, {"dialect": "sglang", "submission_gate": False}],
    ids=str,
)


# By itself


def test_a_gate_is_open_and_lets_in_what_waited_in_the_order_of_arrival():
    gate, let_in = SubmissionGate(), []
    assert (gate.is_closed, gate.rejects) == (False, False)
    gate.close(rejects=True)
    assert (gate.is_closed, gate.rejects) == (True, True)
    for request in "abc":
        gate.park(request)
    gate.open(let_in.append)
    assert (gate.is_closed, gate.rejects, let_in) == (False, False, ["a", "b", "c"])
    gate.open(let_in.append)
    assert let_in == ["a", "b", "c"], "once"


def test_who_parks_again_while_the_gate_opens_waits_for_the_next_time():
    gate = SubmissionGate()
    gate.close(rejects=False)
    gate.park("a")
    gate.open(gate.park)
    let_in = []
    gate.open(let_in.append)
    assert let_in == ["a"]


# In front of an engine


@GATED
def test_what_arrives_at_a_closed_gate_parks_until_the_resume(bench, dialect):
    b = bench(dialect)
    _, late, _ = b.run(b.at(1.0, "abort_all"), b.ask(at_s=2.0, **limit_of_10(dialect)), b.at(5.0, "resume"))

    assert len(late.token_ids) == 10
    kinds = [(type(event).__name__, event.t_ns) for event in b.events(Parked, Resumed, Admitted)]
    assert kinds == [("Parked", to_ns(2)), ("Resumed", to_ns(5)), ("Admitted", to_ns(5))]


@GATED
def test_a_second_abort_leaves_the_parked_alone(bench, dialect):
    b = bench(dialect)
    tasks = [b.ask(at_s=2.0, **limit_of_10(dialect))]
    tasks += [b.at(at_s, "abort_all") for at_s in (1.0, 3.0)] + [b.at(4.0, "resume")]
    output, *_ = b.run(*tasks)
    assert len(output.token_ids) == 10


@pytest.mark.parametrize(("dialect", "refused"), [("vllm", True), ("trtllm", True), ("sglang", False)])
def test_a_rejecting_gate_turns_away_what_arrives_but_sglang_cannot(bench, dialect, refused):
    b = bench(dialect)
    _, late, _ = b.run(
        b.at(1.0, "abort_all", reject=True), b.ask(at_s=2.0, **limit_of_10(dialect)), b.at(5.0, "resume")
    )
    (ended,) = b.events(Ended)
    if refused:
        assert (late.token_ids, late.log_probs, late.stop_reason) == ([], None, "aborted")
        assert (ended.outcome, ended.t_ns) == ("refused", to_ns(2))
        assert not b.events(Admitted)
    else:
        assert len(late.token_ids) == 10


@pytest.mark.parametrize("dialect", ["vllm", "trtllm"])
def test_who_is_parked_stays_so_when_a_later_abort_rejects(bench, dialect):
    """verl waits for the resume first and looks at the flag after it: only the resume wakes the parked."""
    b = bench(dialect)
    parked, late, *_ = b.run(
        b.ask(0, at_s=2.0),
        b.ask(1, at_s=4.0),
        b.at(1.0, "abort_all"),
        b.at(3.0, "abort_all", reject=True),
        b.at(5.0, "resume"),
    )
    assert [len(parked.token_ids), len(late.token_ids)] == [10, 0]


def test_a_plain_abort_takes_back_the_rejection(bench):
    b = bench()
    output, *_ = b.run(
        b.ask(at_s=3.0),
        b.at(1.0, "abort_all", reject=True),
        b.at(2.0, "abort_all"),
        b.at(4.0, "resume"),
    )
    assert len(output.token_ids) == 10


def test_who_is_woken_into_a_gate_closed_again_parks_again(bench):
    """The resume and the next abort come at one instant: the woken request finds the gate closed."""
    b = bench()

    async def resume_and_abort():
        await asyncio.sleep(3.0)
        await b.server.resume()
        await b.server.abort_all()

    output, *_ = b.run(
        b.ask(at_s=2.0),
        b.at(1.0, "abort_all"),
        b.loop.create_task(resume_and_abort()),
        b.at(6.0, "resume"),
    )
    assert len(output.token_ids) == 10
    assert b.events(Admitted) == [Admitted(to_ns(6), 0)]
    assert len(b.events(Parked)) == 1, "parked once, however often it is woken"


def test_abort_waits_for_admissions_under_way(bench):
    b = bench("sglang", admission_s=3.0)
    output, _ = b.run(b.ask(), b.at(1.0, "abort_all"))
    assert (output.token_ids, output.stop_reason) == ([], "abort")
    assert b.events(Paused) == [Paused(to_ns(3.0), 0, 1)]


def test_vllms_abort_waits_for_the_first_token(bench):
    b = bench("vllm", prefill_s=5.0)
    waited_for, output, _ = b.run(b.ask(0, at_s=2.0), b.ask(1), b.at(3.0, "abort_all"))

    # The prompt that came first is computed from 0 to 6 s, the other's with its second token from 6 to 12 s.
    assert len(output.token_ids) == 2
    assert len(waited_for.token_ids) == 1, "aborted once its first token was there"
    assert b.events(Paused)[0].t_ns == pytest.approx(to_ns(12.0), abs=to_ns(0.01))


def test_vllms_abort_waits_60_s_at_most(bench):
    b = bench("vllm", max_num_seqs=1, token_time_s=100.0)
    first, queued, _ = b.run(b.ask(0), b.ask(1), b.at(101.0, "abort_all"))

    assert (queued.token_ids, queued.stop_reason) == ([], "aborted"), "it never came to its turn"
    assert len(first.token_ids) == 2
    assert b.events(Paused)[0].t_ns == to_ns(200), "after 60 s, as soon as a step has ended"
    assert 101 + ADMISSION_WAIT_S < 200


def test_an_admission_that_outlasts_the_wait_lands_in_the_paused_engine(bench):
    b = bench("vllm", admission_s=100.0)
    output, *_ = b.run(b.ask(), b.at(1.0, "abort_all"), b.at(200.0, "resume"))
    assert len(output.token_ids) == 10
    assert b.events(Ended)[0].t_ns == to_ns(210)


# No gate


@WITHOUT_GATE
def test_without_a_gate_a_paused_engine_keeps_what_arrives_until_the_resume(bench, settings):
    b = bench(**settings)
    limit = limit_of_10(b.dialect)
    _, output, _ = b.run(b.at(1.0, "abort_all"), b.ask(at_s=2.0, **limit), b.at(5.0, "resume"))

    assert len(output.token_ids) == 10
    assert b.events(Admitted) == [Admitted(to_ns(2), 0)]
    assert b.events(Ended)[0].t_ns == to_ns(15)
    assert not b.events(Parked)


def test_what_waited_in_a_paused_engine_is_prefilled_after_the_resume(bench):
    b = bench(submission_gate=False, prefill_s=3.0)
    b.run(b.at(1.0, "abort_all"), b.ask(at_s=2.0), b.at(5.0, "resume"))
    assert b.events(Ended)[0].t_ns == to_ns(5 + 3 + 10)


@WITHOUT_GATE
def test_without_a_gate_a_second_abort_ends_what_waits_with_0_tokens(bench, settings):
    b = bench(**settings)
    output, _, report = b.run(b.ask(at_s=2.0), b.at(1.0, "abort_all"), b.at(3.0, "abort_all", reject=True))
    assert (output.token_ids, output.log_probs) == ([], [])
    assert output.stop_reason == DIALECTS[b.dialect].stop_reasons["abort"]
    assert report == ["id-0"]


@pytest.mark.parametrize("prefill_s", [0.0, 5.0])
def test_the_engines_own_abort_waits_for_no_first_token(bench, prefill_s):
    """Only for the step under way, as everything that its engine is told."""
    b = bench("plain-vllm", prefill_s=prefill_s, token_time_s=1.0)
    output, _ = b.run(b.ask(), b.at(0.0, "abort_all"))
    assert (output.token_ids, output.stop_reason) == ([], "abort")
    assert b.events(Paused) == [Paused(0, 0, 1)]
