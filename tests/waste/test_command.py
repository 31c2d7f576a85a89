"""`rollcage waste` from the outside."""

import csv
import json
import re
import shlex
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sim.cli.main import main
from sim.cli.waste import waste
from sim.waste import what_if
from sim.waste.ledger import LOSSES

SEED = ("--prompt-tokens", "136", "--abort-every-tokens", "2000")
SMALL = ("--count", "30", "--update-every", "1000,4000", "--replicas", "2")


def run(*arguments):
    return CliRunner().invoke(main, ["waste", *map(str, arguments)])


def data(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def rows(found, policy):
    return found["policies"][policy]["by_update_interval"]


def only_row(found, policy):
    """The ledger of a policy: of one response, or of a load at its only interval."""
    ledger = found["policies"][policy]
    (row,) = ledger.get("by_update_interval", [ledger])
    return row


def losses(policy):
    return {name: policy[name] for name in LOSSES if policy[name]}


# One response


@pytest.mark.parametrize(("prompt", "decoded"), [(136, 10104), (92, 10148), (2048, 8192)])
def test_the_numbers_of_the_report(prompt, decoded):
    found = data("--prompt-tokens", prompt, "--abort-every-tokens", 2000, "--policy", "deferred", "--policy", "pinned")
    deferred, pinned = found["policies"]["deferred"], found["policies"]["pinned"]
    assert (deferred["decoded"], deferred["kept"], deferred["overrun"]) == (decoded, 8192, decoded - 8192)
    assert (pinned["decoded"], pinned["kept"], pinned["overrun"]) == (8192, 8192, 0)
    assert set(losses(deferred)) <= {"overrun"}
    assert not losses(pinned)


def test_tensorrt_llm_wastes_with_either_client():
    found = data(*SEED, "--dialect", "trtllm")["policies"]
    assert {name: losses(policy) for name, policy in found.items()} == {
        "deferred": {"overrun": 1912},
        "pinned": {"overrun": 1808},
    }


def test_without_partial_rollout_the_first_abort_drops_it():
    found = data(*SEED, "--policy", "partial-off")["policies"]["partial-off"]
    assert losses(found) == {"dropped": 2000}


def test_the_table_for_a_person():
    result = run(*SEED, "--latency", "affine:12,40", "--batch", "64", "--gpus-per-replica", "8")
    assert result.exit_code == 0
    assert "10,104" in result.output
    assert "pinned instead of deferred: 1,912 tokens fewer decoded (18.9%), as many kept" in result.output
    assert "1.41 × as much" in result.output
    assert "8.55 GPU-seconds" in result.output
    assert "GPU-" not in run(*SEED, "--latency", "affine:12,40", "--batch", "64").output


def test_a_roofline_says_on_how_many_accelerators():
    result = run(*SEED, "--latency", "roofline:H100-SXM:Llama-3.1-70B:4", "--batch", "64")
    assert "Llama-3.1-70B on 4 × H100-SXM at their peak" in result.output
    found = data(*SEED, "--latency", "roofline:H100-SXM:Llama-3.1-70B:4", "--batch", "64")["policies"]["deferred"]
    assert found["gpu_hours_wasted"] == pytest.approx(found["engine_s"]["wasted"] * 4 / 3600, abs=1e-4)
    share = found["engine_s"]["overrun"] / found["engine_s"]["decoded"]
    assert share > 1.1 * found["wasted_share"], "overrun tokens sit deepest"


# A load


def test_a_load_adds_up():
    found = data(*SMALL, "--lengths", "groups", "--policy", "deferred", "--policy", "pinned", "--policy", "partial-off")
    for policy in found["policies"].values():
        assert set(policy) == {"by_update_interval"}, "no sums: the intervals are alternatives"
        assert len(policy["by_update_interval"]) == 2
        for ledger in policy["by_update_interval"]:
            assert ledger["decoded"] == ledger["kept"] + sum(ledger[loss] for loss in LOSSES)
    for deferred, pinned, dropping in zip(*(rows(found, name) for name in found["policies"]), strict=True):
        assert deferred["overrun"] > 0 == pinned["overrun"]
        assert dropping["dropped"] > 0
        assert "saved" not in deferred
        for row in (pinned, dropping):
            assert row["saved"] == {
                "decoded": deferred["decoded"] - row["decoded"],
                "kept": deferred["kept"] - row["kept"],
                "prefilled_again": deferred["recomputed_prefill"] - row["recomputed_prefill"],
            }
    assert found["sampled"] == 2 * 3 * 30


def test_simulating_everything_gives_the_same():
    arguments = (*SMALL, "--lengths", "groups", "--policy", "deferred", "--policy", "partial-off")
    computed, simulated = data(*arguments), data(*arguments, "--simulate")
    assert {row["how"] for row in computed["policies"]["deferred"]["by_update_interval"]} == {"computed"}
    for policies in (computed["policies"], simulated["policies"]):
        for policy in policies.values():
            for row in policy["by_update_interval"]:
                del row["how"]
                row.pop("update_wait_s", None)
    assert computed["policies"] == simulated["policies"]


def test_tool_turns_are_simulated():
    found = data("--count", 6, "--update-every", 2000, "--lengths", "tools")
    assert found["policies"]["pinned"]["by_update_interval"][0]["how"] == "simulated"
    assert found["sampled"] == 0


def test_any_sut_can_be_a_policy():
    found = data("--count", 5, "--update-every", 1000, "--policy", "reference:pinned", "--policy", "reference:stingy")
    assert set(found["policies"]) == {"reference:pinned", "reference:stingy"}


def test_real_verl_as_a_policy():
    """0.8.0 leaves the limit to the server; 0.9.0 and later pin the budget."""
    pytest.importorskip("verl")
    found = data(*SEED, "--policy", "verl", "--policy", "verl:plain")
    release = found["settings"]["suts"]["verl"]
    tokens = found["policies"]["verl"]
    pins = not release.startswith("verl==0.8")
    assert (tokens["decoded"], tokens["kept"]) == ((8192, 8192) if pins else (10104, 8192))
    assert losses(found["policies"]["verl:plain"]) == {"dropped": 2000}


def test_without_verl_its_name_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "verl", None)
    result = run(*SMALL, "--policy", "verl")
    assert result.exit_code == 2
    assert "SUT 'verl' needs the package verl, which is not installed: in a clone, " in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_intervals_in_seconds_ranges_and_never():
    found = data("--count", 5, "--update-every", "20s", "--update-every", "1000-4000/4", "--update-every", "never")
    assert [row["update_every_tokens"] for row in rows(found, "pinned")] == [2000, 1000, 3000, 4000, None]


