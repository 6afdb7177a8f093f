"""What bucketed gradient averaging adds to a backward pass, as a model of calls and bytes.

Symbols: s bytes of gradients, w all-reduce algorithm bandwidth (each rank's bytes over the time), o seconds that each
call costs beside its bytes, n buckets of equal size. Units are bytes and seconds.
"""

import math
from collections.abc import Sequence


def overhead_s(gradient_bytes: float, buckets: float, call_overhead_s: float, bandwidth: float) -> float:
    """Return the time after backward under the assumption that a bucket's gradients take as long as its bytes.

    n·o + s / (n·w). Bucket k is ready at k·c with c = s / (n·w), and its transfer takes o + c, so that from the first
    bucket on transfers follow one another without a gap: the last ends at c + n·(o + c), backward at n·c.
    """
    return buckets * call_overhead_s + gradient_bytes / (buckets * bandwidth)


def optimal_buckets(gradient_bytes: float, call_overhead_s: float, bandwidth: float) -> float:
    """Return the number of buckets, as a real number, at which `overhead_s` is least: sqrt(s / (w·o))."""
    return math.sqrt(gradient_bytes / (bandwidth * call_overhead_s))


def optimal_bucket_bytes(gradient_bytes: float, call_overhead_s: float, bandwidth: float) -> float:
    """Return the bucket size at which `overhead_s` is least: s over that number, sqrt(s·w·o)."""
    return math.sqrt(gradient_bytes * bandwidth * call_overhead_s)


def pipelined_overhead_s(
    bucket_bytes: Sequence[float], backward_s: float, call_overhead_s: float, bandwidth: float
) -> float:
    """Return the time after backward without that assumption, for buckets in the order in which they fill.

    Backward gives gradients at a constant rate over `backward_s`; a bucket's transfer of o + bytes / w starts when the
    bucket is full and the former transfer has ended.
    """
    total_bytes = sum(bucket_bytes)
    filled_bytes = transfer_ends_s = 0.0
    for size in bucket_bytes:
        filled_bytes += size
        ready_s = backward_s * filled_bytes / total_bytes
        transfer_ends_s = max(ready_s, transfer_ends_s) + call_overhead_s + size / bandwidth
    return transfer_ends_s - backward_s
