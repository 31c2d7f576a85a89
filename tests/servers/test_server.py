"""FakeRolloutServer: the behaviour of verl's rollout servers around an abort.

Read off verl's sources. Where the versions differ, it is in front of the engine:

- vLLM's server has no gate in 0.8.0 and 0.9.0: what arrives at a paused engine waits in it until the resume, and a
  second abort ends it with 0 tokens. 0.9.1 has a gate: what arrives parks in front of it, or is turned away at once
  when the abort says `reject_request`; the abort itself waits, for at most 60 s, until every request past the gate
  has brought its first token.
- SGLang's tokenizer manager parks what arrives, in every version, and has no way to turn it away.
- TensorRT-LLM's server parks in every version, and turns away since 0.9.1.

A server runs here on a virtual loop without a world around it; a token takes 1 s.
"""

import asyncio

import pytest

from sim.case import Budget, ServerSettings
from sim.clock import VirtualLoop, to_ns
from sim.engine import Engine, EngineConfig
from sim.engine.latency import Constant
from sim.engine.timed import TimedEngine
from sim.events import Admitted, Decoded, Ended, Granted, Parked, Paused, Prefilled, Resumed, VersionChanged
from sim.servers.server import ADMISSION_WAIT_S, FakeRolloutServer, first_token, session_of
from sim.tokens import LogProbs
from sim.trace import Trace

BUDGET = Budget(prompt_length=8, response_length=10, max_model_len=32)


class NeverStops:
    """A model that goes on, unless told where a session stops; and nobody who watches."""

    def __init__(self):
        self.stops = {}

    def stop_after(self, session, prompt_tokens):
        del prompt_tokens
        return self.stops.get(session)

    def shared_prompt(self, session):
        del session

    def next_threshold(self, session):
        del session

    def decoded(self, session, tokens):
        pass

    def total(self, session):
        del session
        return 0


class Bench:
    """One server, its loop and its trace."""

    def __init__(self, dialect="vllm", *, token_time_s=1.0, max_num_seqs=8, **settings):
        self.loop = VirtualLoop()
        self.trace = Trace(8)
        self.model = NeverStops()
        settings = ServerSettings(dialect, token_time_s=token_time_s, **settings)
        config = EngineConfig(
            num_gpu_blocks=101, block_size=4, max_num_seqs=max_num_seqs, max_num_batched_tokens=64, max_model_len=40
        )
        engine = TimedEngine(Engine(config), Constant(to_ns(token_time_s), to_ns(settings.prefill_s)))
        self.server = FakeRolloutServer(0, settings, BUDGET, engine, self.loop, self.trace, self.model, self.model)
        self.requests = 0

    def ask(self, session=0, prompt_tokens=4, at_s=0.0, **params):
        """A task that asks for a generation at a given time."""
        request = self.requests
        self.requests += 1
        params = {"temperature": 1.0, "logprobs": True} | params
        prompt_ids = list(range(first_token(session), first_token(session) + prompt_tokens))

        async def call():
            await asyncio.sleep(at_s)
            return await self.server.generate(request, prompt_ids, params, f"id-{request}")

        return self.loop.create_task(call())

    def at(self, at_s, method, *args, **kwargs):
        """A task that calls another method of the server at a given time."""

        async def call():
            await asyncio.sleep(at_s)
            return await getattr(self.server, method)(*args, **kwargs)

        return self.loop.create_task(call())

    def run(self, *tasks):
        """The tasks' results, when all is over."""
        return self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    def events(self, *kinds):
        return [event for event in self.trace.events if isinstance(event, kinds)]


@pytest.fixture
def bench():
    benches = []

    def make(*args, **kwargs):
        benches.append(Bench(*args, **kwargs))
        return benches[-1]

    yield make
    for each in benches:
        each.loop.close()


GATED = pytest.mark.parametrize("dialect", ["vllm", "sglang", "trtllm"])

REASONS = {
    "vllm": ("completed", "completed", "aborted"),
    "sglang": ("stop", "length", "abort"),
    "trtllm": (None, None, "aborted"),
}
"""What each server calls a response that stopped, that was cut, that was aborted."""


# Without interference


@GATED
def test_a_response_stops_or_is_cut_at_its_grant(bench, dialect):
    b = bench(dialect)
    b.model.stops[0] = 3
    stopped, cut = b.run(b.ask(session=0), b.ask(session=1))

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


@GATED
def test_abort_ends_every_request_with_what_it_has(bench, dialect):
    """The step under way goes on to its end first, and brings each a token."""
    b = bench(dialect)
    first, second, report = b.run(b.ask(0), b.ask(1, at_s=2.0), b.at(4.5, "abort_all_requests"))

    assert [len(output.token_ids) for output in (first, second)] == [5, 3]
    assert [output.stop_reason for output in (first, second)] == [REASONS[dialect][2]] * 2
    assert report == {"aborted_count": 2, "request_ids": ["id-0", "id-1"]}
    assert b.events(Paused) == [Paused(to_ns(5.0), 0, 2)]


