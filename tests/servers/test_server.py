"""SimulatedServer: what rollout servers do with requests, aborts and weights, each dialect its own way.

What happens in front of the engine is in `test_gate.py`.
"""

import pytest

from sim.clock import to_ns
from sim.events import Decoded, Ended, Granted, Paused, Prefilled, VersionChanged
from sim.tokens import LogProbs, first_token, session_of
from tests.servers.bench import limit_of_10

DIALECT = pytest.mark.parametrize("dialect", ["vllm", "sglang", "trtllm", "plain-vllm", "plain-sglang"])

REASONS = {
    "vllm": ("completed", "completed", "aborted"),
    "sglang": ("stop", "length", "abort"),
    "trtllm": (None, None, "aborted"),
    "plain-vllm": ("stop", "length", "abort"),
    "plain-sglang": ("stop", "length", "abort"),
}
"""What each server calls a response that stopped, that was cut, that was aborted."""


# Without interference


@DIALECT
def test_a_response_stops_or_is_cut_at_its_grant(bench, dialect):
    b, limit = bench(dialect), limit_of_10(dialect)
    b.model.stops[0] = 3
    stopped, cut = b.run(b.ask(session=0, **limit), b.ask(session=1, **limit))

    assert (len(stopped.token_ids), stopped.stop_reason) == (3, REASONS[dialect][0])
    assert (len(cut.token_ids), cut.stop_reason) == (10, REASONS[dialect][1])
    assert [event.t_ns for event in b.events(Ended)] == [to_ns(3), to_ns(10)]


def test_a_stop_at_the_last_granted_token_is_a_stop(bench):
    b = bench("sglang")
    b.model.stops[0] = 10
    (output,) = b.run(b.ask())
    assert (len(output.token_ids), output.stop_reason) == (10, "stop")


def test_tokens_encode_session_position_and_version(bench):
    b = bench()
    (output,) = b.run(b.ask(session=2, prompt_tokens=4, max_tokens=3))

    assert output.token_ids == [first_token(2) + position for position in (4, 5, 6)]
    assert {session_of(token) for token in output.token_ids} == {2}
    assert output.log_probs == list(LogProbs(((4, 3, 0),)))
    assert output.extra_fields == {"global_steps": 0}


@pytest.mark.parametrize("params", [{"logprobs": False}, {"logprobs": None}])
def test_log_probs_only_on_demand(bench, params):
    b = bench()
    (output,) = b.run(b.ask(max_tokens=3, **params))
    assert output.log_probs is None


def test_prefill_delays_the_first_token(bench):
    b = bench(prefill_s=5.0)
    b.run(b.ask(max_tokens=2))
    assert [event.t_ns for event in b.events(Ended)] == [to_ns(7)]


def test_tokens_may_take_no_time(bench):
    b = bench(token_time_s=0.0)
    (output,) = b.run(b.ask())
    assert len(output.token_ids) == 10
    assert b.loop.now_ns == 0


@pytest.mark.parametrize(
    ("dialect", "prompt_tokens", "params", "error"),
    [
        ("vllm", 32, {}, "ValueError: a prompt of 32 tokens leaves no room"),
        ("sglang", 32, {}, "ValueError: a prompt of 32 tokens leaves no room"),
        ("vllm", 4, {"max_tokens": 1, "max_new_tokens": 1}, "TypeError: .* unexpected keyword .*'max_new_tokens'"),
        ("sglang", 4, {"max_tokens": 1, "max_new_tokens": 1}, "TypeError: .* unexpected keyword .*'max_tokens'"),
        ("vllm", 4, {"max_tokens": 8.0}, "TypeError: max_tokens must be an integer, not 8.0"),
        ("vllm", 4, {"max_tokens": None}, "TypeError: max_tokens must be an integer, not None"),
        ("vllm", 0, {}, "ValueError: the prompt is empty"),
        ("plain-vllm", 32, {}, "ValueError: a prompt of 32 tokens leaves no room"),
        ("plain-vllm", 4, {"max_tokens": 0}, "ValueError: max_tokens is 0; it must be at least 1"),
        ("plain-sglang", 26, {}, "ValueError: a prompt of 26 tokens leaves no room"),
        ("plain-sglang", 4, {"max_new_tokens": 29}, "ValueError: 4 tokens of prompt and max_new_tokens 29 exceed the"),
    ],
)
def test_what_a_server_refuses_ends_with_an_error(bench, dialect, prompt_tokens, params, error):
    b = bench(dialect)
    (raised,) = b.run(b.ask(prompt_tokens=prompt_tokens, **params))

    with pytest.raises(Exception, match=error.partition(": ")[2]) as caught:
        raise raised
    assert isinstance(caught.value, {"ValueError": ValueError, "TypeError": TypeError}[error.partition(":")[0]])
    (ended,) = b.trace.events
    assert (ended.outcome, ended.tokens, ended.error) == ("error", 0, str(raised))


def test_sglang_and_trtllm_grant_0_tokens_and_answer_at_once(bench):
    for dialect, prompt_tokens in (("sglang", 31), ("trtllm", 40)):
        b = bench(dialect)
        (output,) = b.run(b.ask(prompt_tokens=prompt_tokens))
        assert (output.token_ids, output.log_probs) == ([], [])
        assert b.events(Granted)[0].tokens == 0
        assert [(event.outcome, event.tokens) for event in b.events(Ended)] == [("length", 0)]


# Aborts


