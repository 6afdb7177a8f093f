"""The time that data-parallel training adds to the backward pass, by the number of gradient buckets.

Symbols: s bytes of gradients, n calls; an all-reduce costs o + bytes / w, with latency o and algorithm bandwidth w.
"""

import math

from pipeline.formulas.collectives import LinearCost


def bucketed_s(gradient_bytes: float, num_buckets: float, cost: LinearCost) -> float:
    """Return the overhead of n equal buckets sent during the backward pass: n·o + s / (n·w).

    Assumes that a bucket's gradients take as long to compute as to send: each transfer but the last hides behind the
    computation of the next bucket; latencies do not hide.
    """
    return num_buckets * cost.latency_s + gradient_bytes / (num_buckets * cost.bytes_per_s)


def best_bucket_bytes(gradient_bytes: float, cost: LinearCost) -> float:
    """Return the bucket size with the least overhead: from o − s / (n²·w) = 0, s / n = √(s·w·o)."""
    return math.sqrt(gradient_bytes * cost.bytes_per_s * cost.latency_s)


def least_overhead_s(gradient_bytes: float, cost: LinearCost) -> float:
    """Return the overhead at the best bucket size: 2·√(s·o / w), half of it calls and half the last transfer."""
    return 2 * math.sqrt(gradient_bytes * cost.latency_s / cost.bytes_per_s)
