"""KV blocks: how many are free, who holds how many, and what an admission asks for.

vLLM 0.32 (``v1/core/block_pool.py``) keeps one queue of free blocks and takes from its front. A freed block that the
prefix cache knows goes to the back; any other goes to the front. So the queue is always nameless blocks first, then
cached ones, the longest unused in front. Nameless blocks have no content that could ever be asked for, so here they
are a count; of cached ones the prefix cache keeps the order.
"""

from collections.abc import Sequence

from sim.engine.config import EngineConfig
from sim.engine.prefix_cache import Hit, PrefixCache
from sim.engine.request import Request
from sim.engine.steady import Decodes


class KVCacheManager:
    """Hands out KV blocks and takes them back.

    A request always holds ``cdiv(num_computed_tokens, block_size)`` blocks, so no count of them is kept.
    """

    def __init__(self, config: EngineConfig, decodes: Decodes) -> None:
        self.block_size = config.block_size
        self.usable_blocks = config.usable_blocks
        self.watermark_blocks = config.watermark_blocks
        self.enable_caching = config.enable_prefix_caching
        self.reserve_full_isl = config.scheduler_reserve_full_isl
        self.only_length_matters = self.reserve_full_isl and not self.enable_caching
        """Whether an admission asks for room for all tokens of the request, and for nothing else."""
        self.free_blocks = self.usable_blocks
        """Nameless ones, and those in the free queue of the prefix cache."""
        self.prefix_cache = PrefixCache(config.block_size, decodes)

    @property
    def num_nameless_free_blocks(self) -> int:
        return self.free_blocks - self.prefix_cache.free_queue.num_blocks

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # --- taking and giving back -----------------------------------------------------------------------------------

    def take(self, num_blocks: int) -> None:
        """Take blocks from the front of the free queue; the cached ones among them are forgotten."""
        assert 0 <= num_blocks <= self.free_blocks, "took blocks that are not free"
        self.free_blocks -= num_blocks
        if self.enable_caching and self.free_blocks < self.prefix_cache.free_queue.num_blocks:
            self.prefix_cache.evict(self.prefix_cache.free_queue.num_blocks - self.free_blocks)

    def missing_blocks(self, request: Request, num_new_tokens: int) -> int:
        """Blocks that a running request lacks for its next tokens."""
        num_tokens = request.num_computed_tokens + num_new_tokens
        return self.num_blocks(num_tokens) - self.num_blocks(request.num_computed_tokens)

    def allocate(self, request: Request, num_new_tokens: int) -> None:
        """Get a running request the blocks for its next tokens."""
        self.take(self.missing_blocks(request, num_new_tokens))
        self.cache_blocks(request, min(request.num_computed_tokens + num_new_tokens, request.num_tokens))

    def admit(self, request: Request, hits: Sequence[Hit], num_new_tokens: int, keep_watermark: bool) -> bool:
        """Get a waiting request its cached blocks and those for its first tokens; False, and nothing is done, if that
        is more than is free."""
        assert request.num_computed_tokens == 0, "a waiting request holds no blocks"
        if self.only_length_matters:  # spelled out, as most that leaps do is this
            num_blocks = -(-(request.num_prompt_tokens + request.num_output_tokens) // self.block_size)
            if num_blocks + keep_watermark * self.watermark_blocks > self.free_blocks:
                return False
            self.free_blocks -= -(-num_new_tokens // self.block_size)
            request.kv_weight_version = self.prefix_cache.weight_version
            return True
        if self.admission_blocks(request, hits, num_new_tokens, keep_watermark) > self.free_blocks:
            return False
        request.kv_weight_version = self.prefix_cache.weight_version
        if not self.enable_caching:
            self.free_blocks -= -(-num_new_tokens // self.block_size)
            return True
        self.free_blocks -= self.prefix_cache.hold(request, hits)
        num_cached_blocks = request.num_cached_blocks
        num_tokens = num_cached_blocks * self.block_size + num_new_tokens
        for hit in hits:
            request.kv_weight_version = min(request.kv_weight_version, hit.run.weight_version)
        self.take(self.num_blocks(num_tokens) - num_cached_blocks)
        self.cache_blocks(request, min(num_tokens, request.num_tokens))
        return True

    def admission_blocks(self, request: Request, hits: Sequence[Hit], num_new_tokens: int, keep_watermark: bool) -> int:
        """Free blocks that admitting this request asks for. A hit that nobody holds leaves the free queue too."""
        if self.reserve_full_isl:
            num_tokens = request.num_prompt_tokens + request.num_output_tokens
        else:
            num_tokens = self.num_hit_tokens(hits) + num_new_tokens
        num_blocks = -(-num_tokens // self.block_size)
        if keep_watermark:
            num_blocks += self.watermark_blocks
        for run, start, end in hits:
            if run.holders:
                num_blocks -= end - start
        return num_blocks

    def free(self, request: Request) -> None:
        """Take back all blocks of a request."""
        num_blocks = -(-request.num_computed_tokens // self.block_size)
        if self.enable_caching:
            num_blocks -= self.prefix_cache.release(request)
            request.open_block_weight_version = None
        self.free_blocks += num_blocks
        request.num_computed_tokens = 0

    def num_hit_tokens(self, hits: Sequence[Hit]) -> int:
        return self.block_size * sum([end - start for _, start, end in hits]) if hits else 0

    def num_stale_tokens(self, hits: Sequence[Hit]) -> int:
        """Tokens in blocks that older weights than the present ones computed."""
        return self.num_hit_tokens([hit for hit in hits if hit.run.weight_version < self.prefix_cache.weight_version])

    # --- the prefix cache -----------------------------------------------------------------------------------------

    def get_computed_blocks(self, request: Request) -> Sequence[Hit]:
        """The longest run of cached blocks from the start of the request. Its last token is never among them: it has
        to be computed to sample from."""
        if not self.enable_caching:
            return ()
        return self.prefix_cache.find(request, (request.num_tokens - 1) // self.block_size)

    def may_hit_more(self, request: Request, hits: Sequence[Hit]) -> bool:
        """Whether a waiting request, for which these were found, may find more once those that run have decoded on."""
        if not self.enable_caching:
            return False
        num_blocks_found = sum([end - start for _, start, end in hits])
        return self.prefix_cache.may_find_more(request, num_blocks_found, (request.num_tokens - 1) // self.block_size)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Let the prefix cache know the full blocks of the first num_tokens tokens. vLLM does so as soon as they are
        *scheduled*, and a request later in the same step finds them."""
        if self.enable_caching:
            self.prefix_cache.extend(request, num_tokens // self.block_size)

    def reset_prefix_cache(self) -> bool:
        """Forget everything cached; False, and nothing is done, while any block is held."""
        if self.free_blocks != self.usable_blocks:
            return False
        self.prefix_cache.clear()
        return True

    def mark_open_block(self, request: Request, num_tokens: int) -> None:
        """Note, before the weights change, that they have computed part of the block the request is filling."""
        if self.enable_caching and num_tokens % self.block_size and request.open_block_weight_version is None:
            request.open_block_weight_version = self.prefix_cache.weight_version
