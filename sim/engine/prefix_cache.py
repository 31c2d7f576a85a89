"""The prefix cache: full KV blocks by what is in them, and the order in which the free ones among them are evicted.

vLLM keeps one object and one hash a block. Here the unit is a *run* of blocks, since nearly everything that is cached
is consecutive: token ids that count up, as a prompt that is a range does, and all generated tokens.

- A *chain* is content: a block, and after it each one whose tokens count on from the last. A block is named by its
  chain and its position in it, so that an output of any length has one name, known before it is generated.
- A *run* is memory: the blocks start to end of a chain, where they were computed once and are held by the same
  requests. Of several runs with the same block a lookup finds the one that was cached first.
- A steady request (see `sim.engine.steady`) fills one block after the other. That is written down no earlier than
  somebody looks at its chain or it stops being steady; until then it is *growing*.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from sim.engine.request import Request
from sim.engine.steady import Decodes
from sim.tokens import TokenIds

NO_CHAIN = 0


class BlockRun:
    """Blocks start to end (exclusive) of a chain. Compared by identity: two runs may hold the same tokens."""

    __slots__ = ("chain", "end", "holders", "next", "previous", "start", "weight_version")

    def __init__(self, chain: "Chain | None", start: int, end: int, weight_version: int) -> None:
        self.chain = chain
        self.start = start
        self.end = end
        self.holders: dict[Request, None] = {}
        """The requests that hold all of it. A run that nobody holds is in the free queue."""
        self.weight_version = weight_version
        """Oldest weights that any of its tokens was computed with."""
        self.previous = self.next = self

    def __len__(self) -> int:
        return self.end - self.start


class Chain:
    __slots__ = ("growing", "name", "runs")

    def __init__(self, name: int) -> None:
        self.name = name
        self.runs: list[BlockRun] = []
        """Of two with the same block, the one that cached it first comes first."""
        self.growing: dict[Request, None] = {}
        """Steady requests that fill blocks of this chain."""


class Hit(NamedTuple):
    """Blocks start to end of a run."""

    run: BlockRun
    start: int
    end: int


NO_HITS: Sequence[Hit] = ()


class FreeQueue:
    """Runs that nobody holds, the next to be evicted in front. A run was freed last block first, so it is evicted from
    its end. One that has left knows its neighbours no more: it would keep them, and they theirs, and so for ever."""

    def __init__(self) -> None:
        self._ends = BlockRun(None, 0, 0, 0)
        """Before the first and after the last."""
        self.num_blocks = 0

    def __iter__(self) -> Iterator[BlockRun]:
        run = self._ends.next
        while run is not self._ends:
            yield run
            run = run.next

    @property
    def first(self) -> BlockRun:
        return self._ends.next

    def append(self, run: BlockRun) -> None:
        self._link(run, self._ends)
        self.num_blocks += run.end - run.start

    def remove(self, run: BlockRun) -> None:
        run.previous.next, run.next.previous = run.next, run.previous
        run.previous = run.next = self._ends
        self.num_blocks -= run.end - run.start

    def cut(self, lower: BlockRun, upper: BlockRun) -> None:
        """Note that what was one run in the queue is two now; the upper goes first."""
        self._link(upper, lower)

    def clear(self) -> None:
        for run in list(self):
            run.previous = run.next = self._ends
        self._ends.previous = self._ends.next = self._ends
        self.num_blocks = 0

    def _link(self, run: BlockRun, following: BlockRun) -> None:
        before = following.previous
        run.previous, run.next = before, following
        before.next = following.previous = run


class PrefixCache:
    def __init__(self, block_size: int, decodes: Decodes) -> None:
        self.block_size = block_size
        self.weight_version = 0
        """Version of the weights that compute new KV."""
        self.free_queue = FreeQueue()
        self.num_shared_references = 0
        """References to blocks beyond the first of each: what sharing saves, in blocks."""
        self.chains: dict[int, Chain] = {}
        self.held: dict[Request, list[BlockRun]] = {}
        """What each running request holds, from its first block on."""
        self._decodes = decodes
        self._growing: dict[Request, Chain] = {}

    # --- looking ------------------------------------------------------------------------------------------------------

    def find(self, request: Request, num_blocks: int) -> list[Hit]:
        """The longest run of cached blocks among the first num_blocks of the request."""
        hits: list[Hit] = []
        for name, position, end in self._places(request, 0, num_blocks):
            chain = self.chains.get(name)
            if chain is None:
                break
            if chain.growing:
                self._settle(chain)
            while position < end:
                hit = _first_cached(chain, position, end)
                if hit is None:
                    return hits
                hits.append(hit)
                position = hit.end
        return hits

    def may_find_more(self, request: Request, num_blocks_found: int, num_blocks: int) -> bool:
        """Whether a lookup that ended where it did may get further as others decode on."""
        for name, _, _ in self._places(request, num_blocks_found, min(num_blocks, num_blocks_found + 1)):
            return name in self.chains and bool(self.chains[name].growing)
        return False

    def next_evicted(self) -> list[tuple[int, int]]:
        """The free blocks in the order of eviction, by the name of the chain and the position in it."""
        return [
            (run.chain.name, position)
            for run in self.free_queue
            if run.chain is not None
            for position in reversed(range(run.start, run.end))
        ]

    def references(self) -> dict[tuple[int, int], list[int]]:
        """How many hold each cached block, by the name of its chain and its position in it; of several with the same
        content, the one a lookup finds comes first."""
        counts: dict[tuple[int, int], list[int]] = {}
        for name, chain in self.chains.items():
            for run in chain.runs:
                for position in range(run.start, run.end):
                    counts.setdefault((name, position), []).append(len(run.holders))
        return counts

    # --- holding and letting go ---------------------------------------------------------------------------------------

    def hold(self, request: Request, hits: Sequence[Hit]) -> int:
        """Let a request that holds nothing begin with these; returns how many of the blocks leave the free queue."""
        runs, num_free_blocks = [], 0
        for run, start, end in reversed(hits):  # so that cutting a run leaves the hits before it as they are
            if end < run.end:
                self._cut(run, end)
            if run.start < start:
                run = self._cut(run, start)
            if run.holders:
                self.num_shared_references += end - start
            else:
                self.free_queue.remove(run)
                num_free_blocks += end - start
            run.holders[request] = None
            request.num_cached_blocks += end - start
            runs.append(run)
        runs.reverse()
        self.held[request] = runs
        return num_free_blocks

    def extend(self, request: Request, num_blocks: int) -> None:
        """Let the cache know the first num_blocks blocks of a request."""
        if num_blocks <= request.num_cached_blocks:
            return
        for name, start, end in self._places(request, request.num_cached_blocks, num_blocks):
            chain = self.chains.get(name)
            if chain is None:
                chain = self.chains[name] = Chain(name)
            elif chain.growing:
                self._settle(chain)
            self._append(request, chain, start, end)

    def release(self, request: Request) -> int:
        """Take back all that a request holds, last block first: the end of a prefix is evicted before its start.
        Returns how many of the blocks others still hold."""
        num_shared_blocks = 0
        for run in reversed(self.held.pop(request)):
            del run.holders[request]
            if run.holders:
                num_shared_blocks += run.end - run.start
            else:
                self.free_queue.append(run)
        self.num_shared_references -= num_shared_blocks
        request.num_cached_blocks = 0
        return num_shared_blocks

    def evict(self, num_blocks: int) -> None:
        """Forget the blocks at the front of the free queue."""
        while num_blocks:
            run = self.free_queue.first
            assert run.chain is not None, "evicted more than there is"
            assert not run.holders, "evicted a block that is in use"
            num_evicted = min(num_blocks, run.end - run.start)
            num_blocks -= num_evicted
            if num_evicted < run.end - run.start:
                run.end -= num_evicted
                self.free_queue.num_blocks -= num_evicted
            else:
                self.free_queue.remove(run)
                run.chain.runs.remove(run)
                self._forget_if_empty(run.chain)

    def clear(self) -> None:
        """Forget everything. Nothing may be held."""
        assert not self.held, "forgot blocks that are in use"
        self.free_queue.clear()
        for chain in self.chains.values():
            chain.runs.clear()  # a run knows its chain, and nobody collects cycles while a world runs
        self.chains.clear()

    # --- steady requests ----------------------------------------------------------------------------------------------

    def start_growing(self, request: Request) -> None:
        """A request became steady: from now on it fills blocks without a word."""
        first_block, name = _chains(request, self.block_size)[-1]
        assert first_block <= request.num_cached_blocks, "a steady request has computed its prompt"
        chain = self.chains.get(name)
        if chain is None:
            chain = self.chains[name] = Chain(name)
        chain.growing[request] = None
        self._growing[request] = chain

    def stop_growing(self, request: Request) -> None:
        chain = self._growing.pop(request)
        self._settle(chain)
        del chain.growing[request]
        self._forget_if_empty(chain)

    def settle(self) -> None:
        """Write down all blocks that steady requests have filled by now."""
        for chain in dict.fromkeys(self._growing.values()):
            self._settle(chain)

    def _settle(self, chain: Chain) -> None:
        growing = list(chain.growing)
        if len(growing) > 1:
            # All move at the same pace, so whoever is ahead fills each block first.
            growing.sort(key=lambda r: (-r.num_computed_tokens - self._decodes.progress(r), r.running_order))
        for request in growing:
            num_blocks = self._decodes.num_scheduled_tokens(request) // self.block_size
            num_new_blocks = num_blocks - request.num_cached_blocks
            if num_new_blocks:
                position = request.num_cached_blocks - _chains(request, self.block_size)[-1][0]
                self._append(request, chain, position, position + num_new_blocks)

    # --- chains and runs ----------------------------------------------------------------------------------------------

    def _places(self, request: Request, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Where the blocks start to end of a request are: a chain's name, and the positions in it from and to."""
        chains = _chains(request, self.block_size)
        number = bisect_right(chains, start, key=lambda chain: chain[0]) - 1 if start else 0
        while start < end:
            first_block, name = chains[number]
            number += 1
            stop = min(end, chains[number][0]) if number < len(chains) else end
            yield name, start - first_block, stop - first_block
            start = stop

    def _append(self, request: Request, chain: Chain, start: int, end: int) -> None:
        """Cache blocks start to end of a chain, as the next of a request."""
        request.num_cached_blocks += end - start
        if request.open_block_weight_version is not None:
            self._add(request, chain, start, start + 1, request.open_block_weight_version)
            request.open_block_weight_version = None
            start += 1
        if start < end:
            self._add(request, chain, start, end, self.weight_version)

    def _add(self, request: Request, chain: Chain, start: int, end: int, weight_version: int) -> None:
        held = self.held[request]
        if held:
            last = held[-1]
            if (
                last.chain is chain
                and last.end == start
                and last.weight_version == weight_version
                and len(last.holders) == 1
                and _none_after(last, start, end)
            ):
                last.end = end
                return
        run = BlockRun(chain, start, end, weight_version)
        run.holders[request] = None
        held.append(run)
        chain.runs.append(run)

    def _cut(self, run: BlockRun, position: int) -> BlockRun:
        """Make two runs of one; returns the upper, the other keeps being run."""
        assert run.chain is not None, "cut the ends of the queue"
        assert run.start < position < run.end, "cut outside"
        upper = BlockRun(run.chain, position, run.end, run.weight_version)
        upper.holders.update(run.holders)
        run.end = position
        run.chain.runs.insert(run.chain.runs.index(run) + 1, upper)
        for holder in run.holders:
            held = self.held[holder]
            held.insert(held.index(run) + 1, upper)
        if not run.holders:
            self.free_queue.cut(run, upper)
        return upper

    def _forget_if_empty(self, chain: Chain) -> None:
        if not chain.runs and not chain.growing:
            del self.chains[chain.name]