@DIALECT
def test_abort_ends_every_request_with_what_it_has(bench, dialect):
    """The step under way goes on to its end first, and brings each a token."""
    b = bench(dialect)
    first, second, report = b.run(b.ask(0), b.ask(1, at_s=2.0), b.at(4.5, "abort_all"))

    assert [len(output.token_ids) for output in (first, second)] == [5, 3]
    assert [output.stop_reason for output in (first, second)] == [REASONS[dialect][2]] * 2
    assert report == ["id-0", "id-1"]
    assert b.events(Paused) == [Paused(to_ns(5.0), 0, 2)]


@pytest.mark.parametrize(
    ("at_s", "tokens"), [(0.0, 0), (0.000000001, 1), (1.0, 1), (2.0, 2), (2.000000001, 3), (3.0, 3)]
)
def test_no_step_starts_at_the_instant_of_an_abort_and_none_under_way_is_cut(bench, at_s, tokens):
    b = bench("sglang")
    output, _ = b.run(b.ask(), b.at(at_s, "abort_all"))
    assert len(output.token_ids) == tokens


def test_what_arrives_while_a_step_is_under_way_waits_for_the_next_one(bench):
    b = bench()
    b.run(b.ask(0, max_tokens=4), b.ask(1, at_s=1.5, max_tokens=1))
    assert [(event.request, event.t_ns) for event in b.events(Ended)] == [(1, to_ns(3)), (0, to_ns(4))]


def test_without_a_gate_what_arrives_while_the_last_step_runs_waits_for_the_resume(bench):
    b = bench(submission_gate=False)
    first, late, report, _ = b.run(b.ask(0), b.ask(1, at_s=2.7), b.at(2.5, "abort_all"), b.at(5.0, "resume"))
    assert [len(output.token_ids) for output in (first, late)] == [3, 10]
    assert len(report) == 1


def test_abort_at_the_instant_of_a_finish_finds_the_request_finished(bench):
    b = bench()
    output, report = b.run(b.ask(max_tokens=3), b.at(3.0, "abort_all"))
    assert output.stop_reason == "completed"
    assert report == []


def test_abort_request_ends_the_one_that_it_names(bench):
    b = bench()
    first, second, done, unknown = b.run(
        b.ask(0), b.ask(1), b.at(2.0, "abort_request", "id-1"), b.at(3.0, "abort_request", "id-1")
    )
    assert [len(output.token_ids) for output in (first, second)] == [10, 2]
    assert (done, unknown) == (True, False)


def test_a_request_aborted_by_its_id_ends_at_once_and_its_token_in_flight_is_nobodys(bench):
    b = bench()
    first, second, _ = b.run(b.ask(0), b.ask(1), b.at(2.5, "abort_request", "id-1"))

    assert [len(output.token_ids) for output in (first, second)] == [10, 2]
    ended = {event.request: event for event in b.events(Ended)}
    assert (ended[1].t_ns, ended[1].tokens, ended[1].in_flight_tokens) == (to_ns(2.5), 2, 1)
    assert ended[0].in_flight_tokens == 0


def test_the_prefix_cache_is_reset_with_an_abort_unless_told_otherwise(bench):
    def second_prompt(**keywords):
        b = bench()
        prompt = {"prompt_tokens": 9, "max_tokens": 2}
        b.run(b.ask(**prompt), b.at(1.0, "abort_all", **keywords))
        b.run(b.at(0.0, "resume"), b.ask(**prompt))
        return b.events(Prefilled)[-1]

    assert (second_prompt().computed_tokens, second_prompt().cached_tokens) == (9, 0)
    kept = second_prompt(reset_prefix_cache=False)
    assert (kept.computed_tokens, kept.cached_tokens) == (1, 8)


def test_new_weights_label_the_tokens_that_they_decode(bench):
    b = bench()
    output, _ = b.run(b.ask(max_tokens=5), b.at(2.0, "set_weight_version", 7))

    assert output.extra_fields == {"global_steps": 7}
    assert [(run.position, run.tokens, run.version) for run in b.events(Decoded)] == [(4, 2, 0), (6, 3, 7)]
    assert output.log_probs == list(LogProbs(((4, 2, 0), (6, 3, 7))))
    assert b.events(VersionChanged) == [VersionChanged(to_ns(2), 0, 7, stale_requests=1, stale_kv_tokens=4 + 1)]


def test_new_weights_wait_for_the_step_under_way(bench):
    b = bench()
    b.run(b.ask(max_tokens=5), b.at(2.5, "set_weight_version", 7))
    assert [(run.position, run.tokens, run.version) for run in b.events(Decoded)] == [(4, 3, 0), (7, 2, 7)]
    assert b.events(VersionChanged)[0].t_ns == to_ns(3)


def test_an_abort_by_id_in_the_prefill_leaves_0_tokens(bench):
    b = bench(prefill_s=5.0)
    output, _ = b.run(b.ask(), b.at(3.0, "abort_request", "id-0"))
    assert (output.token_ids, output.stop_reason) == ([], "aborted")
    (ended,) = b.events(Ended)
    assert (ended.t_ns, ended.tokens, ended.in_flight_tokens) == (to_ns(3), 0, 1)


def test_a_resume_without_a_pause_changes_nothing(bench):
    b = bench()
    output, _ = b.run(b.ask(), b.at(3.0, "resume"))
    assert len(output.token_ids) == 10
    assert b.events(Ended)[0].t_ns == to_ns(10)
