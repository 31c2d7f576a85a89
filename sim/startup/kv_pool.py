"""The KV pool: one request of max_model_len must fit in it, as `get_kv_cache_configs` counts."""

from sim.startup.rules import NEWEST, RULES, Finding, Version

NULL_BLOCK_SINCE: Version = (0, 29)
"""From this release on the check sets aside the pool's reserved null block; before, it forgot it."""


def blocks_needed(max_model_len: int, block_size: int, version: Version = NEWEST) -> int:
    """Blocks the pool must have so that one request of `max_model_len` fits."""
    return -(-max_model_len // block_size) + (version >= NULL_BLOCK_SINCE)


def fit_pool(
    max_model_len: int, block_size: int, num_gpu_blocks: int, *, auto: bool = False, version: Version = NEWEST
) -> tuple[int, list[Finding]]:
    """The length afterwards and what bit; with `auto` (max_model_len -1) the length shrinks to what fits.

    Full attention in every layer is assumed; a sliding window needs less.
    """
    needed = blocks_needed(max_model_len, block_size, version)
    if needed <= num_gpu_blocks:
        return max_model_len, []
    fitting = (num_gpu_blocks - (version >= NULL_BLOCK_SINCE)) * block_size
    if auto and fitting > 0:
        why = f"{num_gpu_blocks} blocks of {block_size} hold no more than one request of {fitting} tokens"
        rule = RULES["context-fitted-to-pool"]
        return fitting, [rule.found("max_model_len", why, given=max_model_len, becomes=fitting)]
    why = f"one request of {max_model_len} tokens needs {needed} blocks of {block_size}; the pool has {num_gpu_blocks}"
    error = (
        f"num_gpu_blocks is {num_gpu_blocks}: a request of max_model_len ({max_model_len} tokens) needs {needed} blocks"
        f" of {block_size}, the null block included, and vLLM would not start"
    )
    return max_model_len, [RULES["pool-below-context"].found("max_model_len", why, given=max_model_len, error=error)]
