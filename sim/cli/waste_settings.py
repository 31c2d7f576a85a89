"""What `rollcage waste` compares: the command line, over a verl config, over a named load's settings, over defaults."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import UNSET

from sim.case import Budget, EngineSettings, ServerSettings
from sim.cli.options import seconds_of
from sim.cli.waste_options import Given
from sim.schema import MAX_TOKENS
from sim.sut.registry import load_sut
from sim.waste import cost, lengths, read_verl, variants
from sim.waste.loads import DEFAULT_COUNT, DEFAULT_LOAD, LOADS, SUFFIXES
from sim.waste.what_if import ARRIVAL_TICK_TOKENS, Conditions, WhatIfError, check_interval

_DEFAULT_UPDATES = ("1000", "2000", "4000", "8000", "16000", "32000")


class Settings:
    """What was given, with what follows from it."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.variants = [variants.parse(name) for name in dict.fromkeys(given.variants or variants.DEFAULT)]
        self.suts = {variant.name: load_sut(variant.sut).key for variant in self.variants}
        """What is driven, with its version: loaded before any work is done."""
        self.from_config = None if given.source is None else read_verl.read(given.source, os.environ)
        self.named = LOADS.get(given.load or DEFAULT_LOAD)
        self.conditions = self._conditions()
        self.latency: cost.Spelled | None = None
        self.price = self._price()

    def _length(self, name: str, default: int | None = None) -> int | None:
        length: int | None = getattr(self.given, name)
        return getattr(self.from_config or self.named, name, default) if length is None else length

    def _conditions(self) -> Conditions:
        given, from_config = self.given, self.from_config
        prompt_length, response_length = self._length("prompt_length", 2048), self._length("response_length", 8192)
        context = self._length("max_model_len")
        assert prompt_length is not None
        assert response_length is not None
        positions = max(32_768, prompt_length + response_length, context or 0)
        server = ServerSettings(
            dialect=given.dialect or (from_config.dialect if from_config else "vllm"),
            token_time_s=given.token_time_s,
            engine=EngineSettings(**(from_config.engine if from_config else {}) | given.of_engine),
        )
        return Conditions(
            budget=Budget(prompt_length, response_length, UNSET if context is None else context, positions),
            server=server,
            replicas=given.replicas or (from_config and from_config.replicas) or 1,
            pause_s=given.pause_s,
            spread_s=given.spread_s,
            seed=given.seed,
            simulate=given.simulate,
            with_engine=bool(given.of_engine) or any(variant.needs_engine for variant in self.variants),
        )

    def _price(self) -> cost.Price | None:
        given = self.given
        if given.latency is None:
            if given.batch or given.gpus_per_replica:
                raise cost.LatencyError(
                    "--batch and --gpus-per-replica need --latency: without a model there is no time"
                )
            return None
        self.latency = cost.parse(given.latency)
        if given.batch is None and given.prompt_tokens is None:
            raise cost.LatencyError("--latency needs --batch: how many responses a replica decodes at once")
        gpus = given.gpus_per_replica or (self.from_config and self.from_config.gpus_per_replica) or self.latency.gpus
        return cost.Price(self.latency.latency, given.batch or 1, gpus)

    # A load

    def load(self) -> lengths.Lengths:
        """The responses: of a file, or of a named load."""
        given, budget = self.given, self.conditions.budget
        # verl leaves out prompts beyond prompt_length, and a case has none beyond the context.
        most_prompt = min(budget.prompt_length, budget.context_tokens)
        name = given.load
        if name is not None and (Path(name).suffix.lower() in SUFFIXES or Path(name).exists()):
            load = lengths.fitting(lengths.read(Path(name), budget.response_length), most_prompt, name)
            return load if given.count is None else lengths.resized(load, given.count, given.seed)
        count = given.count or DEFAULT_COUNT
        return lengths.named(name or DEFAULT_LOAD, count, given.seed, most_prompt=most_prompt)

    def intervals(self) -> list[int | None]:
        """Between updates, in token times; seconds are rounded to whole ticks of arrival."""
        texts = (part.strip() for text in self.given.updates or _DEFAULT_UPDATES for part in text.split(","))
        return list(dict.fromkeys(interval for text in texts for interval in _intervals(text, self.conditions)))

    @property
    def spelled_token_time_s(self) -> float | None:
        """The token time, where the user thinks in seconds and wants intervals so."""
        in_seconds = any(part.strip().endswith("s") for text in self.given.updates for part in text.split(","))
        return self.conditions.server.token_time_s if in_seconds else None

    # What is said of it

    @property
    def capped(self) -> list[str]:
        """Variants whose overrun ends at the server's own default, prompt_length + response_length − prompt."""
        ignores_limits = not self.conditions.server.rules.limit_keys
        return [each.name for each in self.variants if each.builtin_client == "deferred" or not ignores_limits]

    @property
    def about(self) -> str:
        """The settings in one line, and the engines' in another."""
        budget, server = self.conditions.budget, self.conditions.server
        lengths_and_grants = (
            f"prompt_length {budget.prompt_length} · response_length {budget.response_length} · "
            f"max_model_len {budget.context_tokens} · {server.dialect} grants"
        )
        for released in dict.fromkeys(key for key in self.suts.values() if "==" in key):
            lengths_and_grants += f" · {released}"
        if not self.conditions.with_engine or server.engine is None:
            return lengths_and_grants
        config = server.engine.config(budget.context_tokens)
        return (
            f"{lengths_and_grants}\nengines of {config.usable_blocks:,} KV blocks of {config.block_size} tokens · "
            f"max_num_seqs {config.max_num_seqs:,} · max_num_batched_tokens {config.max_num_batched_tokens:,} · "
            f"prefix caching {'on' if config.enable_prefix_caching else 'off'}"
        )

    @property
    def taken(self) -> str | None:
        """What was taken from the config, in one line."""
        given, found = self.given, self.from_config
        if found is None:
            return None
        parts = []
        for name in ("prompt_length", "response_length", "max_model_len"):
            length = getattr(found, name)
            if getattr(given, name) is None and length is not None:
                parts.append(f"{name} {length}" + " (unset: verl's default)" * (name in found.unset))
        if given.dialect is None:
            parts.append(found.dialect)
        if self.conditions.with_engine:
            parts += [
                f"{name} {value}" + " (unset: verl's default)" * (name in found.unset)
                for name, value in found.engine.items()
                if name not in given.of_engine
            ]
        if given.replicas is None and found.replicas is not None:
            replicas = f"{found.replicas} replica{'s' * (found.replicas > 1)}"
            parts.append(f"{replicas} ({found.gpus} GPUs, {found.gpus_per_replica} for each)")
        elif given.gpus_per_replica is None:
            parts.append(f"{found.gpus_per_replica} GPUs a replica")
        return f"taken from {given.source}: {', '.join(parts)}" if parts else None