def test_a_file_of_ones_own(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("prompt_tokens,response_tokens\n136,8192\n92,8192\n3000,10\n50,700\n")
    result = run("--lengths", file, "--update-every", 2000)
    assert result.exit_code == 0, result.output
    assert "2 of 4 responses reach response_length (8192)" in result.output
    assert "; 1 of 4 prompts are longer than 2048" in result.output
    found = data("--lengths", file, "--update-every", 2000)
    assert only_row(found, "deferred")["overrun"] == 1912 + 1956


def test_the_readme_shows_what_its_command_prints(monkeypatch):
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    section = (root / "README.md").read_text(encoding="utf-8").split("## What would this fix save us?")[1]
    _, commands, _, shown, *_ = section.split("```")
    (command,) = [line for line in commands.replace("\\\n", "").splitlines() if "docs/examples" in line]
    result = run(*shlex.split(command, comments=True)[2:])
    assert result.exit_code == 0, result.output
    missing = [line for line in shown.splitlines()[1:] if line not in result.output.splitlines()]
    assert not missing
    assert "of 120 responses reach response_length (8192)" in result.output


def test_a_verl_config(tmp_path):
    config = tmp_path / "verl.yaml"
    config.write_text(
        "actor_rollout_ref:\n  rollout:\n    name: sglang\n    prompt_length: 1024\n    response_length: 4096\n"
        "    tensor_model_parallel_size: 4\n"
    )
    found = data("--from", config, *SEED)
    assert found["settings"]["budget"] == {"prompt_length": 1024, "response_length": 4096, "max_model_len": 32768}
    assert found["policies"]["deferred"]["overrun"] == 1024 - 136
    assert "verl's default" not in run("--from", config, *SEED).output
    config.write_text("actor_rollout_ref:\n  rollout:\n    name: sglang\n    prompt_length: 1024\n")
    settings = "prompt_length 1024, response_length 512 (unset: verl's default), sglang, 2 GPUs a replica"
    assert f"taken from {config}: {settings}" in run("--from", config, *SEED).output.splitlines()
    config.write_text("actor_rollout_ref:\n  rollout:\n    max_num_seqs: 32\n    max_num_batched_tokens: null\n")
    on_engine = ("--from", config, *SEED, "--policy", "cache-kept")
    assert "max_num_seqs 32 · max_num_batched_tokens 8,192" in run(*on_engine).output
    assert "max_num_seqs 64" in run(*on_engine, "--max-num-seqs", 64).output
    assert "max_num_seqs" not in run("--from", config, *SEED).output, "and nothing is put on an engine by a file alone"
    config.write_text("actor_rollout_ref:\n  rollout:\n    name: sglang\n    prompt_length: 1024\n")
    over = data("--from", config, *SEED, "--prompt-length", 512, "--response-length", 4096)
    assert over["policies"]["deferred"]["overrun"] == 512 - 136
    config.write_text(
        "actor_rollout_ref:\n  rollout:\n    prompt_length: ${oc.env:NOT_THERE}\n    response_length: 5\n"
    )
    result = run("--from", config, *SEED)
    assert result.exit_code == 2
    assert "prompt_length cannot be known" in result.stderr
    for text, says in (
        ("prompt_length: null", "expected an integer"),
        ("prompt_length: 0", "is 0"),
        ("name: other", "vllm, sglang, trtllm are known"),
        ("max_num_batched_tokens: 0", "Expected `int` >= 1 - at `$.max_num_batched_tokens` (it is 0)"),
    ):
        config.write_text(f"actor_rollout_ref:\n  rollout:\n    {text}\n")
        result = run("--from", config, *SEED)
        assert result.exit_code == 2
        assert says in " ".join(result.stderr.split())


def test_a_file_that_cannot_be_written(tmp_path):
    result = run(*SMALL, "--csv", tmp_path / "no" / "such.csv")
    assert result.exit_code == 2
    assert "No such file" in result.stderr


def test_csv(tmp_path):
    path = tmp_path / "rows.csv"
    assert run(*SMALL, "--csv", path, "--latency", "constant:12", "--batch", 64).exit_code == 0
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(row["policy"], row["update_every_tokens"]) for row in lines] == [
        ("deferred", "1000"),
        ("pinned", "1000"),
        ("deferred", "4000"),
        ("pinned", "4000"),
    ]
    for row in lines:
        assert int(row["decoded"]) == int(row["kept"]) + sum(int(row[loss]) for loss in LOSSES)
        assert float(row["engine_s"]) > 0
    for deferred, pinned in (lines[:2], lines[2:]):
        assert deferred["saved_decoded"] == ""
        assert int(pinned["saved_decoded"]) == int(deferred["decoded"]) - int(pinned["decoded"])
        assert float(pinned["saved_engine_s"]) > 0


