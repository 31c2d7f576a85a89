"""Latency models: many steps at once take exactly as long as one by one; presets are named; fits tell their error."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine import StepTotals
from sim.engine.latency import (
    FS_PER_NS,
    HARDWARE,
    MODELS,
    Affine,
    Constant,
    Fitted,
    Latency,
    Roofline,
    Stretch,
    floor_sum,
)

counts = st.integers(0, 10**9)
affine_times = st.builds(Affine, counts, counts, counts)


class TwoRegimes(Roofline):
    """A roofline with any figures, so that steps change from one regime to the other often."""

    def __init__(self, memory: Affine, compute: Affine, overhead_fs: int) -> None:
        self.memory, self.compute, self.overhead_fs = memory, compute, overhead_fs


rooflines = st.one_of(
    st.builds(TwoRegimes, affine_times, affine_times, counts),
    st.builds(Roofline, st.sampled_from(list(HARDWARE)), st.sampled_from(list(MODELS))),
)
latencies = st.one_of(
    st.builds(Constant, st.integers(0, 10**9), st.integers(0, 10**9)), st.builds(Fitted, affine_times), rooflines
)


def decode_totals(num_decodes: int, num_kv_tokens: int) -> StepTotals:
    return StepTotals(num_decodes, 0, num_decodes, num_kv_tokens)


@given(latencies, st.integers(1, 300), st.integers(0, 10**6), st.integers(1, 200))
@settings(max_examples=500, deadline=None)
def test_many_steps_at_once_take_as_long_as_one_by_one(
    latency: Latency, num_decodes: int, num_kv_tokens: int, num_steps: int
) -> None:
    one_by_one_ns = []
    for step in range(num_steps):
        totals = decode_totals(num_decodes, num_kv_tokens + (step + 1) * num_decodes)
        one_by_one_ns.append(latency.stretch(totals).step_ns)

    taken = 0
    for _ in range(num_steps):  # of each regime as much as it has
        if taken == num_steps:
            break
        stretch = latency.stretch(decode_totals(num_decodes, num_kv_tokens + (taken + 1) * num_decodes))
        rest = num_steps - taken
        at_once = rest if stretch.num_steps is None else min(rest, stretch.num_steps)
        for cut in {1, at_once // 2, at_once}:
            assert stretch.total_ns(cut) == sum(one_by_one_ns[taken : taken + cut])
        taken += at_once
    assert taken == num_steps


@given(st.builds(Stretch, counts, counts), st.integers(0, 200), st.integers(0, 10**5))
def test_the_steps_that_have_ended_after_a_time(stretch: Stretch, num_steps: int, elapsed_ns: int) -> None:
    by_hand = sum(stretch.total_ns(step + 1) <= elapsed_ns for step in range(num_steps))
    assert stretch.ended_steps(elapsed_ns, num_steps) == by_hand


@given(st.integers(0, 100), st.integers(1, 10**7), counts, counts)
def test_floor_sum(count: int, divisor: int, slope: int, offset: int) -> None:
    assert floor_sum(count, divisor, slope, offset) == sum((slope * i + offset) // divisor for i in range(count))


def test_a_regime_ends_with_the_last_step_in_which_it_is_the_longer() -> None:
    latency = TwoRegimes(Affine(100, 0, 1), Affine(0, 0, 3), overhead_fs=0)
    stretch = latency.stretch(decode_totals(1, 40))
    assert stretch == Stretch(140, growth_fs=1, num_steps=11)  # at 50 tokens they are equal, at 51 sums take longer
    assert latency.stretch(decode_totals(1, 51)) == Stretch(153, growth_fs=3, num_steps=None)


def test_a_step_with_a_prompt_stands_alone() -> None:
    totals = StepTotals(9, 8, 1, 100)
    for latency in (Constant(5, 7), Roofline("H100-SXM", "Qwen2.5-7B"), Fitted(Affine(1, 1, 1))):
        assert latency.stretch(totals).num_steps == 1
    assert Constant(5, 7).stretch(totals).step_ns == 12


def test_a_roofline_is_the_weights_and_the_kv_over_the_bandwidth_where_few_decode() -> None:
    stretch = Roofline("H100-SXM", "Qwen2.5-7B", overhead_ns=1000).stretch(decode_totals(8, 8000))
    weights_ns, kv_ns = 2 * 7_615_616_512 / 3350, 8000 * (2 * 28 * 4 * 128 * 2) / 3350
    assert stretch.step_ns == pytest.approx(weights_ns + kv_ns + 1000, rel=1e-6)


def test_a_roofline_is_the_sums_over_the_peak_where_a_long_prompt_is_computed() -> None:
    stretch = Roofline("H100-SXM", "Qwen2.5-7B").stretch(StepTotals(8192, 8192, 0, 8192))
    sums_ns = (8192 * 2 * 7_615_616_512 + 8192 * 4 * 28 * 28 * 128) / 989e3
    assert stretch.step_ns == pytest.approx(sums_ns, rel=1e-6)


def test_n_accelerators_divide_the_time() -> None:
    one, two = (Roofline("A100-SXM-80GB", "Llama-3.1-8B", tensor_parallel_size=n) for n in (1, 2))
    totals = decode_totals(4, 4000)
    assert one.stretch(totals).step_ns == pytest.approx(2 * two.stretch(totals).step_ns, rel=1e-6)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^hardware='A10' is unknown; known are A100-SXM-80GB, H100-SXM, "):
        Roofline("A10", "Qwen2.5-7B")
    with pytest.raises(ValueError, match=r"^model='gpt-2' is unknown; known are Qwen2\.5-0\.5B, "):
        Roofline("L40S", "gpt-2")
    with pytest.raises(ValueError, match=r"^tensor_parallel_size=0 is not possible"):
        Roofline("L40S", "Qwen2.5-7B", tensor_parallel_size=0)


def test_every_preset_cites_its_source() -> None:
    for chip in HARDWARE.values():
        assert "NVIDIA" in chip.source or "AMD" in chip.source
        assert "datasheet" in chip.source or "data sheet" in chip.source
    assert all(net.source.startswith("config.json of ") for net in MODELS.values())


SHAPES = {
    # vocabulary, hidden, intermediate, embeddings tied to the head, biases on queries, keys and values
    "Qwen2.5-0.5B": (151_936, 896, 4864, True, True),
    "Qwen2.5-7B": (152_064, 3584, 18_944, False, True),
    "Qwen2.5-32B": (152_064, 5120, 27_648, False, True),
    "Llama-3.1-8B": (128_256, 4096, 14_336, False, False),
    "Llama-3.1-70B": (128_256, 8192, 28_672, False, False),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_parameters_are_those_of_the_published_shapes(name: str) -> None:
    net = MODELS[name]
    vocabulary, hidden, intermediate, tied, biased = SHAPES[name]
    queries, keys = net.num_attention_heads * net.head_dim, net.num_key_value_heads * net.head_dim
    attention = (2 * hidden + biased) * queries + 2 * (hidden + biased) * keys
    layer = attention + 3 * hidden * intermediate + 2 * hidden
    embeddings = vocabulary * hidden * (1 if tied else 2)
    assert net.num_parameters == embeddings + net.num_hidden_layers * layer + hidden


# Fitted


def test_an_exact_law_is_found_in_its_measurements(tmp_path) -> None:
    path = tmp_path / "steps.csv"
    rows = [f"{batch},{tokens},{0.005 + 2e-5 * batch + 3e-8 * tokens}" for batch in (1, 8, 64) for tokens in (0, 9999)]
    path.write_text("batch,tokens,seconds\n" + "\n".join(rows))

    fitted = Fitted.from_csv(path)
    assert fitted.time.fixed_fs == pytest.approx(0.005e15)
    assert fitted.time.scheduled_token_fs == pytest.approx(2e-5 * 1e15)
    assert fitted.time.kv_token_fs == pytest.approx(3e-8 * 1e15)
    assert fitted.max_error < 1e-9
    assert str(fitted) == (
        "5.00 ms a step + 20.0 µs for each token that it computes + 30 ns for each cached token; "
        "off by 0.0% on average, 0.0% at most"
    )


def test_what_does_not_fit_shows_in_the_error() -> None:
    fitted = Fitted.from_measurements([(1, 0, 1.0), (1, 0, 3.0)])
    assert fitted.mean_error == pytest.approx(0.4)
    assert fitted.max_error == pytest.approx(0.6)


def test_no_part_is_negative() -> None:
    fitted = Fitted.from_measurements([(1, 100, 0.3), (2, 100, 0.2), (3, 200, 0.1), (4, 300, 0.1)])
    assert min(fitted.time) >= 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch,seconds\n1,2\n", "no column tokens; needed are batch, tokens, seconds"),
        ("1,2,0.5\n1,3,0.6\n", "line 1: is '1,2,0.5'; a header line that names the columns batch, tokens, seconds"),
        ("", "line 1: is ''; a header line"),
        ("batch,tokens,seconds\n", "no measurements"),
        ("batch,tokens,seconds\n1,2,x\n", "line 2: .* has a value that is no number"),
        ("batch,tokens,seconds\n1,2,0.1\n1,2,0\n", "line 3: .*: seconds must be above 0"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"steps.csv.*{message}"):
        Fitted.from_csv(path)


def test_whole_nanoseconds() -> None:
    assert Stretch(first_fs=FS_PER_NS - 1, growth_fs=1).total_ns(2) == 1