def _intervals(text: str, conditions: Conditions) -> Iterator[int | None]:
    """Those that one part of `--update-every` names: `2000`, `60s`, `500-8000/20` or `never`."""
    if text == "never":
        yield None
        return
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?)/(\d+))?(s?)", text)
    if match is None:
        meant_s = seconds_of(text)
        guess = "" if meant_s is None else f"; did you mean {meant_s:.12g}s?"
        raise WhatIfError(
            f"--update-every {text}: a number of tokens (2000), of seconds (60s), a range of N (500-8000/20), or never"
            + guess
        )
    first, last, steps, unit = match.groups()
    start, end, count = float(first), float(last or first), int(steps or 1)
    if not 1 <= count <= 1000 or (last is not None and count < 2) or end < start:
        raise WhatIfError(f"--update-every {text}: a range goes upwards, in 2 to 1000 intervals")
    values = [start + (end - start) * step / max(1, count - 1) for step in range(count)]
    if unit:
        values = [value / conditions.server.token_time_s for value in values]
    tick = ARRIVAL_TICK_TOKENS
    whole = [round(value / tick) * tick if unit or last is not None else int(value) for value in values]
    if any(not 1 <= value <= MAX_TOKENS for value in whole):
        raise WhatIfError(f"--update-every {text}: is {whole[0]} tokens; 1 to {MAX_TOKENS} are possible")
    if not unit and last is None:
        try:
            check_interval(conditions, whole[0])
        except WhatIfError as error:
            raise WhatIfError(f"--update-every {text}: {error}; did you mean {text}s?") from None
    yield from whole
