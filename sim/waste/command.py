"""`rollcage waste`: exit 0 compared, 2 unusable arguments, 130 interrupted (with what there is).

The options alone, so that `rollcage --help` answers at once; `sim.waste.run` does the work.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sim.cli.durations import Seconds
from sim.schema import MAX_TIME_S, MAX_TOKENS
from sim.waste import policies
from sim.waste.loads import DEFAULT_COUNT, DEFAULT_LOAD, LOADS, SUFFIXES

UNUSABLE = 2
_Tokens = click.IntRange(1, MAX_TOKENS)


def _group(*options: Callable[..., Any]) -> Callable[..., Any]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_what_is_compared = _group(
    click.option(
        "--policy",
        "policy_names",
        multiple=True,
        metavar="NAME",
        help=f"What to compare; repeatable, the first is what the others are held against (default: "
        f"{', '.join(policies.DEFAULT)}). {', '.join(policies.CLIENTS)} or a SUT (verl, MODULE:FACTORY), with "
        f"{', '.join('+' + name for name in policies.MODIFIERS)}.",
    ),
    click.option(
        "--update-every",
        "updates",
        multiple=True,
        metavar="TOKENS|SECONDSs|never",
        help="Weight-update interval: in tokens that a running response decodes (2000), or in seconds (60s); "
        "repeatable, and A-B/N for N intervals from A to B.",
    ),
)
_one_response = _group(
    click.option("--prompt-tokens", type=_Tokens, metavar="N", help="One response only: the tokens of its prompt."),
    click.option(
        "--abort-every-tokens", type=_Tokens, metavar="N", help="One response only: aborted after every so many tokens."
    ),
    click.option(
        "--stops-after", type=_Tokens, metavar="N", help="One response only: where the model stops (default: never)."
    ),
)
_load = _group(
    click.option(
        "--lengths",
        "load_name",
        metavar="FILE|NAME",
        help=f"Pairs of prompt and response tokens: a file ({', '.join(SUFFIXES)}) or one of "
        f"{', '.join(LOADS)} (default: {DEFAULT_LOAD}).",
    ),
    click.option("--prompts", metavar="DIST", help="Prompt lengths: 512, uniform:100,900, lognormal:MEAN,SIGMA."),
    click.option("--responses", metavar="DIST", help="Response lengths as the model would stop by itself."),
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
)
_settings = _group(
    click.option(
        "--from", "source", type=click.Path(path_type=Path), metavar="FILE", help="Settings of a verl config."
    ),
    click.option("--prompt-length", type=_Tokens, metavar="N", help="verl's rollout.prompt_length (2048)."),
    click.option("--response-length", type=_Tokens, metavar="N", help="verl's rollout.response_length (8192)."),
    click.option(
        "--max-model-len", type=_Tokens, metavar="N", help="The context (the larger of 32768 and both lengths)."
    ),
    click.option("--dialect", type=click.Choice(("vllm", "sglang", "trtllm")), help="Whose grants (vllm)."),
    click.option("--replicas", type=click.IntRange(1, 1024), metavar="N", help="Servers (the config's, or 1)."),
    click.option(
        "--update-mode",
        type=click.Choice(policies.UPDATE_MODES),
        default="colocated",
        help="separate: half of the replicas leave for it.",
    ),
    click.option(
        "--token-time",
        "token_time_s",
        type=Seconds(1e-6, 100),
        metavar="SECONDS",
        default=0.01,
        help="Of a response, however many there are; of a step, on engines (0.01).",
    ),
    click.option(
        "--prefill-time",
        "prefill_s",
        type=Seconds(0, 1000),
        metavar="SECONDS",
        default=0.0,
        help="Of an attempt; of a step that computes prompts, on engines (0).",
    ),
    click.option(
        "--pause",
        "pause_s",
        type=Seconds(0, 1e5),
        metavar="SECONDS",
        default=1.0,
        help="How long a weight update takes (1).",
    ),
)
_engine = _group(
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
)
_price = _group(
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
)
_output = _group(
    click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png|svg", help="Draw it (needs matplotlib)."),
    click.option("--csv", "csv_path", type=click.Path(path_type=Path), metavar="FILE", help="The rows as CSV."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output."),
    click.option("--simulate", is_flag=True, help="Simulate everything, even where computing it is exact."),
)


@click.command()
@_what_is_compared
@_one_response
@_load
@_settings
@_engine
@_price
@_output
def waste(**given: Any) -> None:
    """How many decoded tokens are thrown away with these settings, and what would a fix save?

    \b
    rollcage waste                                      a first answer, on a built-in load
    rollcage waste --from verl.yaml --lengths mine.csv --update-every 60s
    rollcage waste --prompt-tokens 136 --abort-every-tokens 2000     one response

    Losses are decoded tokens, each under one name: duplicate, zombie, dropped, overrun, sliced, discarded, in flight.
    """
    from sim.waste.run import ERRORS, Options, run

    try:
        run(Options(given))
    except ERRORS as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(UNUSABLE)
    except BrokenPipeError:
        raise  # whoever read it has enough, which click knows of
    except OSError as error:
        click.echo(f"error: {error.filename or 'what was to be written'}: {error.strerror}", err=True)
        sys.exit(UNUSABLE)