# What is said of it


def test_what_is_saved_is_told_interval_by_interval_and_never_summed():
    few = run(*SMALL, "--lengths", "groups").output.splitlines()
    at = few.index("pinned instead of deferred, with an update every")
    assert [line.partition(":")[0] for line in few[at + 1 : at + 3]] == ["  1,000", "  4,000"]
    many = run(*SMALL[:2], "--lengths", "groups", "--update-every", "1000-9000/12").output
    assert (
        "pinned instead of deferred, at the best and the worst of 12 intervals: with an update every\n  1,000" in many
    )
    same = run(*SMALL, "--policy", "pinned", "--policy", "reference:pinned").output
    assert "reference:pinned instead of pinned, at each interval: as many tokens decoded, as many kept" in same


def test_an_overrun_that_is_capped_is_said_to_be():
    says = "at most prompt_length − prompt"
    assert says in run(*SMALL, "--lengths", "seed").output
    assert f"as it gets: {says} (2,048 − 136)" in run(*SEED).output
    assert says not in run(*SEED, "--policy", "pinned").output
    assert says not in run("--count", 30, "--update-every", 16_000, "--lengths", "groups").output
    trtllm = ("--lengths", "seed", "--count", 5, "--update-every", "1000,3000", "--dialect", "trtllm")
    assert says not in run(*trtllm, "--policy", "pinned").output, "there it is what is decoded up to the next abort"


