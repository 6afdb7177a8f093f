"""Which queries see which keys: query i sees those from i + band_start (HAS_START) and before i + band_end (HAS_END).

A causal mask only has an end, a sliding window has both. Bounds are clamped at 0 before they are divided, because
Triton rounds quotients towards 0.
"""

import triton
import triton.language as tl


@triton.jit
def is_seen(
    queries, keys, n_keys, band_start, band_end, HAS_START: tl.constexpr, HAS_END: tl.constexpr
):  # fmt: skip
    """Return which of these queries see which of these keys; their shapes must broadcast."""
    seen = keys < n_keys
    if HAS_END:
        seen &= keys <= queries + (band_end - 1)
    if HAS_START:
        seen &= keys >= queries + band_start
    return seen


@triton.jit
def keys_seen(
    first_query, n_keys, band_start, band_end, HAS_START: tl.constexpr, HAS_END: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Return which keys a tile of queries sees: start, start_unmasked, end_unmasked, end.

    Keys that any of the queries sees lie between start and end; those from start_unmasked to end_unmasked, in whole
    blocks, are seen by all queries. A range may be empty, with its end at or before its start.
    """
    start, start_unmasked, end, end_unmasked = 0, 0, n_keys, n_keys // BLOCK_KEYS * BLOCK_KEYS
    if HAS_END:
        end = tl.minimum(end, tl.maximum(0, first_query + BLOCK_QUERIES - 1 + band_end))
        end_unmasked = tl.minimum(end_unmasked, tl.maximum(0, first_query + band_end) // BLOCK_KEYS * BLOCK_KEYS)
    if HAS_START:
        start = tl.maximum(0, first_query + band_start) // BLOCK_KEYS * BLOCK_KEYS
        start_unmasked = tl.cdiv(tl.maximum(0, first_query + BLOCK_QUERIES - 1 + band_start), BLOCK_KEYS) * BLOCK_KEYS
    return start, start_unmasked, end_unmasked, end


@triton.jit
def queries_seeing(
    first_key, n_queries, band_start, band_end, HAS_START: tl.constexpr, HAS_END: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Return which queries see a tile of keys: start, start_unmasked, end_unmasked, end, as in `keys_seen`."""
    start, start_unmasked, end_unmasked, end = 0, 0, n_queries, n_queries
    if HAS_END:
        start = tl.maximum(0, first_key - band_end + 1) // BLOCK_QUERIES * BLOCK_QUERIES
        start_unmasked = tl.cdiv(tl.maximum(0, first_key + BLOCK_KEYS - band_end), BLOCK_QUERIES) * BLOCK_QUERIES
    if HAS_START:
        end = tl.minimum(end, tl.maximum(0, first_key + BLOCK_KEYS - band_start))
        end_unmasked = tl.minimum(end, tl.maximum(0, first_key - band_start + 1) // BLOCK_QUERIES * BLOCK_QUERIES)
    return start, start_unmasked, end_unmasked, end