def _first_cached(chain: Chain, position: int, end: int) -> Hit | None:
    """The block at position, and as many after it as the same run was the first to cache."""
    for run in chain.runs:
        if run.start <= position < run.end:
            return Hit(run, position, min(run.end, end))
        if position < run.start < end:
            end = run.start
    return None


def _none_after(last: BlockRun, start: int, end: int) -> bool:
    """Whether no run that comes after this one in its chain has any of these blocks: then it may grow by them, and
    whoever cached one of them before still comes before it."""
    assert last.chain is not None, "asked of the ends of the queue"
    for run in reversed(last.chain.runs):
        if run is last:
            break
        if run.start < end and start < run.end:
            return False
    return True


def _chains(request: Request, block_size: int) -> Sequence[tuple[int, int]]:
    """The chains that a request runs through: the number of its first block in each, and the chain's name. The last
    goes on for ever, as an output does."""
    if not request.chains:
        request.chains = name_chains(request, block_size)
    return request.chains


def name_chains(request: Request, block_size: int) -> list[tuple[int, int]]:
    chains: list[tuple[int, int]] = []
    first_block, name, next_token, next_number = 0, NO_CHAIN, None, 0
    for number in _blocks_to_look_at(request, block_size):
        tokens = request.tokens(number * block_size, (number + 1) * block_size)
        if number > next_number:
            next_token = request.tokens(number * block_size - 1, number * block_size)[0] + 1
        consecutive = tokens[-1] == tokens[0] + block_size - 1 and (
            isinstance(tokens, range) or tuple(tokens) == tuple(range(tokens[0], tokens[0] + block_size))
        )
        if not (consecutive and tokens[0] == next_token):
            # Two different chains share a name in one of about 2**61 pairs.
            name = hash((name, number - first_block, tokens[0] if consecutive else tuple(tokens)))
            first_block = number
            chains.append((first_block, name))
        next_token, next_number = tokens[-1] + 1, number + 1
    return chains


def _blocks_to_look_at(request: Request, block_size: int) -> Iterable[int]:
    """The numbers of the blocks at which tokens may stop to count on from those before. The last is the first with
    output in it."""
    prompt = request.prompt_token_ids
    last = request.num_prompt_tokens // block_size
    if isinstance(prompt, range) and prompt.step == 1:
        return (0, last) if last else (0,)
    if not isinstance(prompt, TokenIds):
        return range(last + 1)
    numbers = {0, last}
    for start in accumulate(count for _, count in prompt.runs):
        numbers.update((start // block_size, -(-start // block_size)))
    return sorted(number for number in numbers if number <= last)