def test_small_gpu_time_is_in_seconds():
    priced = ("--latency", "affine:12,40", "--batch", 64, "--gpus-per-replica", 8)
    assert re.search(r"\d GPU-seconds$", run(*SMALL, "--lengths", "groups", *priced).output, re.MULTILINE)
    assert "\nEngine time, summed over the replicas: a step takes 12 ms" in run(*SMALL, *priced).output


def test_what_is_prefilled_again_has_its_column_and_nothing_lost_no_paragraph():
    assert "prefilled again" in run(*SMALL, "--policy", "pinned").output
    calm = run("--count", 5, "--update-every", "never", "--policy", "pinned").output
    assert "prefilled again" not in calm
    assert "\n\n\n" not in calm


def test_prompts_that_queue_are_prefilled_for_the_first_time_once(tmp_path):
    file = tmp_path / "four.csv"
    file.write_text("prompt_tokens,response_tokens\n" + "1000,4000\n" * 4)
    lengths = ("--prompt-length", 1024, "--response-length", 4096, "--max-num-seqs", 1, "--spread", 0)
    found = data("--lengths", file, *lengths, "--update-every", "10s", "--policy", "pinned", "--policy", "wait")
    assert counts(found, "prefill")["pinned"] == (4000,)
    assert counts(found, "prefill", "recomputed_prefill")["wait"] == (4000, 0)


def test_replicas_are_as_many_as_the_gpus_of_a_verl_config_hold(tmp_path):
    config = tmp_path / "verl.yaml"

    def taken(trainer, rollout="tensor_model_parallel_size: 2", *more):
        config.write_text(
            f"trainer: {{{trainer}}}\nactor_rollout_ref:\n  rollout: {{name: vllm, prompt_length: 1024, {rollout}}}\n"
        )
        return data("--from", config, *SMALL[:4], *more)["settings"]["replicas"]

    assert taken("n_gpus_per_node: 8, nnodes: 1") == 4
    assert taken("n_gpus_per_node: 8, nnodes: 2") == 8
    assert taken("n_gpus_per_node: 8") == 4, "verl's nnodes is 1"
    assert taken("nnodes: 2") == 1
    assert taken("n_gpus_per_node: 8, nnodes: 1", "data_parallel_size: 4") == 1
    assert taken("n_gpus_per_node: 8, nnodes: 1", "nnodes: 3, tensor_model_parallel_size: 4") == 6, "its own nodes"
    assert taken("n_gpus_per_node: 8, nnodes: 1", "nnodes: 0, tensor_model_parallel_size: 4") == 2
    assert taken("n_gpus_per_node: 8, nnodes: 1", "tensor_model_parallel_size: 2", "--replicas", 3) == 3
    config.write_text(config.read_text().replace("nnodes: 1", "nnodes: 1, note: x"))
    assert "vllm, 4 replicas (8 GPUs, 2 for each)" in run("--from", config, *SMALL[:4]).output
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm \\\n"
        "  actor_rollout_ref.rollout.tensor_model_parallel_size=4 trainer.n_gpus_per_node=8 trainer.nnodes=2\n"
    )
    assert data("--from", script, *SMALL[:4])["settings"]["replicas"] == 4
    config.write_text("trainer: {n_gpus_per_node: 1}\nactor_rollout_ref:\n  rollout: {name: vllm}\n")
    result = run("--from", config, *SMALL[:4])
    assert result.exit_code == 2
    assert "nnodes × n_gpus_per_node is 1, and a replica needs 2 GPUs" in result.stderr


