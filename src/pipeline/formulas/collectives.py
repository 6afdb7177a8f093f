"""The cost of collectives: bytes sent, bus bandwidth, and a fit of `latency + size / bandwidth` to measured times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def all_reduce_bus_factor(world_size: float) -> float:
    """Return the bytes that each rank of a ring sends per byte of an all-reduce: 2 (n − 1) / n.

    busbw is algbw (bytes over time) times this factor and is comparable with the links' speed at any world size.
    Source: nccl-tests, doc/PERFORMANCE.md. With in-network reduction, which sends less than a ring, busbw may exceed
    the links' speed. Without it no algorithm sends less than a ring: Patarasuk and Yuan 2009.
    """
    return 2 * (world_size - 1) / world_size


def all_gather_bus_factor(world_size: float) -> float:
    """Return the bytes that each rank sends per byte of an all-gather or a reduce-scatter: (n − 1) / n.

    That is half of an all-reduce, which is one of each. Broadcasting one share from each rank sends the same amount,
    averaged over the ranks.
    """
    return (world_size - 1) / world_size


def nccl_tests_bus_factor(collective: str, world_size: int) -> float:
    """Return busbw over algbw by nccl-tests' definitions, where the size is that of the whole buffer.

    Source: nccl-tests, doc/PERFORMANCE.md, "Bandwidth": all-reduce 2 (n − 1) / n; all-gather, reduce-scatter and
    all-to-all (n − 1) / n; broadcast and send/receive 1.
    """
    if collective in ("broadcast", "send_recv"):
        return 1.0
    return all_reduce_bus_factor(world_size) if collective == "all_reduce" else all_gather_bus_factor(world_size)


def bus_factor(collective: str, world_size: int) -> float:
    """Return the bytes that each rank of a ring sends per byte of payload, given c10d's name of the collective."""
    factor = all_reduce_bus_factor if collective == "allreduce" else all_gather_bus_factor
    return factor(world_size)


@dataclass(frozen=True)
class LinearCost:
    """The time of a collective as `latency_s + size_bytes / bytes_per_s`, the algorithm bandwidth."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, size_bytes: float) -> float:
        """Return the modelled time for `size_bytes`."""
        return self.latency_s + size_bytes / self.bytes_per_s


def fit_linear_cost(sizes_bytes: Sequence[float], times_s: Sequence[float]) -> LinearCost:
    """Fit a non-negative latency and bandwidth by least squares on the relative error.

    With absolute errors the largest size alone would decide. Raises ValueError for fewer than two sizes and for times
    that do not grow with the size.
    """
    sizes, times = np.asarray(sizes_bytes, dtype=float), np.asarray(times_s, dtype=float)
    if len(np.unique(sizes)) < 2:
        raise ValueError("a fit needs the times of at least two sizes")
    relative = np.column_stack([1 / times, sizes / times])
    # Columns of equal norm keep the problem well conditioned, because sizes reach 1e9.
    scale = np.linalg.norm(relative, axis=0)
    latency_s, s_per_byte = np.linalg.lstsq(relative / scale, np.ones_like(times), rcond=None)[0] / scale
    if s_per_byte <= 0:
        raise ValueError("the times do not grow with the size: no bandwidth fits them")
    if latency_s < 0:
        latency_s, s_per_byte = 0.0, relative[:, 1].sum() / (relative[:, 1] ** 2).sum()
    return LinearCost(float(latency_s), float(1 / s_per_byte))