@pytest.mark.parametrize(
    ("at_s", "tokens"), [(0.0, 0), (0.000000001, 1), (1.0, 1), (2.0, 2), (2.000000001, 3), (3.0, 3)]
)
def test_no_step_starts_at_the_instant_of_an_abort_and_none_under_way_is_cut(bench, at_s, tokens):
    b = bench("sglang")
    output, _ = b.run(b.ask(), b.at(at_s, "abort_all_requests"))
    assert len(output.token_ids) == tokens


def test_what_arrives_while_a_step_is_under_way_waits_for_the_next_one(bench):
    b = bench()
    b.run(b.ask(0, max_tokens=4), b.ask(1, at_s=1.5, max_tokens=1))
    assert [(event.request, event.t_ns) for event in b.events(Ended)] == [(1, to_ns(3)), (0, to_ns(4))]


def test_without_a_gate_what_arrives_while_the_last_step_runs_waits_for_the_resume(bench):
    b = bench(submission_gate=False)
    first, late, report, _ = b.run(
        b.ask(0), b.ask(1, at_s=2.7), b.at(2.5, "abort_all_requests"), b.at(5.0, "resume_generation")
    )
    assert [len(output.token_ids) for output in (first, late)] == [3, 10]
    assert report["aborted_count"] == 1


def test_abort_at_the_instant_of_a_finish_finds_the_request_finished(bench):
    b = bench()
    output, report = b.run(b.ask(max_tokens=3), b.at(3.0, "abort_all_requests"))
    assert output.stop_reason == "completed"
    assert report["aborted_count"] == 0


def test_abort_request_ends_the_one_that_it_names(bench):
    b = bench()
    first, second, done, unknown = b.run(
        b.ask(0), b.ask(1), b.at(2.0, "abort_request", "id-1"), b.at(3.0, "abort_request", "id-1")
    )
    assert [len(output.token_ids) for output in (first, second)] == [10, 2]
    assert done == {"aborted": True, "request_id": "id-1"}
    assert unknown == {"aborted": False, "error": "Request id-1 not found"}


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
        b.run(b.ask(**prompt), b.at(1.0, "abort_all_requests", **keywords))
        b.run(b.at(0.0, "resume_generation"), b.ask(**prompt))
        return b.events(Prefilled)[-1]

    assert (second_prompt().computed_tokens, second_prompt().cached_tokens) == (9, 0)
    kept = second_prompt(reset_prefix_cache=False)
    assert (kept.computed_tokens, kept.cached_tokens) == (1, 8)


def test_new_weights_label_the_tokens_that_they_decode(bench):
    b = bench()
    output, _ = b.run(b.ask(max_tokens=5), b.at(2.0, "set_global_steps", 7))

    assert output.extra_fields == {"global_steps": 7}
    assert [(run.position, run.tokens, run.version) for run in b.events(Decoded)] == [(4, 2, 0), (6, 3, 7)]
    assert output.log_probs == list(LogProbs(((4, 2, 0), (6, 3, 7))))
    assert b.events(VersionChanged) == [VersionChanged(to_ns(2), 0, 7, stale_requests=1, stale_kv_tokens=4 + 1)]


def test_new_weights_wait_for_the_step_under_way(bench):
    b = bench()
    b.run(b.ask(max_tokens=5), b.at(2.5, "set_global_steps", 7))
    assert [(run.position, run.tokens, run.version) for run in b.events(Decoded)] == [(4, 3, 0), (7, 2, 7)]
    assert b.events(VersionChanged)[0].t_ns == to_ns(3)


# The gate


@GATED
def test_what_arrives_at_a_closed_gate_parks_until_the_resume(bench, dialect):
    b = bench(dialect)
    _, late, _ = b.run(b.at(1.0, "abort_all_requests"), b.ask(at_s=2.0), b.at(5.0, "resume_generation"))

    assert len(late.token_ids) == 10
    kinds = [(type(event).__name__, event.t_ns) for event in b.events(Parked, Resumed, Admitted)]
    assert kinds == [("Parked", to_ns(2)), ("Resumed", to_ns(5)), ("Admitted", to_ns(5))]


@GATED
def test_a_second_abort_leaves_the_parked_alone(bench, dialect):
    b = bench(dialect)
    tasks = [b.ask(at_s=2.0)]
    tasks += [b.at(at_s, "abort_all_requests") for at_s in (1.0, 3.0)] + [b.at(4.0, "resume_generation")]
    output, *_ = b.run(*tasks)
    assert len(output.token_ids) == 10


@pytest.mark.parametrize(("dialect", "refused"), [("vllm", True), ("trtllm", True), ("sglang", False)])
def test_a_rejecting_gate_turns_away_what_arrives_but_sglang_cannot(bench, dialect, refused):
    b = bench(dialect)
    _, late, _ = b.run(
        b.at(1.0, "abort_all_requests", reject_request=True), b.ask(at_s=2.0), b.at(5.0, "resume_generation")
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
        b.at(1.0, "abort_all_requests"),
        b.at(3.0, "abort_all_requests", reject_request=True),
        b.at(5.0, "resume_generation"),
    )
    assert [len(parked.token_ids), len(late.token_ids)] == [10, 0]