# Engines: caches, pauses, settings


def counts(found, *names):
    """Of each policy, at its last interval."""
    return {
        policy: tuple(ledger.get("by_update_interval", [ledger])[-1][name] for name in names)
        for policy, ledger in found["policies"].items()
    }


def test_a_cache_that_is_kept_saves_prefill_and_takes_over_stale_kv():
    policies = ("pinned", "cache-kept", "keep", "keep+cache-kept", "wait")
    found = data(*SEED, *[word for name in policies for word in ("--policy", name)])
    assert {(ledger["decoded"], ledger["kept"]) for ledger in found["policies"].values()} == {(8192, 8192)}
    resumed = sum(136 + aborted for aborted in (2000, 4000, 6000, 8000))
    blocks = sum((136 + aborted - 1) // 16 * 16 for aborted in (2000, 4000, 6000, 8000))
    assert counts(found, "recomputed_prefill", "preempted_prefill", "stale_kv") == {
        "pinned": (resumed, 0, 0),
        "cache-kept": (resumed - blocks, 0, blocks),
        "keep": (0, resumed, 0),
        "keep+cache-kept": (0, 0, resumed - 4),  # the last token of each is not in the KV yet
        "wait": (0, 0, 0),
    }
    table = run(*SEED, "--policy", "pinned", "--policy", "cache-kept").output
    assert "stale KV" in table
    assert f"with {blocks:,} tokens of KV taken over from older weights" in table
    assert "stale KV" not in run(*SEED).output


def test_waiting_has_a_price_too():
    arguments = ("--count", 20, "--update-every", 1000, "--policy", "pinned", "--policy", "wait")
    waited = data(*arguments)["policies"]["wait"]["by_update_interval"][0]
    assert waited["recomputed_prefill"] == 0
    assert waited["update_wait_s"] > 5
    assert "Weight updates were delayed on average by " in run(*arguments).output


def test_without_a_shortage_an_engine_decodes_what_the_constant_rate_does():
    computed = data(*SMALL, "--policy", "deferred", "--policy", "pinned")
    on_engine = data(*SMALL, "--policy", "deferred", "--policy", "pinned", "--max-num-seqs", "512")
    assert on_engine["policies"]["pinned"]["by_update_interval"][0]["how"] == "simulated"
    for name in ("deferred", "pinned"):
        of = ("decoded", "kept", "overrun")
        assert counts(computed, *of)[name] == pytest.approx(counts(on_engine, *of)[name], rel=0.01)


def test_a_small_pool_preempts():
    arguments = ("--count", 12, "--update-every", 4000, "--policy", "pinned", "--max-model-len", 10240)
    small = only_row(data(*arguments, "--num-gpu-blocks-override", 700), "pinned")
    large = only_row(data(*arguments, "--num-gpu-blocks-override", 7000), "pinned")
    assert small["preempted_prefill"] > 0 == large["preempted_prefill"]
    assert small["decoded"] == large["decoded"]


def test_updates_that_come_late_are_told():
    """Where requests queue for an engine, the gate waits for the first token of each."""
    arguments = ("--count", 12, "--update-every", 1000, "--max-num-seqs", 4)
    late = data(*arguments)["policies"]["pinned"]["by_update_interval"][0]["update_wait_s"]
    assert late > 1
    assert re.search(r"updates were delayed on average by [\d.]+ s \(deferred, pinned\): an", run(*arguments).output)
    assert "delayed" not in run(*arguments[:-1], 512).output


def test_groups_find_the_prompt_that_they_share():
    def cached(*more):
        arguments = ("--lengths", "groups", "--count", 32, "--update-every", "never", "--policy", "pinned")
        return only_row(data(*arguments, *more), "pinned")

    shared = cached("--block-size", 16)
    assert shared["cached_prefill"] > shared["prefill"], "seven of eight prompts, but for the rest of a block"
    alone = cached("--no-enable-prefix-caching")
    assert alone["cached_prefill"] == 0
    assert alone["prefill"] == shared["prefill"] + shared["cached_prefill"]


# Pictures


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize(
    "arguments", [SEED, SMALL, (*SMALL[:2], "--update-every", "never")], ids=["one", "load", "never"]
)
def test_plots(tmp_path, suffix, arguments):
    pytest.importorskip("matplotlib", reason="needs the extra plots (pip install '.[plots]')")
    path = tmp_path / f"waste.{suffix}"
    result = run(*arguments, "--plot", path)
    assert result.exit_code == 0, result.output
    assert path.read_bytes()[:5] == (b"\x89PNG\r" if suffix == "png" else b"<?xml")


@pytest.mark.parametrize(
    ("updates", "ticks", "unit"),
    [
        (["20s,60s"], ["20", "60"], "seconds between two weight updates"),
        (["1000", "20s"], ["10", "20"], "seconds between two weight updates"),
        (["1000,2000"], ["1,000", "2,000"], "tokens that a response decodes between two weight updates"),
    ],
)
def test_a_plot_has_its_intervals_in_the_unit_that_was_given(tmp_path, updates, ticks, unit):
    pytest.importorskip("matplotlib", reason="needs the extra plots (pip install 'rollcage[plots]')")
    path = tmp_path / "waste.svg"
    assert (
        run("--count", 5, "--plot", path, *[word for each in updates for word in ("--update-every", each)]).exit_code
        == 0
    )
    drawn = re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"))
    assert unit in drawn
    assert set(ticks) <= set(drawn)


def test_a_plot_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run(*SEED, "--plot", tmp_path / "waste.png")
    assert result.exit_code == 2
    assert "pip install matplotlib" in result.stderr


# What cannot be


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--policy", "none"), "unknown policy 'none'; known are deferred, pinned, partial-off"),
        (("--policy", "verl+not-sticky"), "verl drives its own balancer"),
        (("--policy", "keep+wait"), "keep and wait exclude each other"),
        (("--policy", "keep+partial-off"), "keep and partial-off exclude each other"),
        (("--policy", "keep", "--dialect", "sglang"), "pause_mode is keep: only vLLM has it"),
        (("--num-gpu-blocks-override", "50"), "num_gpu_blocks is 50: a request of max_model_len (32768 tokens) needs"),
        (("--max-num-seqs", "64", "--max-num-batched-tokens", "32"), "max_num_seqs is 64: more than"),
        (("--no-enable-chunked-prefill",), "with enable_chunked_prefill false it must be at least max_model_len"),
        (("--policy", "reference:none"), "unknown SUT"),
        (("--lengths", "none"), "known are seed"),
        (("--update-every", "90"), "leaves no time to decode"),
        (("--update-every", "90"), "at least 101 tokens are needed; did you mean 90s?"),
        (("--update-every", "60sec"), "or never; did you mean 60s?"),
        (("--update-every", "1 minute"), "or never; did you mean 60s?"),
        (("--update-every", "500ms"), "or never; did you mean 0.5s?"),
        (("--token-time", "25ms"), "'25ms' is not a number of seconds; did you mean 0.025?"),
        (("--pause", "2m"), "did you mean 120?"),
        (("--latency", "affine:12ms,40ns", "--batch", "4"), "did you mean affine:12,40?"),
        (("--update-every", "soon"), "a number of tokens"),
        (("--update-every", "10-5/3"), "goes upwards"),
        (("--latency", "h100", "--batch", "4"), "known are constant:MS"),
        (("--latency", "roofline:H100:Qwen2.5-7B", "--batch", "4"), "known are A100-SXM-80GB, H100-SXM"),
        (("--latency", "none.csv", "--batch", "4"), "none.csv: cannot be read"),
        (("--latency", "constant:5"), "--latency needs --batch"),
        (("--latency", "H100"), "H100: is not known"),
        (("--batch", "5"), "need --latency"),
        (("--plot", "waste.pdf"), ".pdf is not known"),
        (("--from", "none.yaml"), "no such file"),
        (("--prompt-tokens", "136"), "go together"),
        ((*SEED, "--lengths", "chat"), "excludes the options of a load"),
        ((*SEED, "--update-every", "5"), "exclude each other"),
        (("--prompt-tokens", "40000", "--abort-every-tokens", "5"), "longer than the context"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_2(arguments, says):
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_an_interrupt_leaves_what_there_is(monkeypatch):
    done = []
    whole = what_if.compared

    def interrupted(*arguments):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(whole(*arguments))
        return done[-1]

    monkeypatch.setattr(what_if, "compared", interrupted)
    result = run(*SMALL, "--json")
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    assert found["interrupted"] is True
    assert len(found["policies"]["deferred"]["by_update_interval"]) == 2
    assert len(found["policies"]["pinned"]["by_update_interval"]) == 1
    done.clear()
    assert "interrupted" in run(*SMALL).output


def test_a_computed_row_that_the_simulation_contradicts_is_not_shown(monkeypatch):
    whole = what_if.waste_of_all

    def wrong(*arguments, **settings):
        waste = whole(*arguments, **settings)
        waste.prefill_tokens += 1
        return waste

    monkeypatch.setattr(what_if, "waste_of_all", wrong)
    assert isinstance(run(*SMALL).exception, what_if.Disagreement)


ODD = ("", "-1", "0", "nan", "inf", "1e400", "9" * 30, "½", "60s", "/nonexistent/x", ".")
OPTIONS = [option.opts[0] for option in waste.params if isinstance(option, click.Option) and not option.is_flag]


@pytest.mark.parametrize("option", OPTIONS)
def test_an_odd_value_of_any_option_is_used_or_is_one_line(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in ODD:
        result = run("--count", "5", option, value)
        assert isinstance(result.exception, SystemExit | None), (value, result.exception)
        assert result.exit_code in (0, 2), value
        assert result.exit_code == 0 or not result.stdout, "half of an answer"


def test_a_run_that_is_interrupted_at_once_leaves_an_older_file_alone(monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(what_if, "compared", interrupted)
    path = tmp_path / "rows.csv"
    path.write_text("older")
    assert run(*SMALL, "--csv", path).exit_code == 130
    assert path.read_text() == "older"


@pytest.mark.parametrize(("option", "name"), [("--csv", "x.csv"), ("--plot", "x.png")])
def test_what_cannot_be_written_is_said_before_any_work(option, name, tmp_path, monkeypatch):
    monkeypatch.setattr(what_if, "compare", lambda *_: pytest.fail("worked"))
    (tmp_path / "folder.png").mkdir()
    for path in (tmp_path / "none" / name, tmp_path / "folder.png"):
        result = run("--count", "5", option, path)
        assert result.exit_code == 2
        assert f"{path}: cannot be written: " in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["folder.png"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has it")
def test_a_device_is_not_written_to():
    result = run("--count", "5", "--csv", "/dev/full")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("/dev/full: cannot be written: it is a device\n")
