"""The options of `rollcage waste`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from sim.cli.options import DIALECT, Seconds, plugins
from sim.schema import MAX_TIME_S, MAX_TOKENS
from sim.waste import variants
from sim.waste.loads import DEFAULT_COUNT, DEFAULT_LOAD, LOADS, SUFFIXES

_Tokens = click.IntRange(1, MAX_TOKENS)


@dataclass(frozen=True)
class Given:
    """What was given on the command line; None, or nothing, where an option was not."""

    variants: tuple[str, ...]
    updates: tuple[str, ...]
    prompt_tokens: int | None
    abort_every_tokens: int | None
    load: str | None
    count: int | None
    spread_s: float | None
    seed: int
    source: Path | None
    prompt_length: int | None
    response_length: int | None
    max_model_len: int | None
    dialect: str | None
    replicas: int | None
    token_time_s: float
    pause_s: float
    num_gpu_blocks: int | None
    block_size: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    enable_prefix_caching: bool | None
    enable_chunked_prefill: bool | None
    latency: str | None
    batch: int | None
    gpus_per_replica: int | None
    plot: Path | None
    csv: Path | None
    as_json: bool
    simulate: bool

    @property
    def of_engine(self) -> dict[str, Any]:
        """Fields of `EngineSettings`: any that is given puts the servers on simulated engines."""
        named = {name: getattr(self, name) for name in _OF_ENGINE}
        return {name: value for name, value in named.items() if value is not None}


_OF_ENGINE = (
    "num_gpu_blocks",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "enable_chunked_prefill",
)


_OPTIONS = (
    # What is compared
    click.option(
        "--client",
        "--policy",
        "variants",
        multiple=True,
        metavar="NAME",
        help=f"What to compare; repeatable, the first is what the others are held against (default: "
        f"{', '.join(variants.DEFAULT)}; --policy is the old name). "
        f"{', '.join(variants.CLIENTS)} or a SUT (verl, MODULE:FACTORY), with "
        f"{', '.join('+' + name for name in variants.MODIFIERS)}.",
    ),
    click.option(
        "--update-every",
        "updates",
        multiple=True,
        metavar="TOKENS|SECONDSs|never",
        help="Weight-update interval: in tokens that a running response decodes (2000), or in seconds (60s); "
        "repeatable, and A-B/N for N intervals from A to B.",
    ),
    # One response
    click.option("--prompt-tokens", type=_Tokens, metavar="N", help="One response only: the tokens of its prompt."),
    click.option(
        "--abort-every-tokens", type=_Tokens, metavar="N", help="One response only: aborted after every so many tokens."
    ),
    # A load
    click.option(
        "--lengths",
        "load",
        metavar="FILE|NAME",
        help=f"Pairs of prompt and response tokens: a file ({', '.join(SUFFIXES)}) or one of "
        f"{', '.join(LOADS)} (default: {DEFAULT_LOAD}).",
    ),
    click.option(
        "--count",
        type=click.IntRange(1, 10_000_000),
        metavar="N",
        help=f"Responses (default: the file's, {DEFAULT_COUNT}).",
    ),
    click.option(
        "--spread",
        "spread_s",
        type=Seconds(0, MAX_TIME_S),
        help="Over how long they arrive, evenly (default: whole update intervals).",
    ),
    click.option("--seed", type=click.IntRange(0, 2**32), metavar="N", default=0, help="Of the draws (0)."),
    # Settings
    click.option(
        "--from", "source", type=click.Path(path_type=Path), metavar="FILE", help="Settings of a verl config."
    ),
    click.option("--prompt-length", type=_Tokens, metavar="N", help="verl's rollout.prompt_length (2048)."),
    click.option("--response-length", type=_Tokens, metavar="N", help="verl's rollout.response_length (8192)."),
    click.option(
        "--max-model-len", type=_Tokens, metavar="N", help="The context (the larger of 32768 and both lengths)."
    ),
    click.option("--dialect", type=DIALECT, help="Whose grants (vllm)."),
    click.option("--replicas", type=click.IntRange(1, 1024), metavar="N", help="Servers (the config's, or 1)."),
    click.option(
        "--token-time",
        "token_time_s",
        type=Seconds(1e-6, 100),
        metavar="SECONDS",
        default=0.01,
        help="Of a response, however many there are; of a step, on engines (0.01).",
    ),
    click.option(
        "--pause",
        "pause_s",
        type=Seconds(0, 1e5),
        metavar="SECONDS",
        default=1.0,
        help="How long a weight update takes (1).",
    ),
    # Engines
    click.option(
        "--num-gpu-blocks-override",
        "num_gpu_blocks",
        type=click.IntRange(2, MAX_TOKENS),
        metavar="N",
        help="KV blocks of a replica's engine (as a GPU with 30 GB to spare has for a 7B model). This and the next "
        "ones, vLLM's by name, simulate engines with steps and KV, as do the policies on the cache and on pauses.",
    ),
    click.option("--block-size", type=click.IntRange(1, 65_536), metavar="N", help="Tokens of a KV block (16)."),
    click.option("--max-num-seqs", type=_Tokens, metavar="N", help="Requests that run at once (1024)."),
    click.option("--max-num-batched-tokens", type=_Tokens, metavar="N", help="Tokens that a step computes (8192)."),
    click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=None, help="(on)"),
    click.option("--enable-chunked-prefill/--no-enable-chunked-prefill", default=None, help="(on)"),
    # The price
    click.option(
        "--latency",
        metavar="MODEL",
        help="What a step costs: constant:MS, affine:MS,NS with NS for each cached token, roofline:HARDWARE:MODEL, or "
        "a FILE.csv of measured steps (batch, tokens, seconds). An unknown one lists the known.",
    ),
    click.option(
        "--batch", type=click.IntRange(1, 100_000), metavar="N", help="Responses that a replica decodes at once."
    ),
    click.option(
        "--gpus-per-replica",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="For GPU-hours (default: the config's, or the roofline's).",
    ),
    # Output
    click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png|svg", help="Draw it (needs matplotlib)."),
    click.option("--csv", type=click.Path(path_type=Path), metavar="FILE", help="The rows as CSV."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output."),
    click.option("--simulate", is_flag=True, help="Simulate everything, even where computing it is exact."),
    plugins,
)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All of them, in this order in the help."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
