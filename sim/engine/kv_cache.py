"""KV blocks: the pool, the order in which free blocks are taken, and the prefix cache.

vLLM 0.32 (``v1/core/block_pool.py``) keeps one queue of free blocks and takes from its front. A freed block that the
prefix cache knows goes to the back; any other goes to the front. So the queue is always nameless blocks first, then
cached ones, the longest unused in front. Nameless blocks have no content that could ever be asked for, so here they
are a count; only cached blocks are objects.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from sim.engine.config import EngineConfig
from sim.engine.request import Request

ROOT_HASH = 0


class Block:
    """A full block in the prefix cache. Compared by identity: two blocks may hold the same tokens."""

    __slots__ = ("block_hash", "ref_cnt", "weight_version")

    def __init__(self, block_hash: int, weight_version: int) -> None:
        self.block_hash = block_hash
        self.ref_cnt = 1
        self.weight_version = weight_version
        """Oldest weights that any of its tokens was computed with."""


def hash_block(parent_hash: int, token_ids: Sequence[int]) -> int:
    """Name of a full block: of its tokens and of all before it.

    Consecutive ids, as all generated tokens are, are named by the first, so that a long output costs one hash a block
    and not one a token. Two different blocks share a name in one of about 2**61 pairs.
    """
    first = token_ids[0]
    consecutive = range(first, first + len(token_ids))
    if token_ids == consecutive or (token_ids[-1] == consecutive[-1] and tuple(token_ids) == tuple(consecutive)):
        return hash((parent_hash, first))
    return hash((parent_hash, tuple(token_ids)))


class KVCacheManager:
    """Hands out KV blocks and takes them back.

    A request always holds ``cdiv(num_computed_tokens, block_size)`` blocks, so no count of them is kept.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.block_size = config.block_size
        self.usable_blocks = config.usable_blocks
        self.watermark_blocks = config.watermark_blocks
        self.enable_caching = config.enable_prefix_caching
        self.reserve_full_isl = config.scheduler_reserve_full_isl
        self.weight_version = 0
        """Version of the weights that compute new KV."""

        self.num_nameless_free_blocks = self.usable_blocks
        self.cached_free_blocks: OrderedDict[Block, None] = OrderedDict()
        """Free blocks whose content is still cached; the first is evicted first."""
        self.cached_blocks: dict[int, Block] = {}
        """The block a lookup of a hash finds: of several with the same content, the one cached first."""
        self.duplicates: dict[int, list[Block]] = {}
        """Further blocks with the content of one in cached_blocks, in the order in which they were cached."""
        self.num_shared_references = 0
        """References to cached blocks beyond the first of each: what sharing saves, in blocks."""

    @property
    def free_blocks(self) -> int:
        return self.num_nameless_free_blocks + len(self.cached_free_blocks)

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # --- taking and giving back -----------------------------------------------------------------------------------

    def take(self, num_blocks: int) -> None:
        """Take blocks from the front of the free queue; the cached ones among them are forgotten."""
        assert 0 <= num_blocks <= self.free_blocks, "took blocks that are not free"
        nameless = min(num_blocks, self.num_nameless_free_blocks)
        self.num_nameless_free_blocks -= nameless
        for _ in range(num_blocks - nameless):
            block, _ = self.cached_free_blocks.popitem(last=False)
            assert block.ref_cnt == 0, "evicted a block that is in use"
            self._forget(block)

    def missing_blocks(self, request: Request, num_new_tokens: int) -> int:
        """Blocks that a running request lacks for its next tokens."""
        num_tokens = request.num_computed_tokens + num_new_tokens
        return self.num_blocks(num_tokens) - self.num_blocks(request.num_computed_tokens)

    def allocate(self, request: Request, num_new_tokens: int) -> None:
        """Get a running request the blocks for its next tokens."""
        self.take(self.missing_blocks(request, num_new_tokens))
        self.cache_blocks(request, min(request.num_computed_tokens + num_new_tokens, request.num_tokens))

    def admit(self, request: Request, hits: Sequence[Block], num_new_tokens: int, *, keep_watermark: bool) -> bool:
        """Get a waiting request its cached blocks and those for its first tokens; False, and nothing is done, if that
        is more than is free."""
        assert request.num_computed_tokens == 0, "a waiting request holds no blocks"
        if self.admission_blocks(request, hits, num_new_tokens, keep_watermark=keep_watermark) > self.free_blocks:
            return False
        num_tokens = len(hits) * self.block_size + num_new_tokens
        self._touch(hits)
        request.blocks.extend(hits)
        request.kv_weight_version = min((block.weight_version for block in hits), default=self.weight_version)
        self.take(self.num_blocks(num_tokens) - len(hits))
        self.cache_blocks(request, min(num_tokens, request.num_tokens))
        return True

    def admission_blocks(
        self, request: Request, hits: Sequence[Block], num_new_tokens: int, *, keep_watermark: bool
    ) -> int:
        """Free blocks that admitting this request asks for. A hit that nobody holds leaves the free queue too."""
        num_tokens = request.num_tokens if self.reserve_full_isl else len(hits) * self.block_size + num_new_tokens
        in_use = sum(block.ref_cnt > 0 for block in hits)
        return self.num_blocks(num_tokens) - in_use + (self.watermark_blocks if keep_watermark else 0)

    def free(self, request: Request) -> None:
        """Take back all blocks of a request, last block first: the end of a prefix is evicted before its start."""
        self.num_nameless_free_blocks += self.num_blocks(request.num_computed_tokens) - len(request.blocks)
        for block in reversed(request.blocks):
            block.ref_cnt -= 1
            if block.ref_cnt:
                assert block.ref_cnt > 0, "freed a block more often than it was taken"
                self.num_shared_references -= 1
            else:
                self.cached_free_blocks[block] = None
        request.blocks.clear()
        request.num_computed_tokens = 0
        request.open_block_weight_version = None

    def num_stale_tokens(self, blocks: Sequence[Block]) -> int:
        """Tokens in blocks that older weights than the present ones computed."""
        return self.block_size * sum(block.weight_version < self.weight_version for block in blocks)

    # --- the prefix cache -----------------------------------------------------------------------------------------

    def get_computed_blocks(self, request: Request) -> Sequence[Block]:
        """The longest run of cached blocks from the start of the request. Its last token is never among them: it has
        to be computed to sample from."""
        if not self.enable_caching:
            return ()
        num_blocks = (request.num_tokens - 1) // self.block_size
        self._hash_blocks(request, num_blocks)
        hits: list[Block] = []
        for block_hash in islice(request.block_hashes, num_blocks):
            block = self.cached_blocks.get(block_hash)
            if block is None:
                break
            hits.append(block)
        return hits

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Let the prefix cache know the full blocks of the first num_tokens tokens. vLLM does so as soon as they are
        *scheduled*, and a request later in the same step finds them."""
        if not self.enable_caching:
            return
        num_blocks = num_tokens // self.block_size
        self._hash_blocks(request, num_blocks)
        for block_hash in request.block_hashes[len(request.blocks) : num_blocks]:
            version = request.open_block_weight_version
            block = Block(block_hash, self.weight_version if version is None else version)
            request.open_block_weight_version = None
            request.blocks.append(block)
            if self.cached_blocks.setdefault(block_hash, block) is not block:
                self.duplicates.setdefault(block_hash, []).append(block)

    def reset_prefix_cache(self) -> bool:
        """Forget everything cached; False, and nothing is done, while any block is held."""
        if self.free_blocks != self.usable_blocks:
            return False
        self.num_nameless_free_blocks = self.usable_blocks
        self.cached_free_blocks.clear()
        self.cached_blocks.clear()
        self.duplicates.clear()
        return True

    def mark_open_block(self, request: Request, num_tokens: int) -> None:
        """Note, before the weights change, that they have computed part of the block the request is filling."""
        if num_tokens % self.block_size and request.open_block_weight_version is None:
            request.open_block_weight_version = self.weight_version

    def _hash_blocks(self, request: Request, num_blocks: int) -> None:
        hashes, block_size = request.block_hashes, self.block_size
        for start in range(len(hashes) * block_size, num_blocks * block_size, block_size):
            hashes.append(hash_block(hashes[-1] if hashes else ROOT_HASH, request.tokens(start, start + block_size)))

    def _touch(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                del self.cached_free_blocks[block]
            else:
                self.num_shared_references += 1
            block.ref_cnt += 1

    def _forget(self, block: Block) -> None:
        others = self.duplicates.get(block.block_hash)
        if others is None:
            del self.cached_blocks[block.block_hash]
            return
        if self.cached_blocks[block.block_hash] is block:
            self.cached_blocks[block.block_hash] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self.duplicates[block.block_hash]
