"""How much longer data-parallel training takes than the backward pass alone, by the number of gradient buckets.

Symbols: s bytes of gradients, w bytes/s of an all-reduce (its algorithm bandwidth), o seconds that a call costs
whatever its size, n calls.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """An all-reduce as latency and bandwidth: so many bytes take call_overhead_s + bytes / bytes_per_s."""

    bytes_per_s: float
    call_overhead_s: float


def unhidden_s(gradient_bytes: float, num_calls: int, link: Link) -> float:
    """Return the overhead of `num_calls` all-reduces that start after the backward pass: n·o + s / w."""
    return num_calls * link.call_overhead_s + gradient_bytes / link.bytes_per_s


def bucketed_s(gradient_bytes: float, num_buckets: float, link: Link) -> float:
    """Return the overhead of n equal buckets sent while the backward pass goes on: n·o + s / (n·w).

    Under the assumption that a bucket's gradients take as long to compute as to send, each transfer hides behind the
    computation of the next bucket, the last one behind nothing; no call's own cost hides.
    """
    return num_buckets * link.call_overhead_s + gradient_bytes / (num_buckets * link.bytes_per_s)


def best_num_buckets(gradient_bytes: float, link: Link) -> float:
    """Return the n, not rounded, with the least overhead: from o − s / (n²·w) = 0, n = √(s / (w·o))."""
    return math.sqrt(gradient_bytes / (link.bytes_per_s * link.call_overhead_s))


def best_bucket_bytes(gradient_bytes: float, link: Link) -> float:
    """Return the bucket size with the least overhead, s / n = √(s·w·o)."""
    return math.sqrt(gradient_bytes * link.bytes_per_s * link.call_overhead_s)


def least_overhead_s(gradient_bytes: float, link: Link) -> float:
    """Return the overhead at the best bucket size: 2·√(s·o / w), half of it calls and half the last transfer."""
    return 2 * math.sqrt(gradient_bytes * link.call_overhead_s / link.bytes_per_s)