def test_a_plain_abort_takes_back_the_rejection(bench):
    b = bench()
    output, *_ = b.run(
        b.ask(at_s=3.0),
        b.at(1.0, "abort_all_requests", reject_request=True),
        b.at(2.0, "abort_all_requests"),
        b.at(4.0, "resume_generation"),
    )
    assert len(output.token_ids) == 10


def test_who_is_woken_into_a_gate_closed_again_parks_again(bench):
    """The resume and the next abort come at one instant: the woken request finds the gate closed."""
    b = bench()

    async def resume_and_abort():
        await asyncio.sleep(3.0)
        await b.server.resume_generation()
        await b.server.abort_all_requests()

    output, *_ = b.run(
        b.ask(at_s=2.0),
        b.at(1.0, "abort_all_requests"),
        b.loop.create_task(resume_and_abort()),
        b.at(6.0, "resume_generation"),
    )
    assert len(output.token_ids) == 10
    assert b.events(Admitted) == [Admitted(to_ns(6), 0)]
    assert len(b.events(Parked)) == 1, "parked once, however often it is woken"


def test_abort_waits_for_admissions_under_way(bench):
    b = bench("sglang", admission_s=3.0)
    output, _ = b.run(b.ask(), b.at(1.0, "abort_all_requests"))
    assert (output.token_ids, output.stop_reason) == ([], "abort")
    assert b.events(Paused) == [Paused(to_ns(3.0), 0, 1)]


def test_vllms_abort_waits_for_the_first_token(bench):
    b = bench("vllm", prefill_s=5.0)
    waited_for, output, _ = b.run(b.ask(0, at_s=2.0), b.ask(1), b.at(3.0, "abort_all_requests"))

    # The prompt that came first is computed from 0 to 6 s, the other's with its second token from 6 to 12 s.
    assert len(output.token_ids) == 2
    assert len(waited_for.token_ids) == 1, "aborted once its first token was there"
    assert b.events(Paused)[0].t_ns == pytest.approx(to_ns(12.0), abs=to_ns(0.01))


def test_vllms_abort_waits_60_s_at_most(bench):
    b = bench("vllm", max_num_seqs=1, token_time_s=100.0)
    first, queued, _ = b.run(b.ask(0), b.ask(1), b.at(101.0, "abort_all_requests"))

    assert (queued.token_ids, queued.stop_reason) == ([], "aborted"), "it never came to its turn"
    assert len(first.token_ids) == 2
    assert b.events(Paused)[0].t_ns == to_ns(200), "after 60 s, as soon as a step has ended"
    assert 101 + ADMISSION_WAIT_S < 200


def test_an_admission_that_outlasts_the_wait_lands_in_the_paused_engine(bench):
    b = bench("vllm", admission_s=100.0)
    output, *_ = b.run(b.ask(), b.at(1.0, "abort_all_requests"), b.at(200.0, "resume_generation"))
    assert len(output.token_ids) == 10
    assert b.events(Ended)[0].t_ns == to_ns(210)


# No gate


def test_without_a_gate_a_paused_engine_keeps_what_arrives_until_the_resume(bench):
    b = bench(submission_gate=False)
    _, output, _ = b.run(b.at(1.0, "abort_all_requests"), b.ask(at_s=2.0), b.at(5.0, "resume_generation"))

    assert len(output.token_ids) == 10
    assert b.events(Admitted) == [Admitted(to_ns(2), 0)]
    assert b.events(Ended)[0].t_ns == to_ns(15)
    assert not b.events(Parked)


def test_what_waited_in_a_paused_engine_is_prefilled_after_the_resume(bench):
    b = bench(submission_gate=False, prefill_s=3.0)
    b.run(b.at(1.0, "abort_all_requests"), b.ask(at_s=2.0), b.at(5.0, "resume_generation"))
    assert b.events(Ended)[0].t_ns == to_ns(5 + 3 + 10)


def test_without_a_gate_a_second_abort_ends_what_waits_with_0_tokens(bench):
    b = bench(submission_gate=False)
    output, _, report = b.run(
        b.ask(at_s=2.0), b.at(1.0, "abort_all_requests"), b.at(3.0, "abort_all_requests", reject_request=True)
    )
    assert (output.token_ids, output.log_probs, output.stop_reason) == ([], [], "aborted")
    assert report["aborted_count"] == 1


def test_an_abort_by_id_in_the_prefill_leaves_0_tokens(bench):
    b = bench(prefill_s=5.0)
    output, _ = b.run(b.ask(), b.at(3.0, "abort_request", "id-0"))
    assert (output.token_ids, output.stop_reason) == ([], "aborted")
    (ended,) = b.events(Ended)
    assert (ended.t_ns, ended.tokens, ended.in_flight_tokens) == (to_ns(3), 0, 1)


def test_a_resume_without_a_pause_changes_nothing(bench):
    b = bench()
    output, _ = b.run(b.ask(), b.at(3.0, "resume_generation"))
    assert len(output.token_ids) == 10
    assert b.events(Ended)[0].t_ns == to_ns(10)
