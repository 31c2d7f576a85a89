"""Random scenarios for the scheduler: an engine, and what happens to it before which step.

The format is that of the recorded schedules (see `tests.conformance.record`), with what these lack: `pause` (`mode`)
and `resume` events, `reset_running_requests` in a cache reset, `min_tokens` in a request, and `async_scheduling`.
Output token p of the request with index i is ``100_000 * (i + 1) + p``.
"""

import random
from typing import Any

Scenario = dict[str, Any]

MAX_STEPS = 400


def output_base(index: int) -> int:
    return 100_000 * (index + 1)


def random_scenario(seed: int, number: int) -> Scenario:
    """The scenario of that number in the series of that seed."""
    return _Draw(random.Random(f"{seed}/{number}")).scenario(f"{seed}/{number}")


class _Draw:
    """Draws one scenario. Each is in a regime of its own, so that rare features meet often enough in some of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.longest_prompt = rng.choice((4, 20, 20, 100, 100, 1000, 4000))
        self.longest_output = rng.choice((3, 20, 60, 200))
        self.engine = self._engine()
        self.num_requests = rng.choice((1, 2, 3, 5, 8, 12, 20, 40))
        self.last_arrival = rng.choice((1, 1, 5, 20, 60))
        self.prompts: list[list[int]] = []
        self.shared_prefix = [9_000 + i for i in range(self.engine["max_model_len"])]
        self.share_of_related_prompts = rng.choice((0.0, 0.3, 0.8))
        self.share_of_stops = rng.choice((0.0, 0.25, 0.75))
        self.may_outgrow = rng.random() < 0.1

    def scenario(self, name: str) -> Scenario:
        adds = [self._add(index) for index in range(self.num_requests)]
        events = sorted([*adds, *self._aborts(adds), *self._resets(), *self._pauses()], key=lambda e: e["before_step"])
        return {"name": name, "engine": self.engine, "events": events}

    def _engine(self) -> dict[str, Any]:
        rng = self.rng
        block_size = rng.choice((1, 2, 4, 4, 8, 16, 16, 32, 128))
        max_model_len = rng.choice((16, 48, 64, 128, 300, 1024, 8192))
        max_num_seqs = rng.choice((1, 2, 3, 4, 6, 8, 16, 64))
        chunked = rng.random() < 0.75
        budget = rng.choice((8, 12, 16, 24, 32, 64, 200, 2048))
        # Enough for one request of full length, or for many; what is in between is where the pool runs short.
        longest = min(max_model_len, self.longest_prompt + self.longest_output)
        share = rng.choice((0.4, 1, 1, 1.2, 1.5, 1.5, 2, 2, 2, 3, 5, 40))
        usable = max(2, int(share * -(-longest // block_size)) + rng.randrange(3))
        # vLLM refuses such a small budget at start-up, but its scheduler can work with it.
        if rng.random() < 0.95:
            budget = max(budget, max_num_seqs)
        return {
            "block_size": block_size,
            "num_gpu_blocks": usable + 1,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": budget if chunked or rng.random() < 0.1 else max(budget, max_model_len),
            "max_model_len": max_model_len,
            "enable_chunked_prefill": chunked,
            "enable_prefix_caching": rng.random() < 0.75,
            "scheduling_policy": rng.choice(("fcfs", "priority")),
            "long_prefill_token_threshold": min(rng.choice((0, 0, 0, 1, 4, 8, 30)), max_model_len),
            "watermark": rng.choice((0.0, 0.0, 0.1, 0.25)),
            "scheduler_reserve_full_isl": rng.random() < 0.6,
            "async_scheduling": rng.random() < 0.3,
        }

    def _add(self, index: int) -> dict[str, Any]:
        rng = self.rng
        longest = min(self.longest_prompt, self.engine["max_model_len"] - 1)
        if not self.may_outgrow:
            longest = max(1, min(longest, self._pool_tokens() - 1))
        prompt = self._prompt(index, rng.randint(1, longest))
        self.prompts.append(prompt)
        max_tokens = rng.randint(1, self.longest_output)
        if not self.may_outgrow:
            max_tokens = max(1, min(max_tokens, self._pool_tokens() - len(prompt)))
        # Up to 0.28 vLLM never ends a request whose min_tokens reach past max_model_len.
        room = self.engine["max_model_len"] - len(prompt)
        return {
            "before_step": rng.randint(1, self.last_arrival),
            "op": "add",
            "id": f"r{index}",
            "index": index,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "min_tokens": rng.randint(0, min(max_tokens, room)) if rng.random() < 0.1 else 0,
            "stop_at": rng.randrange(max_tokens + 2) if rng.random() < self.share_of_stops else None,
            "priority": rng.randrange(3),
            "arrival": rng.choice((index, index, 0)),
        }

    def _prompt(self, index: int, length: int) -> list[int]:
        rng = self.rng
        own = [1_000 * (index + 1) + i for i in range(length)]
        if rng.random() >= self.share_of_related_prompts:
            return own
        kind = rng.choice(("prefix", "same", "extends", "ahead"))
        if kind == "prefix" or not self.prompts:
            shared = rng.randint(0, length)
            return self.shared_prefix[:shared] + own[shared:]
        earlier = rng.randrange(len(self.prompts))
        if kind == "same":
            prompt = list(self.prompts[earlier])
        else:
            # The prompt and output of another request, be it generated by then or not, and sometimes more.
            outputs = range(output_base(earlier), output_base(earlier) + rng.randint(1, self.longest_output))
            prompt = [*self.prompts[earlier], *outputs]
            if kind == "extends":
                prompt += own[: rng.randrange(8)]
        return prompt[: max(length, len(self.prompts[earlier]))] if rng.random() < 0.3 else self._fitting(prompt)

    def _fitting(self, prompt: list[int]) -> list[int]:
        longest = self.engine["max_model_len"] - 1
        return prompt[: longest if self.may_outgrow else max(1, min(longest, self._pool_tokens() - 1))]

    def _pool_tokens(self) -> int:
        return (self.engine["num_gpu_blocks"] - 1) * self.engine["block_size"]

    def _aborts(self, adds: list[dict[str, Any]]) -> list[dict[str, Any]]:
        count = self.rng.choice((0, 0, 1, len(adds) // 4, len(adds)))
        ids = [self.rng.choice(adds)["id"] for _ in range(count)]
        return [{"before_step": self._any_step(), "op": "abort", "id": id_} for id_ in ids]

    def _resets(self) -> list[dict[str, Any]]:
        return [
            {
                "before_step": self._any_step(),
                "op": "reset_prefix_cache",
                "reset_running_requests": self.rng.random() < 0.6,
            }
            for _ in range(self.rng.choice((0, 0, 1, 3, 10)))
        ]

    def _pauses(self) -> list[dict[str, Any]]:
        events = []
        for _ in range(self.rng.choice((0, 0, 0, 1, 3))):
            step, mode = self._any_step(), self.rng.choice(("abort", "wait", "keep"))
            events.append({"before_step": step, "op": "pause", "mode": mode})
            events.append({"before_step": step + self.rng.randint(0, 12), "op": "resume"})
        # Whatever overlaps, in the end nothing is paused.
        return [*events, {"before_step": 100, "op": "resume"}] if events else []

    def _any_step(self) -> int:
        return 1 + int(90 * self.rng.random() ** 2)
