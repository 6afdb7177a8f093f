"""What bucketed gradient averaging leaves over after a backward pass of known length.

The closed form for a backward pass just as long as the transfers is `pipeline.formulas.buckets.bucketed_s`.
"""

from collections.abc import Sequence

from pipeline.formulas.buckets import Link


def pipelined_s(bucket_bytes: Sequence[float], backward_s: float, link: Link) -> float:
    """Return the seconds from the end of backward to that of the last transfer, for buckets in the order they fill.

    Backward gives gradients at a constant rate over `backward_s`; a bucket's transfer of o + bytes / w starts when the
    bucket is full and the former transfer has ended.
    """
    total_bytes = sum(bucket_bytes)
    filled_bytes = transfer_ends_s = 0.0
    for size in bucket_bytes:
        filled_bytes += size
        ready_s = backward_s * filled_bytes / total_bytes
        transfer_ends_s = max(ready_s, transfer_ends_s) + link.call_overhead_s + size / link.bytes_per_s
    return transfer_ends_s - backward_s
